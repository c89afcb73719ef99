package main

import (
	"context"
	"fmt"
	"time"

	"github.com/aviaryhq/aviary/test/bench/measure"
	"github.com/aviaryhq/aviary/test/bench/pieces"
	"github.com/aviaryhq/aviary/test/bench/servers"
)

const (
	sizeSubscribers = 1000
	sizeRules       = 10 // of each
)

// size measures what one process with all three roles takes that has 1,000 subscribers with 10,000
// rules, all of which have been delivered to.
func (b *eventbridgeBench) size(ctx context.Context) error {
	subscribers := sizeSubscribers
	if b.Quick {
		subscribers /= 10
	}
	return b.withBus(ctx, "size", func(s *bridge, events string, sink *eventSink) error {
		return b.sizeOf(ctx, s, events, sink, subscribers)
	})
}

func (b *eventbridgeBench) sizeOf(ctx context.Context, s *bridge, events string, sink *eventSink, subscribers int) error {
	began := time.Now()
	for i := range subscribers {
		// Each has rules of its own that no event of the benchmark matches, and one that its own
		// customers' events match.
		rules := []any{map[string]any{"name": "customer", "pattern": map[string]any{"partitionkey": []string{fmt.Sprint("customer-", i)}}}}
		for n := 1; n < sizeRules; n++ {
			rules = append(rules, map[string]any{"name": fmt.Sprint("rule-", n), "pattern": map[string]any{
				"type": []any{map[string]any{"prefix": fmt.Sprintf("kind-%d-%d.", i, n)}}, "data": map[string]any{"total": []any{map[string]any{"numeric": []any{">", i, "<=", i + 100}}}},
			}})
		}
		if err := servers.Put(ctx, fmt.Sprintf("%s/v1/buses/b/subscribers/s-%d", s.api, i), map[string]any{
			"rules": rules, "target": map[string]any{"webhook": map[string]any{"url": sink.url}},
		}); err != nil {
			return err
		}
	}
	made := time.Since(began)
	began = time.Now()
	o, err := measure.Run(ctx, measure.Piece{Kind: "event-load", URL: events, Callers: 1, Events: ingestBatch, Count: 10 * subscribers, Seconds: 60})
	if err != nil {
		return err
	}
	wanted := o.Messages / pieces.EventGroups * subscribers // each customer's events
	came, _ := sink.await(ctx, wanted)
	delivered := time.Since(began)
	// Once more, with all topics open.
	sink.reset()
	load := measure.Piece{Kind: "event-load", URL: events, Callers: 16, First: 1e6, Count: 1e7, Seconds: 20, Rate: 1000}
	if o, err = measure.Run(ctx, load); err != nil {
		return err
	}
	again, _ := sink.await(ctx, o.Messages/pieces.EventGroups*subscribers)
	peak, err := s.Peak()
	if err != nil {
		return err
	}
	b.Row("\n%d subscribers with %d rules, all delivered to\tresident at most %.0f MiB\tmade in %.0f s, first deliveries within %.0f s\t%d of %d and %d events delivered",
		subscribers, subscribers*sizeRules, peak, made.Seconds(), delivered.Seconds(), came, wanted, again)
	b.AtMost("size_peak_mib", peak, 256)
	b.AtMost("size_lost", float64(wanted-came), 0)
	return nil
}
