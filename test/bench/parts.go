package main

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"os"
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
	losses   []error
	dir      string // of service
}

func newRunner(r *measure.Report, s *workload.Scenario) *runner {
	began := &results.Results{Scenario: s.Name, Question: s.Question, Began: time.Now()}
	return &runner{Report: r, scenario: s, results: began, clusters: map[string]*cluster{}}
}

// close stops the brokers that the scenario has started, and removes its folder.
func (r *runner) close() {
	if r.dir != "" {
		_ = os.RemoveAll(r.dir)
	}
	for _, c := range r.clusters {
		c.stop()
	}
}

// run runs the parts that -only selects.
func (r *runner) run(ctx context.Context) error {
	for i := range r.scenario.Parts {
		p := &r.scenario.Parts[i]
		if !r.Wants(p.Name) {
			continue
		}
		if r.given != nil && slices.ContainsFunc(p.Sides, func(s workload.Side) bool { return s.Broker != "" }) {
			r.Row("%s\tnot measured: it compares settings of brokers; run it without -pulsar.url", p.Name)
			continue
		}
		if err := r.part(ctx, p); err != nil {
			return fmt.Errorf("%s: %w", p.Name, err)
		}
	}
	return nil
}

// part runs the sides of a part of a scenario file.
func (r *runner) part(ctx context.Context, p *workload.Part) error {
	stored := map[*cluster][]string{} // topics with the messages of preload
	defer func() {
		for c, topics := range stored {
			c.remove(ctx, topics, p.Workload.PartitionsPerTopic > 0)
		}
	}()
	var sides []side
	for _, one := range p.Sides {
		sides = append(sides, side{one.Name, func(round int) (*load.Result, error) {
			c, err := r.cluster(ctx, one.Broker)
			if err != nil {
				return nil, err
			}
			if p.Preload > 0 && stored[c] == nil {
				if stored[c], err = r.preload(ctx, c, p); err != nil {
					return nil, fmt.Errorf("preload: %w", err)
				}
			}
			switch {
			case one.Driver == fioDriver:
				return fio(ctx, c, p, one)
			case len(p.Ladder) > 0:
				return r.climb(ctx, c, p, one, round)
			default:
				return r.turn(ctx, c, p, one, round, stored[c])
			}
		}})
	}
	return r.compare(p, sides...)
}

// side is one of the things that a part compares.
type side struct {
	name string
	run  func(round int) (*load.Result, error)
}

// warmUp is the round of turns that are not part of the results.
const warmUp = -1

// compare runs the sides alternately, adds their figures to the results, and judges them by the
// part's targets.
func (r *runner) compare(p *workload.Part, sides ...side) error {
	for _, t := range p.Targets {
		for _, name := range []string{t.Of, t.Over, t.Minus} {
			if name != "" && !strings.Contains(name, "/") && !slices.ContainsFunc(sides, func(s side) bool { return s.name == name }) {
				return fmt.Errorf("target %s: %q is not a side", t.Name, name)
			}
		}
	}
	result, warm := &results.Part{Name: p.Name}, &results.Part{Name: p.Name + ", warm-up"}
	if len(p.Sides) > 0 { // else the workload is that of the plain client only
		result.Workload = p.Workload
	}
	for _, s := range sides {
		result.Sides = append(result.Sides, &results.Side{Name: s.name})
		warm.Sides = append(warm.Sides, &results.Side{Name: s.name})
	}
	r.results.Parts = append(r.results.Parts, result)
	rounds := min(max(r.Rounds, p.Rounds), cmp.Or(p.MaxRounds, math.MaxInt))
	for round := -p.WarmUpRounds; round < rounds; round++ {
		for i := range sides { // another side is first in each round
			k := (i + p.WarmUpRounds + round) % len(sides)
			one, err := sides[k].run(max(round, warmUp))
			if err != nil {
				return fmt.Errorf("%s: %w", sides[k].name, err)
			}
			into := result
			if round < 0 {
				into = warm
			}
			into.Sides[k].Turns = append(into.Sides[k].Turns, one)
		}
	}
	if err := result.Merge(); err != nil {
		return err
	}
	r.losses = append(r.losses, lost(warm), lost(result))
	r.row(result)
	r.judge(p, result)
	return nil
}

// cluster returns the cluster of a side. It starts the broker on the first call.
func (r *runner) cluster(ctx context.Context, name string) (*cluster, error) {
	if r.given != nil {
		return r.given, nil
	}
	if c := r.clusters[name]; c != nil {
		return c, nil
	}
	broker := r.scenario.Brokers[name]
	c, err := start(ctx, name, broker, broker.AckDelayMs > 0)
	if err == nil {
		r.clusters[name] = c
	}
	return c, err
}
