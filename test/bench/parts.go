package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/aviaryhq/aviary/test/bench/load"
	"github.com/aviaryhq/aviary/test/bench/measure"
	"github.com/aviaryhq/aviary/test/bench/results"
	"github.com/aviaryhq/aviary/test/bench/workload"
)

// runner runs the parts of a scenario.
type runner struct {
	*measure.Report
	scenario *workload.Scenario
	results  *results.Results
	// given is the cluster of -pulsar.url; nil: the runner starts brokers.
	given    *cluster
	args     []string // of this program; child processes read the cluster from them
	clusters map[string]*cluster
}

func newRunner(r *measure.Report, s *workload.Scenario) *runner {
	return &runner{Report: r, scenario: s, results: &results.Results{Scenario: s.Name, Question: s.Question, Began: time.Now()}, clusters: map[string]*cluster{}}
}

// close stops the brokers that the scenario has started.
func (r *runner) close() {
	for _, c := range r.clusters {
		c.stop()
	}
}

// run runs the parts that -only selects.
func (r *runner) run(ctx context.Context) error {
	var losses []error
	for i := range r.scenario.Parts {
		p := &r.scenario.Parts[i]
		if !r.Wants(p.Name) {
			continue
		}
		if r.given != nil && slices.ContainsFunc(p.Sides, func(s workload.Side) bool { return s.Broker != "" }) {
			r.Row("%s\tnot measured: it compares settings of brokers; run it without -pulsar.url", p.Name)
			continue
		}
		result := &results.Part{Name: p.Name, Workload: p.Workload}
		for _, side := range p.Sides {
			result.Sides = append(result.Sides, &results.Side{Name: side.Name})
		}
		r.results.Parts = append(r.results.Parts, result)
		if err := r.part(ctx, p, result); err != nil {
			return fmt.Errorf("%s: %w", p.Name, err)
		}
		if err := result.Merge(); err != nil {
			return err
		}
		losses = append(losses, lost(result))
		r.row(result)
		r.judge(p, result)
	}
	return errors.Join(losses...)
}

// part runs the sides of a part alternately.
func (r *runner) part(ctx context.Context, p *workload.Part, result *results.Part) error {
	rounds := max(r.Rounds, p.Rounds)
	if p.MaxRounds > 0 {
		rounds = min(rounds, p.MaxRounds)
	}
	stored := map[string][]string{} // topics with the messages of preload, by broker
	defer func() {
		for broker, topics := range stored {
			if c, err := r.cluster(ctx, broker); err == nil {
				c.remove(context.WithoutCancel(ctx), topics, p.Workload.PartitionsPerTopic > 0)
			}
		}
	}()
	var sides []func(int) error
	for i, side := range p.Sides {
		sides = append(sides, func(round int) error {
			c, err := r.cluster(ctx, side.Broker)
			if err != nil {
				return err
			}
			if p.Preload > 0 && stored[side.Broker] == nil {
				if stored[side.Broker], err = r.preload(ctx, c, p); err != nil {
					return fmt.Errorf("preload: %w", err)
				}
			}
			var one *load.Result
			switch {
			case side.Driver == fioDriver:
				one, err = fio(ctx, c, p, side)
			case len(p.Ladder) > 0:
				one, err = r.climb(ctx, c, p, side, round)
			default:
				one, err = r.turn(ctx, c, p, side, round, stored[side.Broker])
			}
			if err != nil {
				return fmt.Errorf("%s: %w", side.Name, err)
			}
			result.Sides[i].Turns = append(result.Sides[i].Turns, one)
			return nil
		})
	}
	return measure.InTurn(rounds, sides...)
}

// turn runs one side once. Then it asks the brokers how many messages they have stored.
func (r *runner) turn(ctx context.Context, c *cluster, p *workload.Part, side workload.Side, round int, stored []string) (*load.Result, error) {
	w := p.Workload
	t := load.Turn{Workload: w, Side: side, Messages: p.Messages, Topics: stored}
	for i := range w.SubscriptionsPerTopic {
		t.Subscriptions = append(t.Subscriptions, fmt.Sprintf("bench-%d-%s-%d", i, side.Name, round))
	}
	if r.Profile != "" && round == 0 {
		t.Profile = filepath.Join(r.Profile, plainName(p.Name+"-"+side.Name))
	}
	if stored != nil {
		t.Stored = p.Preload
	} else {
		var err error
		t.Topics, err = c.topics(ctx, p.Name, w, t.Subscriptions)
		defer func() { c.remove(context.WithoutCancel(ctx), t.Topics, w.PartitionsPerTopic > 0) }()
		if err != nil {
			return nil, err
		}
	}
	c.setAddress(&t)
	observed, gc := c.observer(r.scenario.Observe), c.gc.follow()
	result, err := load.Run(ctx, t, r.args, func(s load.Sample) {
		observed(ctx, s.Values)
		gc.sample(s)
		fmt.Fprintf(os.Stderr, "%s %s round %d: %s\n", p.Name, side.Name, round+1, progress(s))
	})
	if err := errors.Join(err, gc.results(result)); err != nil {
		return nil, err
	}
	seriesFigures(result, r.scenario.Observe)
	if stored == nil && c.admin != nil && !side.Idle {
		n, err := c.stored(ctx, t.Topics, w.PartitionsPerTopic)
		if err != nil {
			return nil, err
		}
		entries, complete, err := c.entries(ctx, t.Topics, w.PartitionsPerTopic)
		if err != nil {
			return nil, err
		}
		if !complete {
			return result, nil // the page says that nothing was counted
		}
		acknowledged := result.Figures["acknowledged"]
		result.Figures["lost_at_broker"] = max(acknowledged-float64(n), 0)
		result.Figures["stored_again"] = max(float64(n)-acknowledged-result.Figures["failed"]-result.Figures["aborted_messages"], 0)
		result.Figures["entries_s"] = float64(entries) / max(acknowledged, 1) * result.Figures["publish_msg_s"]
	}
	return result, nil
}

// preload publishes the messages that the turns of a part receive.
func (r *runner) preload(ctx context.Context, c *cluster, p *workload.Part) ([]string, error) {
	w := p.Workload
	topics, err := c.topics(ctx, p.Name, w, nil)
	if err != nil {
		return topics, err
	}
	w.ProducerRate = 0
	t := load.Turn{Workload: w, Side: workload.Side{Name: "preload", Driver: "library"}, Topics: topics, Messages: p.Preload * w.Topics}
	t.Workload.TestDurationMinutes = preloadMinutes
	c.setAddress(&t)
	result, err := load.Run(ctx, t, r.args, func(load.Sample) {})
	if err != nil {
		return topics, err
	}
	if got := int(result.Figures["acknowledged"]); got != t.Messages {
		return topics, fmt.Errorf("%d of %d messages were acknowledged", got, t.Messages)
	}
	return topics, nil
}

// preloadMinutes is the longest time that preload may take.
const preloadMinutes = 10

// climb runs the side at increasing rates until the p99 is too high or the rate is not reached.
// Then it halves the distance to the last good rate, Refine times. It returns the result of the
// highest good rate.
func (r *runner) climb(ctx context.Context, c *cluster, p *workload.Part, side workload.Side, round int) (*load.Result, error) {
	best := &load.Result{Figures: map[string]float64{"ladder_msg_s": 0, "ladder_mb_s": 0}}
	losses := map[string]float64{} // of all rates
	low, next := 0, &load.Result{Figures: map[string]float64{}}
	try := func(rate int) (good bool, err error) {
		step := *p
		step.Workload.ProducerRate = rate
		step.Name = fmt.Sprintf("%s_%d", p.Name, rate)
		one, err := r.turn(ctx, c, &step, side, round, nil)
		if err != nil {
			return false, err
		}
		f := one.Figures
		for _, name := range results.Losses() {
			losses[name] += f[name]
		}
		if p.MaxP99Ms > 0 && f["publish_p99_ms"] > p.MaxP99Ms || f["publish_msg_s"] < reached*float64(rate) {
			next = one
			return false, nil
		}
		low, best = rate, one
		f["ladder_msg_s"], f["ladder_mb_s"] = f["publish_msg_s"], f["publish_mb_s"]
		return true, nil
	}
	high := 0 // the lowest rate that is not good
	for _, rate := range p.Ladder {
		good, err := try(rate)
		if err != nil {
			return nil, err
		}
		if !good {
			high = rate
			break
		}
	}
	for n := 0; n < p.Refine && high > 0; n++ {
		middle := (low + high) / 2
		good, err := try(middle)
		if err != nil {
			return nil, err
		}
		if !good {
			high = middle
		}
	}
	maps.Copy(best.Figures, losses)
	if high > 0 {
		best.Figures["next_msg_s"], best.Figures["next_p99_ms"] = float64(high), next.Figures["publish_p99_ms"]
	}
	return best, nil
}

// reached is the fraction of a rate from which on the rate counts as reached.
const reached = 0.97

// cluster returns the cluster of a side. It starts the broker on the first call.
func (r *runner) cluster(ctx context.Context, name string) (*cluster, error) {
	if r.given != nil {
		return r.given, nil
	}
	if c := r.clusters[name]; c != nil {
		return c, nil
	}
	c, err := start(ctx, name, r.scenario.Brokers[name])
	if err == nil {
		r.clusters[name] = c
	}
	return c, err
}

// judge adds the part's figures to the report and compares them with its targets.
func (r *runner) judge(p *workload.Part, result *results.Part) {
	for _, side := range result.Sides {
		for _, name := range side.Names() {
			r.Figure(p.Name+"_"+side.Name+"_"+name, side.Median(name))
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
		if slices.ContainsFunc(values, math.IsNaN) {
			values = []float64{math.NaN()} // a figure that was not measured meets no target
		}
		if t.AtLeast != nil {
			r.AtLeast(t.Name, measure.Median(values), *t.AtLeast)
		} else {
			r.AtMost(t.Name, measure.Median(values), *t.AtMost)
		}
		r.Row("\t%s: %s %.3f (%.3f-%.3f)", t.Name, t.Figure, measure.Median(values), measure.Least(values), measure.Most(values))
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

// defaultColumns are the figures in the table of a scenario without columns.
func defaultColumns() []string {
	return []string{
		"publish_msg_s", "consume_msg_s", "publish_p50_ms", "publish_p99_ms", "publish_max_ms", "pause_max_ms", "e2e_p50_ms", "e2e_p99_ms", "cpu_us",
		"peak_mib",
	}
}

// row adds the part's lines to the table.
func (r *runner) row(p *results.Part) {
	columns := r.scenario.Columns
	if len(columns) == 0 {
		columns = defaultColumns()
	}
	r.Row("%s\tside\t%s", p.Name, strings.Join(columns, "\t"))
	for _, s := range p.Sides {
		cells := []string{"", s.Name}
		for _, name := range columns {
			cell := "-"
			if s.Has(name) {
				cell = fmt.Sprintf("%.4g", s.Median(name))
			}
			cells = append(cells, cell)
		}
		r.Row("%s", strings.Join(cells, "\t"))
	}
}

// progress formats a sample as one line.
func progress(s load.Sample) string {
	text := fmt.Sprintf("%4.0f s %-7s", s.At, s.Phase)
	for _, name := range []string{"publish_msg_s", "consume_msg_s", "publish_p99_ms", "e2e_p99_ms", "backlog_messages", "cpu_cores", "memory_mib"} {
		if v, ok := s.Values[name]; ok {
			text += fmt.Sprintf("  %s %.4g", name, v)
		}
	}
	return text
}

// write writes the results into the folder: all figures as JSON, and the page.
func (r *runner) write(dir string) error {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	r.results.Command, r.results.Machine, r.results.Targets = "go run ./test/bench "+strings.Join(os.Args[1:], " "), machine(), r.Result().Targets
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
