package main

import (
	"github.com/aviaryhq/aviary/test/bench/load"
	"github.com/aviaryhq/aviary/test/bench/measure"
	"github.com/aviaryhq/aviary/test/bench/workload"
)

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
		if len(values) > 0 {
			last, sum := values[len(values)*2/3:], 0.0
			for _, v := range last {
				sum += v
			}
			if result.Figures[m.Series+"_last"] = measure.Median(last); m.Rate {
				result.Figures[m.Series+"_last"] = sum / float64(len(last))
			}
			result.Figures[m.Series+"_max"] = measure.Most(values)
		}
	}
}
