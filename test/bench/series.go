package main

import (
	"github.com/aviaryhq/aviary/test/bench/load"
	"github.com/aviaryhq/aviary/test/bench/measure"
	"github.com/aviaryhq/aviary/test/bench/workload"
)

// seriesFigures adds figures of the metrics that were observed, the warm-up left out: NAME_last,
// the median of the last third of the samples, and NAME_max.
func seriesFigures(result *load.Result, metrics []workload.Metric) {
	for _, m := range metrics {
		var values []float64
		for _, s := range result.Samples {
			if v, ok := s.Values[m.Series]; ok && s.Phase != "warmup" {
				values = append(values, v)
			}
		}
		if len(values) > 0 {
			result.Figures[m.Series+"_last"] = measure.Median(values[len(values)*2/3:])
			result.Figures[m.Series+"_max"] = measure.Most(values)
		}
	}
}
