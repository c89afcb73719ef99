package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/aviaryhq/aviary/test/bench/load"
	"github.com/aviaryhq/aviary/test/bench/senders"
	"github.com/aviaryhq/aviary/test/bench/servers"
	"github.com/aviaryhq/aviary/test/bench/workload"
)

// eventbridgeScenario measures the matcher alone, and the service on a broker: events taken, and
// events delivered to a webhook.
func eventbridgeScenario(ctx context.Context, r *runner) error {
	r.scenario.Brokers = map[string]workload.Broker{"": {Conf: map[string]string{"brokerDeduplicationEnabled": "true"}}}
	r.scenario.Columns = []string{
		"events_s", "events_per_cpu_s", "p50_ms", "p99_ms", "publish_msg_s",
		"deliveries_s", "delivery_p50_ms", "delivery_p99_ms", "peak_mib", "matches_per_event",
	}
	if err := matcherParts(ctx, r); err != nil {
		return fmt.Errorf("matcher: %w", err)
	}
	for _, p := range eventParts(r.Quick) {
		if !r.Wants(p.Name) {
			continue
		}
		if err := runEvents(ctx, r, &p); err != nil {
			return fmt.Errorf("%s: %w", p.Name, err)
		}
	}
	return nil
}

// eventPart is a part with the service.
type eventPart struct {
	workload.Part
	load      senders.Load // of each turn; the part size has its own
	customers int          // of senders.EventGroups: events of these are delivered
	order     string       // of the one subscriber for all customers; "": each customer has one
	callers   int          // of the plain client, which wait for acknowledgements; 0: it does not wait
}

// eventParts returns the parts with the service. Events come one by one or in batches of 100, over
// so many connections that the two cores are busy.
func eventParts(quick bool) []eventPart {
	ingestSeconds, deliveries, latencySeconds, subscribers := 8.0, 60_000, 10.0, 1000
	if quick {
		ingestSeconds, deliveries, latencySeconds, subscribers = 2, 12_000, 3, 100
	}
	single := senders.Load{Callers: 256, Count: 1e6, Seconds: ingestSeconds}
	batch := senders.Load{Callers: 16, Batch: 100, Count: 1e8, Seconds: ingestSeconds}
	// With these, events are taken faster than they are delivered.
	fast := senders.Load{Callers: 4, Batch: 100, Count: deliveries, Seconds: 60}
	// Less than 95 % of this rate is an error.
	steady := senders.Load{Callers: 32, Rate: 1000, Count: int(1000 * latencySeconds), Seconds: latencySeconds / 0.95}
	plain := workload.Default()
	plain.PartitionsPerTopic, plain.MessageSize, plain.RandomizedPayloadPoolSize = 0, 320, 4096
	plain.UseRandomizedPayloads, plain.RandomBytesRatio = true, 0.5
	plain.TestDurationMinutes, plain.WarmupDurationMinutes = ingestSeconds/60, 0
	ingest := func(name string, l senders.Load, callers int, atLeast float64) eventPart {
		return eventPart{load: l, callers: callers, Part: workload.Part{
			Name: name, Workload: plain, WarmUpRounds: 1,
			Targets: []workload.Target{
				{Name: name + "_s", Figure: "events_s", Of: "eventbridge", AtLeast: &atLeast},
				{Name: name + "_vs_plain", Figure: "events_s", Of: "eventbridge", Over: "client", OverFigure: "publish_msg_s"},
			},
		}}
	}
	delivery := func(name, order string, l senders.Load, warmUp int, targets ...workload.Target) eventPart {
		p := workload.Part{Name: name + "_" + order, WarmUpRounds: warmUp, Targets: targets}
		return eventPart{load: l, customers: senders.EventGroups, order: order, Part: p}
	}
	const latencyWarmUp = 6 // the broker's JVM compiles its code in the first minute
	return []eventPart{
		ingest("ingest_single", single, 256, 20_000),
		ingest("ingest_batch", batch, 0, 100_000),
		delivery("delivery", "none", fast, 1,
			workload.Target{Name: "delivery_none_s", Figure: "deliveries_s", Of: "eventbridge", AtLeast: new(6000.0)},
			workload.Target{Name: "delivery_none_lost", Figure: "lost", Of: "eventbridge", AtMost: new(0.0)}),
		delivery("delivery", "group", fast, 1,
			workload.Target{Name: "delivery_group_lost", Figure: "lost", Of: "eventbridge", AtMost: new(0.0)}),
		delivery("latency", "none", steady, latencyWarmUp,
			workload.Target{Name: "latency_none_p50_ms", Figure: "delivery_p50_ms", Of: "eventbridge", AtMost: new(15.0)},
			workload.Target{Name: "latency_none_p99_ms", Figure: "delivery_p99_ms", Of: "eventbridge", AtMost: new(60.0)}),
		delivery("latency", "group", steady, latencyWarmUp),
		{customers: subscribers, Part: workload.Part{Name: "size", MaxRounds: 1, Targets: []workload.Target{
			{Name: "size_peak_mib", Figure: "peak_mib", Of: "eventbridge", AtMost: new(256.0)},
			{Name: "size_lost", Figure: "lost", Of: "eventbridge", AtMost: new(0.0)},
		}}},
	}
}

// runEvents starts Eventbridge, with a bus of four partitions and a webhook of this process, and
// runs the part. Its namespace gives it topics and a registry of its own. Beside a part without
// deliveries, the plain client publishes messages of the same size.
func runEvents(ctx context.Context, r *runner, p *eventPart) (err error) {
	c, err := r.cluster(ctx, "")
	if err != nil {
		return err
	}
	namespace, roles := "public/bench-"+p.Name, "preprocessor,engine,processor"
	if p.customers == 0 {
		roles = "preprocessor"
	}
	if err := servers.Put(ctx, c.config.AdminURL+"/admin/v2/namespaces/"+namespace, struct{}{}); err != nil {
		return err
	}
	s, err := r.service(ctx, "eventbridge", "HTTP_LISTEN", map[string]string{
		"PULSAR_URL": c.config.URL, "PULSAR_ADMIN_URL": c.config.AdminURL, "ROLES": roles, "TOPICS_NAMESPACE": namespace,
		"TARGETS_ALLOW": "127.0.0.0/8",
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	b := &bridge{Server: s, bus: "http://" + s.Address + "/v1/buses/b", sink: newEventSink()}
	defer b.sink.Close()
	if err := servers.Put(ctx, b.bus, map[string]any{"partitions": 4}); err != nil {
		return err
	}
	turn := b.post
	sides := []side{{"eventbridge", func(round int) (result *load.Result, err error) {
		err = r.profiled(ctx, s, "eventbridge-"+p.Name, round, func() error {
			result, err = turn(ctx, p.load, p.customers)
			return err
		})
		return result, err
	}}}
	switch {
	case p.customers == 0:
		client := workload.Side{Name: "client", Driver: "client", Callers: p.callers}
		sides = append(sides, r.driver(ctx, c, &p.Part, client))
	case p.order == "":
		turn = b.size
	default:
		settings := map[string]any{"order": p.order, "delivery": map[string]any{"concurrency": 64}}
		if err := b.subscribe(ctx, "hook", settings, `{"type":["order.placed"]}`); err != nil {
			return err
		}
	}
	return r.compare(&p.Part, sides...)
}

// bridge is a running Eventbridge.
type bridge struct {
	*servers.Server
	bus  string // URL of the bus
	sink *eventSink
	next int // number of the next event
}

// subscribe makes a subscriber with these settings and a rule for each pattern. Its target is the
// webhook.
func (b *bridge) subscribe(ctx context.Context, name string, settings map[string]any, patterns ...string) error {
	var rules []any
	for i, pattern := range patterns {
		rules = append(rules, map[string]any{"name": fmt.Sprint("rule-", i), "pattern": json.RawMessage(pattern)})
	}
	settings["rules"], settings["target"] = rules, map[string]any{"webhook": map[string]any{"url": b.sink.URL}}
	return servers.Put(ctx, b.bus+"/subscribers/"+name, settings)
}

// post posts events and waits until the webhook has those of the customers. Deliveries per second
// count from before the first event is sent until the last one is delivered. The latency of an
// event begins just before it is sent.
func (b *bridge) post(ctx context.Context, p senders.Load, customers int) (*load.Result, error) {
	count, wanted := p.Count, p.Count*customers/senders.EventGroups
	p.Send, p.URL, p.First, p.Count = senders.Events, b.bus+"/events", b.next, b.next+count
	b.next = p.Count
	var deliveries map[string]float64
	var latencies *hdrhistogram.Histogram
	began := time.Now()
	o, err := b.Measure(ctx, p, func() { deliveries, latencies = b.sink.await(ctx, wanted, began) })
	if err != nil || customers == 0 {
		return measured(o, "events", nil), err
	}
	if o.Messages < count {
		return nil, fmt.Errorf("%d of %d events were taken in %.1f seconds", o.Messages, count, p.Seconds)
	}
	result := measured(o, "events", deliveries)
	if latencies.TotalCount() == 0 {
		return result, nil
	}
	result.Histograms = map[string]string{}
	return result, result.AddHistogram("delivery", latencies)
}

// size measures what one process takes that has a subscriber with ten rules for each of the
// customers, all of which have been delivered to.
func (b *bridge) size(ctx context.Context, _ senders.Load, customers int) (*load.Result, error) {
	began := time.Now()
	for i := range customers {
		patterns := []string{fmt.Sprintf(`{"partitionkey":["customer-%d"]}`, i)}
		for n := range 9 {
			// No event matches these.
			pattern := `{"type":[{"prefix":"kind-%d-%d."}],"data":{"total":[{"numeric":[">",%d,"<=",%d]}]}}`
			patterns = append(patterns, fmt.Sprintf(pattern, i, n, i, i+100))
		}
		if err := b.subscribe(ctx, fmt.Sprint("s-", i), map[string]any{}, patterns...); err != nil {
			return nil, err
		}
	}
	subscribed := time.Now()
	first, err := b.post(ctx, senders.Load{Callers: 1, Batch: 100, Count: 10 * customers, Seconds: 60}, customers)
	if err != nil {
		return nil, err
	}
	delivered := time.Now()
	// Once more, with all topics open.
	result, err := b.post(ctx, senders.Load{Callers: 16, Rate: 1000, Count: 20_000, Seconds: 60}, customers)
	if err != nil {
		return nil, err
	}
	result.Figures["lost"] += first.Figures["lost"]
	result.Figures["subscribe_s"] = subscribed.Sub(began).Seconds()
	result.Figures["first_deliveries_s"] = delivered.Sub(subscribed).Seconds()
	return result, nil
}
