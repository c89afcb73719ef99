package results

import (
	"embed"
	"fmt"
	"html/template"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/aviaryhq/aviary/test/bench/measure"
)

// assets are the page's template and script, and uPlot 1.6.32, which draws its charts.
//
//go:embed page.html page.js uplot
var assets embed.FS

// Page writes the results as one HTML page with tables and charts. The page loads nothing else.
func (r *Results) Page(w io.Writer) error {
	t, err := template.New("page.html").Funcs(template.FuncMap{
		"js":  func(name string) (template.JS, error) { return asset[template.JS](name) },
		"css": func(name string) (template.CSS, error) { return asset[template.CSS](name) },
		"met": met, "units": units, "label": label, "cell": cell, "losses": losses, "sum": sum,
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

// met returns how many targets are met.
func met(targets []measure.Target) (n int) {
	for _, t := range targets {
		if t.OK {
			n++
		}
	}
	return n
}

// units returns the units of figures and series, by the end of the name. Longer ends come first.
func units() [][2]string {
	return [][2]string{
		{"_per_cpu_s", "per CPU second"}, {"_msg_s", "msg/s"}, {"_mb_s", "MB/s"}, {"_bytes_s", "B/s"}, {"_kb_s", "kB/s"}, {"_ms_s", "ms/s"},
		{"_ms", "ms"}, {"_us", "µs"}, {"_s", "s"}, {"_mib", "MiB"}, {"_kib", "KiB"}, {"_bytes", "bytes"}, {"_cores", "cores"}, {"_messages", "messages"},
		{"_entries", "entries"}, {"_percent", "%"},
	}
}

// label returns a readable name of a figure with its unit.
func label(name string) string {
	special := map[string]string{
		"allocs": "allocations per message", "cpu_us": "CPU per message, µs", "peak_mib": "peak memory, MiB", "seconds": "measured time, s",
		"samples_s": "samples/s", "events_s": "events/s", "deliveries_s": "deliveries/s", "commands_s": "commands/s",
		"transactions_s": "transactions/s", "entries_s": "entries/s",
	}
	if text, ok := special[name]; ok {
		return text
	}
	for _, u := range units() {
		if what, ok := strings.CutSuffix(name, u[0]); ok {
			name = what + ", " + u[1]
			break
		}
	}
	return strings.NewReplacer("p999", "p99.9", "_", " ", "e2e", "end-to-end").Replace(name)
}

// Names are those of the figures of all sides, without the losses.
func (p *Part) Names() []string {
	var all []string
	for _, s := range p.Sides {
		all = append(all, s.Names()...)
	}
	slices.Sort(all)
	return slices.DeleteFunc(slices.Compact(all), func(name string) bool { return slices.Contains(Losses(), name) })
}

// cell formats a figure of a side: median, least and greatest of the rounds.
func cell(s *Side, figure string) string {
	if !s.Has(figure) {
		return "–"
	}
	text, all := number(s.Summary(figure)), s.Figure(figure)
	if len(all) > 1 {
		text += " (" + number(measure.Least(all)) + "–" + number(measure.Most(all)) + ")"
	}
	return text
}

// Losses are the figures of what went wrong with messages.
func Losses() []string {
	return []string{"lost", "lost_at_broker", "duplicated", "stored_again", "failed", "unexpected", "unsent", "out_of_order"}
}

// losses returns the losses of a part and their labels, in the order of Losses. Of a part without a
// workload it returns only those that were counted. No driver counts the order.
func losses(p *Part) (all [][2]string) {
	labels := []string{
		"acknowledged, but not received", "acknowledged, but not stored at the broker", "received more than once",
		"stored more than once", "not acknowledged", "received from an aborted transaction",
		"due, but not sent: the rate is too high", "received out of order",
	}
	for i, name := range Losses() {
		if p.Workload.Topics > 0 && name != "out_of_order" || slices.ContainsFunc(p.Sides, func(s *Side) bool { return s.Has(name) }) {
			all = append(all, [2]string{name, labels[i]})
		}
	}
	return all
}

// sum formats the sum of a loss over all rounds, or says why it was not counted.
func sum(s *Side, loss string) string {
	switch {
	case s.Has(loss):
		total := 0.0
		for _, v := range s.Figure(loss) {
			total += v
		}
		return number(total)
	case loss == "lost" || loss == "duplicated" || loss == "unexpected":
		return "not counted: no consumers"
	case s.Summary("publish_msg_s") == 0:
		return "not counted: nothing published"
	}
	return "not counted: no admin URL, or a topic has moved"
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
