package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/aviaryhq/aviary/test/bench/measure"
	"github.com/aviaryhq/aviary/test/bench/results"
	"github.com/aviaryhq/aviary/test/bench/workload"
)

// judge adds the part's figures to the report and compares them with its targets.
func (r *runner) judge(p *workload.Part, result *results.Part) {
	for _, side := range result.Sides {
		for _, name := range side.Names() {
			r.Figure(p.Name+"_"+side.Name+"_"+name, side.Summary(name))
		}
	}
	for _, t := range p.Targets {
		values := r.side(result, t.Of).Figure(t.Figure)
		if t.Over != "" {
			values = measure.Ratios(values, r.side(result, t.Over).Figure(cmp.Or(t.OverFigure, t.Figure)))
		}
		if t.Minus != "" {
			values = measure.Differences(values, r.side(result, t.Minus).Figure(t.Figure))
		}
		if len(values) == 0 {
			continue // -only excludes the other part
		}
		if results.Worst(t.Figure) && t.Over == "" && t.Minus == "" {
			values = []float64{measure.Most(values)}
		}
		if slices.ContainsFunc(values, math.IsNaN) {
			values = []float64{math.NaN()} // a figure that was not measured meets no target
		}
		median := measure.Median(values)
		switch {
		case t.AtLeast != nil:
			r.AtLeast(t.Name, median, *t.AtLeast)
		case t.AtMost != nil:
			r.AtMost(t.Name, median, *t.AtMost)
		default:
			r.Figure(t.Name, median)
		}
		r.Row("\t%s: %s %.3f (%.3f-%.3f)", t.Name, t.Figure, median, measure.Least(values), measure.Most(values))
	}
}

// side finds a side of this part by its name, or a side of an earlier part by part/side.
func (r *runner) side(part *results.Part, name string) *results.Side {
	if before, of, ok := strings.Cut(name, "/"); ok {
		i := slices.IndexFunc(r.results.Parts, func(p *results.Part) bool { return p.Name == before })
		if i < 0 {
			return &results.Side{} // the part was not run
		}
		part, name = r.results.Parts[i], of
	}
	return part.Sides[slices.IndexFunc(part.Sides, func(s *results.Side) bool { return s.Name == name })]
}

// errLost marks an error after which the results are still complete and are printed.
var errLost = errors.New("messages were lost")

// lost returns an error if a part lost messages, received aborted ones, or failed to publish some.
func lost(p *results.Part) error {
	var errs []error
	for _, s := range p.Sides {
		for _, figure := range []string{"lost", "lost_at_broker", "unexpected", "failed"} {
			if n := s.Most(figure); n > 0 {
				errs = append(errs, fmt.Errorf("%w: %s: %s: %s: %.0f", errLost, p.Name, s.Name, figure, n))
			}
		}
	}
	return errors.Join(errs...)
}

// row adds the part's lines to the table.
func (r *runner) row(p *results.Part) {
	columns := r.scenario.Columns
	if len(columns) == 0 {
		columns = []string{
			"publish_msg_s", "consume_msg_s", "publish_p50_ms", "publish_p99_ms", "publish_max_ms", "pause_max_ms", "e2e_p50_ms",
			"e2e_p99_ms", "cpu_us", "peak_mib",
		}
	}
	r.Row("%s\tside\t%s", p.Name, strings.Join(columns, "\t"))
	for _, s := range p.Sides {
		cells := []string{"", s.Name}
		for _, name := range columns {
			cell := "-"
			if s.Has(name) {
				cell = fmt.Sprintf("%.4g", s.Summary(name))
			}
			cells = append(cells, cell)
		}
		r.Row("%s", strings.Join(cells, "\t"))
	}
}

// end writes the results, also those of the parts before one that failed. It returns err and the
// losses.
func (r *runner) end(err error, dir string) error {
	return errors.Join(append(r.losses, err, r.write(dir))...)
}

// write writes the results into the folder: all figures as JSON, and the page.
func (r *runner) write(dir string) error {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	r.results.Command, r.results.Targets = "go run ./test/bench "+strings.Join(os.Args[1:], " "), r.Result().Targets
	r.results.Machine = fmt.Sprintf("%s/%s, %d cores, %s", runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version())
	text, err := json.MarshalIndent(r.results, "", " ")
	if err != nil {
		return err
	}
	base := filepath.Join(dir, plainName(r.scenario.Name))
	if err := os.WriteFile(base+".json", text, 0o600); err != nil {
		return err
	}
	var page bytes.Buffer
	if err := r.results.Page(&page); err != nil {
		return err
	}
	if err := os.WriteFile(base+".html", page.Bytes(), 0o600); err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "bench: results in %s.json, page in %s.html\n", base, base)
	return nil
}
