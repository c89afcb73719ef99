// Package results stores the results of a scenario as JSON, and writes them as a page.
package results

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/aviaryhq/aviary/test/bench/load"
	"github.com/aviaryhq/aviary/test/bench/measure"
	"github.com/aviaryhq/aviary/test/bench/workload"
)

// Results are the results of one scenario.
type Results struct {
	Scenario string           `json:"scenario"`
	Question string           `json:"question"`
	Command  string           `json:"command"`
	Machine  string           `json:"machine"`
	Began    time.Time        `json:"began"`
	Parts    []*Part          `json:"parts"`
	Targets  []measure.Target `json:"targets"`
}

// Part has the results of one workload.
type Part struct {
	Name     string            `json:"name"`
	Workload workload.Workload `json:"workload"`
	Sides    []*Side           `json:"sides"`
}

// Side has the results of one implementation: a turn for each round.
type Side struct {
	Name  string         `json:"name"`
	Turns []*load.Result `json:"turns"`
	// Percentiles of the latencies of all turns together, by the histogram's name.
	Percentiles map[string][]Percentile `json:"percentiles"`
}

// Percentile is the latency MS that Percent of the messages do not exceed.
type Percentile struct {
	Percent float64 `json:"percent"`
	MS      float64 `json:"ms"`
}

// Figure returns the figure of each turn; NaN where it was not measured.
func (s *Side) Figure(name string) []float64 {
	var all []float64
	for _, t := range s.Turns {
		v, ok := t.Figures[name]
		if !ok {
			v = math.NaN()
		}
		all = append(all, v)
	}
	return all
}

// Summary returns the median of a figure over the turns, or the worst value if that counts.
func (s *Side) Summary(name string) float64 {
	if Worst(name) {
		return s.Most(name)
	}
	return measure.Median(slices.DeleteFunc(s.Figure(name), math.IsNaN))
}

// Most is the greatest value of a figure over the turns; 0 where none has it.
func (s *Side) Most(name string) float64 {
	return measure.Most(append(slices.DeleteFunc(s.Figure(name), math.IsNaN), 0))
}

// Worst reports whether the worst round counts in place of the median: of losses and of peaks.
func Worst(figure string) bool { return figure == "peak_mib" || slices.Contains(Losses(), figure) }

// Has reports whether every turn has the figure.
func (s *Side) Has(name string) bool {
	return len(s.Turns) > 0 && !slices.ContainsFunc(s.Figure(name), math.IsNaN)
}

// Names are those of all figures.
func (s *Side) Names() []string {
	all := map[string]float64{}
	for _, t := range s.Turns {
		maps.Copy(all, t.Figures)
	}
	return slices.Sorted(maps.Keys(all))
}

// Merge merges the histograms of each side's turns into the percentiles of the side.
func (p *Part) Merge() error {
	for _, s := range p.Sides {
		merged := map[string]*hdrhistogram.Histogram{}
		for _, t := range s.Turns {
			for name, text := range t.Histograms {
				h, err := hdrhistogram.Decode([]byte(text))
				if err != nil {
					return fmt.Errorf("histogram %s: %w", name, err)
				}
				if merged[name] != nil {
					h.Merge(merged[name])
				}
				merged[name] = h
			}
		}
		s.Percentiles = map[string][]Percentile{}
		for name, h := range merged {
			for _, q := range []float64{0, 10, 25, 50, 75, 90, 95, 99, 99.5, 99.9, 99.95, 99.99, 99.999, 100} {
				s.Percentiles[name] = append(s.Percentiles[name], Percentile{q, float64(h.ValueAtQuantile(q)) / 1000})
			}
		}
	}
	return nil
}
