package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/aviaryhq/aviary/test/bench/load"
	"github.com/aviaryhq/aviary/test/bench/measure"
	"github.com/aviaryhq/aviary/test/bench/servers"
	"github.com/aviaryhq/aviary/test/bench/workload"
)

// observer returns a function that adds the broker's current metrics to a sample.
func (c *cluster) observer(ctx context.Context, metrics []workload.Metric) func(load.Sample) {
	var last map[string]float64
	var lastAt time.Time
	return func(s load.Sample) {
		if len(metrics) == 0 || !c.own { // a cluster has several brokers
			return
		}
		families, err := servers.Metrics(ctx, strings.TrimSuffix(c.config.AdminURL, "/")+"/metrics/")
		if err != nil {
			fmt.Fprintln(os.Stderr, "bench: cannot read the broker's metrics:", err)
			return
		}
		now, sums := time.Now(), map[string]float64{}
		for _, m := range metrics {
			sums[m.Series] = m.Sum(families)
			if !m.Rate {
				s.Values[m.Series] = sums[m.Series]
			} else if last != nil {
				s.Values[m.Series] = (sums[m.Series] - last[m.Series]) / now.Sub(lastAt).Seconds()
			}
		}
		last, lastAt = sums, now
	}
}

// seriesFigures adds two figures of each observed metric, without the warm-up. NAME_max is the
// greatest sample. NAME_last is the median of the last third of the samples; of a rate it is their
// mean, because a rate may come in bursts.
func seriesFigures(result *load.Result, metrics []workload.Metric) {
	for _, m := range metrics {
		var values []float64
		for _, s := range result.Samples {
			if v, ok := s.Values[m.Series]; ok && s.Phase != load.PhaseWarmUp {
				values = append(values, v)
			}
		}
		if len(values) == 0 {
			continue
		}
		last := values[len(values)*2/3:]
		result.Figures[m.Series+"_max"], result.Figures[m.Series+"_last"] = measure.Most(values), measure.Median(last)
		if m.Rate {
			result.Figures[m.Series+"_last"] = mean(last)
		}
	}
}

func mean(values []float64) float64 {
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return sum / float64(len(values))
}
