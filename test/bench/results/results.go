// Package results holds the results of a scenario, and writes them as a page. They are stored as
// JSON.
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
	return measure.Each(s.Turns, func(r *load.Result) float64 {
		if v, ok := r.Figures[name]; ok {
			return v
		}
		return math.NaN()
	})
}

// Median returns the median of a figure over the turns.
func (s *Side) Median(name string) float64 {
	return measure.Median(slices.DeleteFunc(s.Figure(name), math.IsNaN))
}

// Most is the greatest value of a figure over the turns; 0 where none has it.
func (s *Side) Most(name string) float64 {
	return measure.Most(append(slices.DeleteFunc(s.Figure(name), math.IsNaN), 0))
}

// Names are those of all figures.
func (s *Side) Names() []string {
	all := map[string]bool{}
	for _, t := range s.Turns {
		for name := range t.Figures {
			all[name] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// Has reports whether every turn has the figure.
func (s *Side) Has(name string) bool {
	return len(s.Turns) > 0 && !slices.ContainsFunc(s.Turns, func(r *load.Result) bool { _, ok := r.Figures[name]; return !ok })
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
				if merged[name] == nil {
					merged[name] = h
				} else {
					merged[name].Merge(h)
				}
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
