// Package results holds what a scenario measured, as stored in JSON and shown on a page.
package results

import (
	"fmt"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/aviaryhq/aviary/test/bench/load"
	"github.com/aviaryhq/aviary/test/bench/measure"
	"github.com/aviaryhq/aviary/test/bench/workload"
)

// Results are those of one scenario.
type Results struct {
	Scenario string           `json:"scenario"`
	Question string           `json:"question"`
	Command  string           `json:"command"`
	Machine  string           `json:"machine"`
	Began    time.Time        `json:"began"`
	Parts    []*Part          `json:"parts"`
	Targets  []measure.Target `json:"targets"`
}

// Part is one workload with all sides.
type Part struct {
	Name     string            `json:"name"`
	Workload workload.Workload `json:"workload"`
	Sides    []*Side           `json:"sides"`
}

// Side is one implementation with its turns, one of each round.
type Side struct {
	Name  string         `json:"name"`
	Turns []*load.Result `json:"turns"`
	// Percentiles of the latencies of all turns together, by the histogram's name.
	Percentiles map[string][]Percentile `json:"percentiles"`
}

// Percentile is a latency that so many percent of the messages do not exceed.
type Percentile struct {
	Percent float64 `json:"percent"`
	MS      float64 `json:"ms"`
}

// Figure returns the figure of each turn.
func (s *Side) Figure(name string) []float64 {
	return measure.Each(s.Turns, func(r *load.Result) float64 { return r.Figures[name] })
}

// Median is the median of a figure over the turns.
func (s *Side) Median(name string) float64 { return measure.Median(s.Figure(name)) }

// Has reports whether every turn has the figure.
func (s *Side) Has(name string) bool {
	return len(s.Turns) > 0 && !slices.ContainsFunc(s.Turns, func(r *load.Result) bool { _, ok := r.Figures[name]; return !ok })
}

// Merge makes the percentiles of each side from the histograms of its turns.
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
