package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"

	"github.com/aviaryhq/aviary/test/bench/load"
	"github.com/aviaryhq/aviary/test/bench/results"
	"github.com/aviaryhq/aviary/test/bench/workload"
)

// turn runs one side once. Then it asks the brokers how many messages they have stored.
func (r *runner) turn(
	ctx context.Context, c *cluster, p *workload.Part, side workload.Side, round int, stored []string,
) (*load.Result, error) {
	w := p.Workload
	t := load.Turn{Workload: w, Side: side, RemoteURL: c.remote, Messages: p.Messages, Topics: stored}
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
		defer func() { c.remove(ctx, t.Topics, w.PartitionsPerTopic > 0) }()
		if err != nil {
			return nil, err
		}
	}
	c.gc.begin()
	observe := c.observer(ctx, r.scenario.Observe)
	result, err := load.Run(ctx, t, r.args, c.environ, func(s load.Sample) {
		observe(s)
		c.gc.sample(s)
		fmt.Fprintf(os.Stderr, "%s %s round %d: %s\n", p.Name, side.Name, round+1, progress(s))
	})
	if err != nil {
		return nil, err
	}
	seriesFigures(result, r.scenario.Observe)
	if stored == nil && c.admin != nil && !side.Idle {
		err = c.count(ctx, t.Topics, w.PartitionsPerTopic, result.Figures)
	}
	return result, errors.Join(err, c.gc.results(result))
}

// preload publishes the messages that the turns of a part receive.
func (r *runner) preload(ctx context.Context, c *cluster, p *workload.Part) ([]string, error) {
	w := p.Workload
	topics, err := c.topics(ctx, p.Name, w, nil)
	if err != nil {
		return topics, err
	}
	w.ProducerRate = 0
	w.TestDurationMinutes = preloadMinutes
	t := load.Turn{Workload: w, Side: workload.Side{Driver: "library"}, Topics: topics, Messages: p.Preload * w.Topics}
	result, err := load.Run(ctx, t, r.args, c.environ, func(load.Sample) {})
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
	var next *load.Result
	losses := map[string]float64{} // of all rates
	low, high := 0, 0              // the highest good rate, and the lowest that is not good
	ladder, refine := p.Ladder, p.Refine
	for high == 0 && len(ladder) > 0 || high > 0 && refine > 0 {
		rate := (low + high) / 2
		if high == 0 {
			rate, ladder = ladder[0], ladder[1:]
		} else {
			refine--
		}
		step := *p
		step.Workload.ProducerRate = rate
		step.Name = fmt.Sprintf("%s_%d", p.Name, rate)
		one, err := r.turn(ctx, c, &step, side, round, nil)
		if err != nil {
			return nil, err
		}
		f := one.Figures
		for _, name := range results.Losses() {
			if n, counted := f[name]; counted {
				losses[name] += n
			}
		}
		if p.MaxP99Ms > 0 && f["publish_p99_ms"] > p.MaxP99Ms || f["publish_msg_s"] < reached*float64(rate) {
			high, next = rate, one
		} else {
			low, best = rate, one
			f["ladder_msg_s"], f["ladder_mb_s"] = f["publish_msg_s"], f["publish_mb_s"]
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

// progress formats a sample as one line.
func progress(s load.Sample) string {
	text := fmt.Sprintf("%4.0f s %-7s", s.At, s.Phase)
	for _, name := range []string{
		"publish_msg_s", "consume_msg_s", "publish_p99_ms", "e2e_p99_ms", "backlog_messages", "cpu_cores", "memory_mib",
	} {
		if v, ok := s.Values[name]; ok {
			text += fmt.Sprintf("  %s %.4g", name, v)
		}
	}
	return text
}
