package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/aviaryhq/aviary/test/bench/measure"
	"github.com/aviaryhq/aviary/test/bench/pieces"
	"github.com/aviaryhq/aviary/test/bench/servers"
)

// pair runs a Sonic in each of two zones, with a topic of their own.
func (b *sonicBench) pair(ctx context.Context) (a, other *endpoint, stop func() error, err error) {
	z := zone{name: "a", redis: b.redisA, pulsar: b.pulsarA, zones: []string{"a", "b"}, topic: b.replicated("sonic"), policy: "lww"}
	if a, err = b.startSonic(ctx, z); err != nil {
		return nil, nil, nil, err
	}
	z.name, z.redis, z.pulsar = "b", b.redisB, b.pulsarB
	if other, err = b.startSonic(ctx, z); err != nil {
		return nil, nil, nil, errors.Join(err, a.Stop())
	}
	return a, other, func() error { return errors.Join(b.end(a), b.end(other)) }, nil
}

// replicated names a topic that the clusters replicate.
func (b *sonicBench) replicated(part string) string {
	return "persistent://" + b.namespace + "/bench-" + part + "-" + strings.ToLower(rand.Text())
}

// lag compares how long a write takes from its reply in zone A until zone B's Redis has it, at
// 1,000 writes a second, with how long a message takes from its sending in cluster A until a
// consumer in cluster B has it, at the same rate.
func (b *sonicBench) lag(ctx context.Context) (err error) {
	a, other, stop, err := b.pair(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	const perSecond = 1000
	seconds := 10.0
	if b.Quick {
		seconds = 3
	}
	// Where a write's time goes: means over messages, by the services' own metrics.
	stages := []*stage{
		{name: "a message is under way to the broker", of: a, metric: "sonic_publish_duration_seconds"},
		{name: "age of its first write when it is stored", of: a, metric: "sonic_published_age_seconds"},
		{name: "age of its last write when zone B has applied it", of: other, metric: "sonic_apply_delay_seconds"},
	}
	var ours, raw []measure.Outcome
	for round := range b.Rounds + 1 {
		var o, r measure.Outcome
		for _, side := range [2]int{round % 2, 1 - round%2} {
			if side == 0 {
				if err := noteStages(ctx, stages, -1); err != nil {
					return err
				}
				o, err = measure.Run(ctx, measure.Piece{Kind: "redis-lag", URL: a.address, Far: b.redisB, Payload: redisValue, Rate: perSecond, Seconds: seconds})
				err = errors.Join(err, noteStages(ctx, stages, 1))
			} else {
				topic := b.replicated("raw")
				r, err = measure.Run(ctx, measure.Piece{Kind: "raw-lag", URL: b.pulsarA, Far: b.pulsarB, Topic: topic, Payload: 2 * redisValue, Rate: perSecond, Seconds: seconds})
			}
			if err != nil {
				return err
			}
		}
		if round == 0 { // warms up
			for _, s := range stages {
				s.sum, s.count = 0, 0
			}
			continue
		}
		ours, raw = append(ours, o), append(raw, r)
	}
	p50, p99 := func(o measure.Outcome) float64 { return o.P50 }, func(o measure.Outcome) float64 { return o.P99 }
	var more50, more99 []float64
	for i := range ours {
		more50, more99 = append(more50, ours[i].P50-raw[i].P50), append(more99, ours[i].P99-raw[i].P99)
	}
	b.Row("\nlag at %d writes/s\tp50 ms\tp99 ms\tmore than Pulsar p50 ms (median, min-max)\tp99 ms", perSecond)
	b.Row("Pulsar, sent in A, received in B\t%.2f\t%.2f", measure.Median(measure.Each(raw, p50)), measure.Median(measure.Each(raw, p99)))
	b.Row("Sonic, reply in A, in B's Redis\t%.2f\t%.2f\t%.2f (%.2f-%.2f)\t%.2f (%.2f-%.2f)", measure.Median(measure.Each(ours, p50)), measure.Median(measure.Each(ours, p99)),
		measure.Median(more50), measure.Least(more50), measure.Most(more50), measure.Median(more99), measure.Least(more99), measure.Most(more99))
	for _, s := range stages {
		b.Row("- %s\t%.2f (mean)", s.name, 1000*s.sum/max(s.count, 1))
	}
	b.Figure("lag_p50_ms", measure.Median(measure.Each(ours, p50)))
	b.Figure("lag_p99_ms", measure.Median(measure.Each(ours, p99)))
	b.Figure("pulsar_lag_p50_ms", measure.Median(measure.Each(raw, p50)))
	b.Figure("pulsar_lag_p99_ms", measure.Median(measure.Each(raw, p99)))
	b.AtMost("lag_p50_more_than_pulsar_ms", measure.Median(more50), 1.5)
	b.AtMost("lag_p99_more_than_pulsar_ms", measure.Median(more99), 5)
	return nil
}

// stage is a part of a write's way that a service measures itself.
type stage struct {
	name       string
	of         *endpoint
	metric     string // a histogram in seconds
	sum, count float64
}

// noteStages adds what the metrics show now, times sign: -1 before what is measured, 1 behind it.
func noteStages(ctx context.Context, stages []*stage, sign float64) error {
	for _, s := range stages {
		families, err := servers.Metrics(ctx, s.of.Admin+"/metrics")
		if err != nil {
			return err
		}
		family, found := families[s.metric]
		if !found && sign > 0 { // before the first message some are not there
			return fmt.Errorf("no metric %s", s.metric)
		}
		for _, m := range family.GetMetric() {
			s.sum += sign * m.GetHistogram().GetSampleSum()
			s.count += sign * float64(m.GetHistogram().GetSampleCount())
		}
	}
	return nil
}

// sustained offers writes at a fixed rate in zone A, over 50 connections, and counts those that
// zone B's Redis has, per second from the first one sent to the last one there. Then it compares
// the two Redises.
func (b *sonicBench) sustained(ctx context.Context) (err error) {
	a, other, stop, err := b.pair(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	seconds := 20.0
	if b.Quick {
		seconds = 4
	}
	b.Row("\nreplicated writes\toffered/s\treplicated/s\tlag p50 ms\tp99 ms\tuntil all were there, s\tCPU s A\tCPU s B")
	for i, offered := range []int{30_000, 30_000, 70_000, 100_000} {
		before, err := cpuOf(a, other)
		if err != nil {
			return err
		}
		o, err := measure.Run(ctx, measure.Piece{
			Kind: "redis-stream", URL: a.address, Far: b.redisB, Payload: redisValue, Rate: offered, Seconds: seconds, Callers: redisClients,
		})
		if err != nil {
			return err
		}
		after, err := cpuOf(a, other)
		if err != nil {
			return err
		}
		if i == 0 {
			continue // warms up: a cold broker delays its first messages by up to a second
		}
		replicated := float64(o.Messages) / (o.Seconds + o.Rest)
		b.Row("from A to B\t%d\t%.0f\t%.1f\t%.1f\t%.2f\t%.1f\t%.1f", offered, replicated, o.P50, o.P99, o.Rest, after[0]-before[0], after[1]-before[1])
		if i == 1 {
			b.AtLeast("replicated_writes_per_s", replicated, 25_000)
			b.AtMost("sustained_lag_p99_ms", o.P99, 1000)
		} else {
			b.Figure(fmt.Sprintf("replicated_writes_per_s_offered_%d", offered), replicated)
			b.Figure(fmt.Sprintf("offered_%d_lag_p99_ms", offered), o.P99)
		}
		different, err := b.different(ctx)
		if err != nil {
			return err
		}
		if different > 0 {
			return fmt.Errorf("%d of %d keys differ between the zones", different, pieces.RedisKeys)
		}
	}
	return nil
}

func cpuOf(all ...*endpoint) (used []float64, err error) {
	for _, e := range all {
		v, e := e.CPU()
		used, err = append(used, v), errors.Join(err, e)
	}
	return used, err
}

// different counts the keys of redis-stream that the two zones' Redises do not have alike.
func (b *sonicBench) different(ctx context.Context) (int, error) {
	here, there := pieces.Client(b.redisA), pieces.Client(b.redisB)
	defer here.Close()
	defer there.Close()
	n, seen := 0, 0
	for first := 0; first < pieces.RedisKeys; first += 1000 {
		keys := make([]string, 1000)
		for i := range keys {
			keys[i] = pieces.StreamKey(first + i)
		}
		one, err := here.MGet(ctx, keys...).Result()
		if err != nil {
			return 0, err
		}
		two, err := there.MGet(ctx, keys...).Result()
		if err != nil {
			return 0, err
		}
		for i := range one {
			if one[i] != nil {
				seen++
			}
			if !slices.Equal(one[i:i+1], two[i:i+1]) {
				n++
			}
		}
	}
	if seen == 0 {
		return 0, errors.New("no key was written")
	}
	return n, nil
}
