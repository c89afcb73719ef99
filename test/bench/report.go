package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// report gathers what a scenario measures.
type report struct {
	scenario string
	rounds   int
	only     string
	profile  string
	quick    bool
	away     time.Duration // length of outages

	rows    []string
	figures map[string]float64
	targets []target
}

type target struct {
	Name   string  `json:"name"`
	Value  float64 `json:"value"`
	Target string  `json:"target"`
	OK     bool    `json:"ok"`
}

type result struct {
	Scenario string             `json:"scenario"`
	Figures  map[string]float64 `json:"figures"`
	Targets  []target           `json:"targets"`
}

func newReport(name string, rounds int, only, profile string) *report {
	return &report{scenario: name, rounds: rounds, only: only, profile: profile, figures: map[string]float64{}, targets: []target{}}
}

// wants reports whether the part is among those asked for.
func (r *report) wants(part string) bool { return r.only == "" || strings.Contains(part, r.only) }

// row adds a line to the table; cells are separated by tabs.
func (r *report) row(format string, args ...any) {
	r.rows = append(r.rows, fmt.Sprintf(format, args...))
}

func (r *report) figure(name string, v float64) { r.figures[name] = round(v) }

// atLeast and atMost add a target that an issue asked for.
func (r *report) atLeast(name string, value, want float64) {
	r.figure(name, value)
	r.targets = append(r.targets, target{name, round(value), fmt.Sprintf(">= %g", want), value >= want})
}

func (r *report) atMost(name string, value, want float64) {
	r.figure(name, value)
	r.targets = append(r.targets, target{name, round(value), fmt.Sprintf("<= %g", want), value <= want})
}

func (r *report) result() result { return result{r.scenario, r.figures, r.targets} }

func (r *report) print(w io.Writer) {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range r.rows {
		fmt.Fprintln(tw, row)
	}
	fmt.Fprintln(tw, "\ntarget\tmeasured\twanted\tmet")
	for _, t := range r.targets {
		fmt.Fprintf(tw, "%s\t%g\t%s\t%v\n", t.Name, t.Value, t.Target, t.OK)
	}
	_ = tw.Flush()
}

// median of vs, NaN-free: 0 when there are none.
func median[T cmp.Ordered](vs []T) T {
	if len(vs) == 0 {
		var zero T
		return zero
	}
	s := slices.Sorted(slices.Values(vs))
	return s[len(s)/2]
}

func round(v float64) float64 {
	if v == 0 || math.IsInf(v, 0) || math.IsNaN(v) {
		return 0
	}
	digits := math.Pow(10, 3-math.Floor(math.Log10(math.Abs(v))))
	return math.Round(v*digits) / digits
}

func names() []string { return slices.Sorted(maps.Keys(scenarios())) }
