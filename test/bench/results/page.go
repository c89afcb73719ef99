package results

import (
	"embed"
	"fmt"
	"html/template"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/aviaryhq/aviary/test/bench/load"
	"github.com/aviaryhq/aviary/test/bench/measure"
)

// assets are the page's template and script, and uPlot 1.6.32, which draws its charts.
//
//go:embed page.html page.js uplot
var assets embed.FS

// Page writes the results as one HTML page with tables and charts. The page loads nothing else.
func (r *Results) Page(w io.Writer) error {
	t, err := template.New("page.html").Funcs(template.FuncMap{
		"js":      func(name string) (template.JS, error) { return asset[template.JS](name) },
		"css":     func(name string) (template.CSS, error) { return asset[template.CSS](name) },
		"figures": figures, "losses": losses, "charts": charts, "met": met,
	}).ParseFS(assets, "page.html")
	if err != nil {
		return err
	}
	return t.Execute(w, r)
}

// asset returns an embedded file. Its type tells the template not to escape it; all other text is
// escaped.
func asset[T template.JS | template.CSS](name string) (T, error) {
	text, err := assets.ReadFile(name)
	return T(text), err
}

// units returns the units of figures and series, by the end of the name. Longer ends come first.
func units() [][2]string {
	return [][2]string{
		{"_msg_s", "msg/s"}, {"_mb_s", "MB/s"}, {"_bytes_s", "B/s"}, {"_ms_s", "ms/s"}, {"_ms", "ms"}, {"_us", "µs"},
		{"_s", "s"}, {"_mib", "MiB"}, {"_bytes", "bytes"}, {"_cores", "cores"}, {"_messages", "messages"},
		{"_entries", "entries"}, {"_percent", "%"},
	}
}

// unit splits a name into what is measured and the unit, which may be "".
func unit(name string) (what, unit string) {
	for _, u := range units() {
		if what, ok := strings.CutSuffix(name, u[0]); ok {
			return what, u[1]
		}
	}
	return name, ""
}

// label returns a readable name with its unit.
func label(name string) string {
	switch name {
	case "allocs":
		return "allocations per message"
	case "cpu_us":
		return "CPU per message, µs"
	case "peak_mib":
		return "peak memory, MiB"
	case "seconds":
		return "measured time, s"
	}
	what, unit := unit(name)
	if what = strings.ReplaceAll(strings.Replace(what, "p999", "p99.9", 1), "_", " "); unit != "" {
		what += ", " + unit
	}
	return strings.Replace(what, "e2e", "end-to-end", 1)
}

// met returns how many targets are met.
func met(targets []measure.Target) (n int) {
	for _, t := range targets {
		if t.OK {
			n++
		}
	}
	return n
}

// row is a row of a table: a label, and a cell for each side.
type row struct {
	Label string
	Cells []string
}

// figures returns a row for each figure of a part: median, least and greatest of the rounds.
func figures(p *Part) []row {
	var names []string
	for _, s := range p.Sides {
		names = append(names, s.Names()...)
	}
	slices.Sort(names)
	var rows []row
	for _, name := range slices.Compact(names) {
		if slices.Contains(Losses(), name) {
			continue
		}
		one := row{Label: label(name)}
		for _, s := range p.Sides {
			cell := "–"
			if s.Has(name) {
				all := s.Figure(name)
				if cell = number(s.Median(name)); len(all) > 1 {
					cell += " (" + number(measure.Least(all)) + "–" + number(measure.Most(all)) + ")"
				}
			}
			one.Cells = append(one.Cells, cell)
		}
		rows = append(rows, one)
	}
	return rows
}

// Losses are the figures of what went wrong with messages.
func Losses() []string {
	return []string{"lost", "lost_at_broker", "duplicated", "stored_again", "failed", "unexpected", "unsent"}
}

// losses returns a row for each kind of message that went wrong: the sum of all rounds.
func losses(p *Part) []row {
	labels := []string{
		"acknowledged, but not received", "acknowledged, but not stored at the broker", "received more than once",
		"stored more than once", "not acknowledged", "received from an aborted transaction", "due, but not sent: the rate is too high",
	}
	var rows []row
	for i, name := range Losses() {
		one := row{Label: labels[i]}
		for _, s := range p.Sides {
			total := 0.0
			for _, v := range s.Figure(name) {
				total += v
			}
			cell := number(total)
			if !s.Has(name) {
				switch {
				case name == "lost" || name == "duplicated" || name == "unexpected":
					cell = "not counted: no consumers"
				case s.Median("publish_msg_s") == 0:
					cell = "not counted: nothing published"
				default:
					cell = "not counted: no admin URL, or a topic has moved"
				}
			}
			one.Cells = append(one.Cells, cell)
		}
		rows = append(rows, one)
	}
	return rows
}

// number formats v with four digits, or with all digits of its integer part if these are more.
func number(v float64) string {
	if math.Abs(v) < 1000 {
		return fmt.Sprintf("%.4g", v)
	}
	text := strconv.FormatFloat(math.Round(v), 'f', 0, 64)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// partCharts is the data of a part for the page's script.
type partCharts struct {
	Sides  []sideSeries `json:"sides"`
	Charts []chart      `json:"charts"` // over time
}

// chart shows series that have the same unit, for every side.
type chart struct {
	Title  string   `json:"title"`
	Unit   string   `json:"unit"`
	Series []string `json:"series"`
	Labels []string `json:"labels"` // of the series, to which the script adds the side
	Log    bool     `json:"log"`
}

type sideSeries struct {
	Name        string                  `json:"name"`
	Rounds      []roundSeries           `json:"rounds"`
	Percentiles map[string][]Percentile `json:"percentiles"`
}

// roundSeries has the samples of one turn as columns.
type roundSeries struct {
	At     []int                 `json:"at"` // seconds
	Phases []phase               `json:"phases"`
	Values map[string][]*float64 `json:"values"` // nil: the sample does not have it
}

// phase is the name of a phase and the second in which it began.
type phase struct {
	At   int    `json:"at"`
	Name string `json:"name"`
}

// charts makes the data of a part's charts.
func charts(p *Part) partCharts {
	all := partCharts{}
	names := map[string]bool{}
	for _, s := range p.Sides {
		side := sideSeries{Name: s.Name, Rounds: []roundSeries{}, Percentiles: s.Percentiles}
		for _, t := range s.Turns {
			side.Rounds = append(side.Rounds, columns(t.Samples, names))
		}
		all.Sides = append(all.Sides, side)
	}
	known := []chart{
		latencies("Publish latency", "publish"),
		latencies("End-to-end latency", "e2e"),
		{Title: "Rate", Unit: "msg/s", Series: []string{"publish_msg_s", "consume_msg_s"}, Labels: []string{"published", "received"}},
		{Title: "Backlog", Unit: "messages", Series: []string{"backlog_messages"}, Labels: []string{""}},
		{Title: "CPU of the load process", Unit: "cores", Series: []string{"cpu_cores"}, Labels: []string{""}},
		{Title: "Memory of the load process", Unit: "MiB", Series: []string{"memory_mib"}, Labels: []string{""}},
	}
	for _, c := range known {
		if names[c.Series[0]] {
			all.Charts = append(all.Charts, c)
		}
		for _, name := range c.Series {
			delete(names, name)
		}
	}
	byUnit := map[string]*chart{}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		what, u := unit(name)
		if before, _, _ := strings.Cut(what, "_"); u == "ms" && (before == "publish" || before == "e2e") {
			continue // other percentiles of the first two charts
		}
		if byUnit[u] == nil {
			byUnit[u] = &chart{Title: "Other series", Unit: u}
		}
		byUnit[u].Series = append(byUnit[u].Series, name)
		byUnit[u].Labels = append(byUnit[u].Labels, strings.ReplaceAll(what, "_", " "))
	}
	for _, u := range slices.Sorted(maps.Keys(byUnit)) {
		c := *byUnit[u]
		if len(c.Series) == 1 {
			c.Title, c.Labels = strings.ToUpper(c.Labels[0][:1])+c.Labels[0][1:], []string{""}
		}
		all.Charts = append(all.Charts, c)
	}
	return all
}

// latencies returns the chart of a latency.
func latencies(title, of string) chart {
	series := []string{of + "_p99_ms", of + "_p50_ms", of + "_max_ms"}
	return chart{Title: title, Unit: "ms", Log: true, Series: series, Labels: []string{"p99", "p50", "max"}}
}

// columns turns samples into columns and adds the names of their series to names.
func columns(samples []load.Sample, names map[string]bool) roundSeries {
	r := roundSeries{Values: map[string][]*float64{}}
	for i, s := range samples {
		at := int(math.Round(s.At))
		r.At = append(r.At, at)
		if i == 0 || s.Phase != samples[i-1].Phase {
			r.Phases = append(r.Phases, phase{max(at-1, 0), s.Phase})
		}
		for name, v := range s.Values {
			names[name] = true
			if r.Values[name] == nil {
				r.Values[name] = make([]*float64, len(samples))
			}
			v, _ = strconv.ParseFloat(strconv.FormatFloat(v, 'g', 4, 64), 64) // what FormatFloat wrote
			if !math.IsNaN(v) && !math.IsInf(v, 0) {
				r.Values[name][i] = &v
			}
		}
	}
	return r
}
