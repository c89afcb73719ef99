package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/bench/load"
	"github.com/aviaryhq/aviary/test/bench/servers"
	"github.com/aviaryhq/aviary/test/bench/workload"
)

// latency publishes messages to Kafka at a low rate. Two consumers receive each of them: one from
// Kafka, and one from Pulsar, where the route stores it. Both read in the same moments, because
// their difference is the result. The side pulsar publishes directly to Pulsar, for orientation.
// The first half of the time is the warm-up: Kafka's JVM compiles its code on both cores for half a
// minute.
func (b *pigeonhole) latency(ctx context.Context, name string) error {
	half := 40 * time.Second
	if b.Quick {
		half = 4 * time.Second
	}
	p := b.part(name, 0, half, workload.Target{Name: "added_latency_p99_ms", Figure: "added_p99_ms", Of: "route", AtMost: new(10.0)})
	p.WarmUpRounds, p.MaxRounds = 0, 1
	p.Workload.ProducerRate, p.Workload.WarmupDurationMinutes, p.Workload.SubscriptionsPerTopic = 1000, half.Minutes(), 1
	reader := workload.Side{
		Name: "pulsar", Driver: "library", Type: messaging.Exclusive, Order: messaging.OrderTotal, Concurrency: 1,
	}
	return b.compare(p, b.driver(ctx, b.pulsar, p, reader), side{"route", func(int) (*load.Result, error) {
		return b.timed(ctx, p.Workload, reader)
	}})
}

// timed measures the latencies of a route from Kafka to Pulsar, and of its stages.
func (b *pigeonhole) timed(ctx context.Context, w workload.Workload, reader workload.Side) (result *load.Result, err error) {
	source, err := b.kafkaTopic(ctx, routePartitions, 0)
	if err != nil {
		return nil, err
	}
	topic := "persistent://public/default/" + source
	if err := b.pulsar.client.EnsureSubscription(ctx, topic, load.RouteSubscription, messaging.StartEarliest); err != nil {
		return nil, err
	}
	to := &destination{sink: fmt.Sprintf("pulsar: {url: %q}", b.pulsar.config.URL), to: topic}
	s, err := b.startRoutes(ctx, route{atLeastOnce, b.kafkaSource(source), to})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	result, err = b.runTurn(ctx, "kafka", b.kafka, load.Turn{
		Workload: w, Side: reader, Topics: []string{topic}, Subscriptions: []string{"kafka", load.RouteSubscription},
	})
	if err != nil {
		return nil, err
	}
	f := result.Figures
	for _, p := range []string{"_p50_ms", "_p99_ms"} {
		route, ok1 := f["route"+p]
		direct, ok2 := f["kafka"+p]
		if ok1 && ok2 { // else the target is not met
			f["added"+p] = route - direct
		}
	}
	families, err := servers.Metrics(ctx, s.Admin+"/metrics")
	if err != nil {
		return nil, err
	}
	for _, m := range families["pigeonhole_stage_duration_seconds"].GetMetric() {
		for _, label := range m.GetLabel() {
			if label.GetName() == "stage" {
				for name, q := range map[string]float64{"_p50_below_ms": .5, "_p99_below_ms": .99} {
					if ms := below(m.GetHistogram(), q); !math.IsInf(ms, 1) { // JSON has no infinity
						f["stage_"+label.GetValue()+name] = ms
					}
				}
			}
		}
	}
	return result, nil
}

// below returns the upper bound, in milliseconds, of the bucket with the quantile.
func below(h *dto.Histogram, quantile float64) float64 {
	for _, bucket := range h.GetBucket() {
		if float64(bucket.GetCumulativeCount()) >= quantile*float64(h.GetSampleCount()) {
			return 1000 * bucket.GetUpperBound()
		}
	}
	return math.Inf(1)
}
