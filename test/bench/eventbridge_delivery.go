package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/aviaryhq/aviary/test/bench/measure"
	"github.com/aviaryhq/aviary/test/bench/servers"
)

// delivering runs f with a bus of four partitions that has one subscriber of the order, a webhook
// of this process.
func (b *eventbridgeBench) delivering(ctx context.Context, name, order string, concurrency int, f func(s *bridge, events string, sink *eventSink) error) error {
	return b.withBus(ctx, name+"-"+order, func(s *bridge, events string, sink *eventSink) error {
		if err := s.subscriber(ctx, "b", "hook", order, sink.url, concurrency); err != nil {
			return err
		}
		return f(s, events, sink)
	})
}

// withBus runs f with all three roles, a bus of four partitions in a namespace of its own, and a
// webhook of this process. events is where events are posted.
func (b *eventbridgeBench) withBus(ctx context.Context, namespace string, f func(s *bridge, events string, sink *eventSink) error) (err error) {
	ns, err := b.namespace(ctx, namespace)
	if err != nil {
		return err
	}
	s, err := b.start(ctx, ns, "preprocessor,engine,processor")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	sink, err := newEventSink(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, sink.close()) }()
	if err := s.bus(ctx, "b", 4); err != nil {
		return err
	}
	return f(s, s.api+"/v1/buses/b/events", sink)
}

// delivery measures from the first event sent until the last one is delivered, by a webhook that
// answers at once. Events come in batches, faster than they are delivered.
func (b *eventbridgeBench) delivery(ctx context.Context) error {
	b.Row("\nfrom HTTP to webhook\tdeliveries/s (median, min-max)\tdeliveries/CPU s\tevents taken/s\tpeak MiB\tlost\tcopies")
	count := 60_000
	if b.Quick {
		count = 12_000
	}
	for _, order := range []string{"none", "group"} {
		if err := b.delivering(ctx, "delivery", order, 64, func(s *bridge, events string, sink *eventSink) error {
			var rates, perCPU, taken []float64
			lost, copies := 0, 0
			next := 0
			for round := range b.Rounds + 1 { // the first one warms up
				load := measure.Piece{Kind: "event-load", URL: events, Callers: 4, Events: ingestBatch, First: next, Count: next + count, Seconds: 60}
				next += count
				began := time.Now()
				var t servers.Turn
				var came int
				var last time.Time
				if err := b.profiled(ctx, s, "delivery-"+order, round == 1, func() (err error) {
					t, err = s.Load(ctx, load, func() { came, last = sink.await(ctx, count) })
					return err
				}); err != nil {
					return err
				}
				_, again := sink.reset()
				lost, copies = lost+t.Load.Messages-came, copies+again
				if round > 0 {
					rates = append(rates, float64(came)/last.Sub(began).Seconds())
					perCPU = append(perCPU, float64(came)/t.CPU)
					taken = append(taken, t.Load.Rate())
				}
			}
			peak, err := s.Peak()
			if err != nil {
				return err
			}
			b.Row("%s\t%.0f (%.0f-%.0f)\t%.0f\t%.0f\t%.0f\t%d\t%d", order, measure.Median(rates), measure.Least(rates), measure.Most(rates), measure.Median(perCPU), measure.Median(taken), peak, lost, copies)
			if name := "delivery_" + order; order == "none" {
				b.AtLeast(name+"_s", measure.Median(rates), 6000)
			} else {
				b.Figure(name+"_s", measure.Median(rates))
			}
			b.Figure("delivery_"+order+"_per_cpu_s", measure.Median(perCPU))
			b.AtMost("delivery_"+order+"_lost", float64(lost), 0)
			b.Figure("delivery_"+order+"_copies", float64(copies))
			b.Figure("delivery_"+order+"_peak_mib", peak)
			return nil
		}); err != nil {
			return fmt.Errorf("%s: %w", order, err)
		}
	}
	return nil
}

// latencyWarm is how many turns warm up: a broker's first minute is not like the others, for it is
// being compiled.
const latencyWarm = 6

// latency measures, at 1,000 events a second that are posted one by one, from just before an event
// is sent until the webhook has it.
func (b *eventbridgeBench) latency(ctx context.Context) error {
	b.Row("\nfrom HTTP to webhook at 1,000 events/s\tp50 ms (median, min-max)\tp99 ms (median, min-max)\trequest p50/p99 ms")
	seconds := 10.0
	if b.Quick {
		seconds = 3
	}
	for _, order := range []string{"none", "group"} {
		if err := b.delivering(ctx, "latency", order, 64, func(s *bridge, events string, sink *eventSink) error {
			var p50, p99, request50, request99 []float64
			next := 0
			for round := range b.Rounds + latencyWarm {
				load := measure.Piece{Kind: "event-load", URL: events, Callers: 32, First: next, Count: next + 1e6, Seconds: seconds, Rate: 1000}
				next += load.Count
				o, err := measure.Run(ctx, load)
				if err != nil {
					return err
				}
				came, _ := sink.await(ctx, o.Messages)
				took, _ := sink.reset()
				if came < o.Messages || float64(came) < .95*1000*seconds {
					return fmt.Errorf("%d events were taken and %d delivered in %g seconds", o.Messages, came, seconds)
				}
				if round < latencyWarm {
					continue
				}
				var m measure.Meter
				m.Latencies(took)
				p50, p99 = append(p50, m.Outcome.P50), append(p99, m.Outcome.P99)
				request50, request99 = append(request50, o.P50), append(request99, o.P99)
			}
			b.Row("%s\t%.1f (%.1f-%.1f)\t%.1f (%.1f-%.1f)\t%.1f/%.1f", order, measure.Median(p50), measure.Least(p50), measure.Most(p50), measure.Median(p99), measure.Least(p99), measure.Most(p99),
				measure.Median(request50), measure.Median(request99))
			if name := "latency_" + order; order == "none" {
				b.AtMost(name+"_p50_ms", measure.Median(p50), 15)
				b.AtMost(name+"_p99_ms", measure.Median(p99), 60)
			} else {
				b.Figure(name+"_p50_ms", measure.Median(p50))
				b.Figure(name+"_p99_ms", measure.Median(p99))
			}
			return nil
		}); err != nil {
			return fmt.Errorf("%s: %w", order, err)
		}
	}
	return nil
}
