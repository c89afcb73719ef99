package measure

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Report gathers what a scenario measures.
type Report struct {
	scenario string
	Rounds   int
	Only     string
	Profile  string
	Quick    bool
	Outage   time.Duration // length of outages

	rows    []string
	Figures map[string]float64
	targets []Target
}

// Target is a figure that an issue asked for, and whether it is reached.
type Target struct {
	Name   string  `json:"name"`
	Value  float64 `json:"value"`
	Target string  `json:"target"`
	OK     bool    `json:"ok"`
}

// Result is what a scenario measured, as stored in JSON.
type Result struct {
	Scenario string             `json:"scenario"`
	Figures  map[string]float64 `json:"figures"`
	Targets  []Target           `json:"targets"`
}

// New returns an empty report.
func New(name string, rounds int, only, profile string) *Report {
	return &Report{scenario: name, Rounds: rounds, Only: only, Profile: profile, Figures: map[string]float64{}, targets: []Target{}}
}

// Wants reports whether the part is among those asked for.
func (r *Report) Wants(part string) bool { return r.Only == "" || strings.Contains(part, r.Only) }

// Row adds a line to the table; cells are separated by tabs.
func (r *Report) Row(format string, args ...any) {
	r.rows = append(r.rows, fmt.Sprintf(format, args...))
}

// Figure adds a figure.
func (r *Report) Figure(name string, v float64) { r.Figures[name] = round(v) }

// AtLeast adds a target that the value is not below.
func (r *Report) AtLeast(name string, value, want float64) {
	r.Figure(name, value)
	r.targets = append(r.targets, Target{name, round(value), fmt.Sprintf(">= %g", want), value >= want})
}

// AtMost adds a target that the value is not above.
func (r *Report) AtMost(name string, value, want float64) {
	r.Figure(name, value)
	r.targets = append(r.targets, Target{name, round(value), fmt.Sprintf("<= %g", want), value <= want})
}

// Result returns all figures and targets.
func (r *Report) Result() Result { return Result{r.scenario, r.Figures, r.targets} }

// Print writes the table and the targets for people.
func (r *Report) Print(w io.Writer) {
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

// Median of vs: 0 when there are none, the mean of the two in the middle of an even number.
func Median(vs []float64) float64 {
	if len(vs) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(vs))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

func round(v float64) float64 {
	if v == 0 || math.IsInf(v, 0) || math.IsNaN(v) {
		return 0
	}
	digits := math.Pow(10, 3-math.Floor(math.Log10(math.Abs(v))))
	return math.Round(v*digits) / digits
}

// Least is the smallest of vs, which is not empty.
func Least(vs []float64) float64 { return slices.Min(vs) }

// Most is the largest of vs, which is not empty.
func Most(vs []float64) float64 { return slices.Max(vs) }
