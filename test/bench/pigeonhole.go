package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/aviaryhq/aviary/test/bench/load"
	"github.com/aviaryhq/aviary/test/bench/workload"
)

// routePartitions is the number of partitions of topics in Kafka and in Pulsar.
const routePartitions = 4

// pigeonholeScenario measures Pigeonhole between servers of its own. Routes move messages that wait
// at the source. The plain clients only publish, or only receive, the same messages.
func pigeonholeScenario(ctx context.Context, r *runner) error {
	b := &pigeonhole{runner: r}
	if err := b.start(ctx); err != nil {
		return err
	}
	r.scenario.Columns = []string{
		"publish_msg_s", "consume_msg_s", "cpu_us", "peak_mib",
		"e2e_p50_ms", "e2e_p99_ms", "kafka_p50_ms", "kafka_p99_ms", "route_p50_ms", "route_p99_ms",
	}
	for _, part := range []struct {
		name string
		run  func(context.Context, string) error
	}{
		// First: the other parts leave gigabytes, which the system writes to the disk for minutes.
		{"latency", b.latency},
		{"kafka_pulsar", b.kafkaPulsar}, {"rabbitmq_pulsar", b.rabbitMQPulsar}, {"pulsar_kafka", b.pulsarKafka},
		{"pulsar_rabbitmq", b.pulsarRabbitMQ}, {"growth_partitions", b.growthPartitions}, {"growth_routes", b.growthRoutes},
	} {
		if !r.Wants(part.name) {
			continue
		}
		err := part.run(ctx, part.name)
		for _, remove := range b.sources {
			err = errors.Join(err, remove())
		}
		if b.sources = nil; err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return nil
}

// part returns a part of so many messages. A turn of a plain client takes at most limit. The first
// round is the warm-up: JVMs that have just started compile their code on the same cores.
func (b *pigeonhole) part(name string, messages int, limit time.Duration, targets ...workload.Target) *workload.Part {
	w := workload.Default()
	w.PartitionsPerTopic, w.WarmupDurationMinutes, w.TestDurationMinutes = 0, 0, limit.Minutes()
	w.MessageSize, w.UseRandomizedPayloads, w.RandomBytesRatio, w.RandomizedPayloadPoolSize = 512, true, 0.5, 4096
	if b.Quick {
		messages /= 5
	}
	return &workload.Part{Name: name, Workload: w, Messages: messages, WarmUpRounds: 1, Targets: targets}
}

// memory is the target for the peak memory of a side.
func memory(name, side string) workload.Target {
	return workload.Target{Name: name, Figure: "peak_mib", Of: side, AtMost: new(256.0)}
}

// overClient is the target for the rate of a side in proportion to that of the plain client.
func overClient(name, side string, atLeast float64) workload.Target {
	return workload.Target{Name: name, Figure: "publish_msg_s", Of: side, Over: "client", AtLeast: &atLeast}
}

func (b *pigeonhole) kafkaPulsar(ctx context.Context, name string) error {
	p := b.part(name, 2_000_000, 5*time.Second,
		memory("kafka_pulsar_peak_mib", "route"), overClient("kafka_pulsar_vs_raw", "route", .75),
		workload.Target{Name: "kafka_pulsar_msg_s", Figure: "publish_msg_s", Of: "route", AtLeast: new(100_000.0)},
		workload.Target{
			Name: "effectively_once_vs_at_least_once", Figure: "publish_msg_s", Of: "effectively_once", Over: "at_least_once",
			AtLeast: new(.8),
		},
	)
	from, err := b.fromKafka(ctx, routePartitions, p.Messages)
	if err != nil {
		return err
	}
	byKey, bySource := b.toPulsar(ctx, routePartitions, "key"), b.toPulsar(ctx, routePartitions, "source")
	return b.compare(p,
		b.routes(ctx, p, "route", atLeastOnce, byKey, from),
		b.driver(ctx, b.pulsar, p, workload.Side{Name: "client", Driver: "client"}),
		b.routes(ctx, p, "effectively_once", effectivelyOnce, bySource, from),
		b.routes(ctx, p, "at_least_once", atLeastOnce, bySource, from),
	)
}

func (b *pigeonhole) rabbitMQPulsar(ctx context.Context, name string) error {
	p := b.part(name, 150_000, 0, memory("rabbitmq_pulsar_peak_mib", "route"), overClient("rabbitmq_pulsar_vs_bare", "route", .75))
	p.Targets[1].OverFigure = "consume_msg_s"
	return b.compare(p,
		b.routes(ctx, p, "route", atLeastOnce, b.toPulsar(ctx, routePartitions, "key"), b.fromRabbitMQ(ctx, p.Messages)),
		side{"client", func(int) (*load.Result, error) {
			queue, err := b.queue(ctx, p.Messages)
			if err != nil {
				return nil, err
			}
			return b.runTurn(ctx, "rabbitmq", b.rabbitMQ, load.Turn{
				Workload: p.Workload, Topics: []string{queue}, Subscriptions: []string{"bench"}, Stored: p.Messages,
			})
		}},
	)
}

func (b *pigeonhole) pulsarKafka(ctx context.Context, name string) error {
	p := b.part(name, 1_500_000, 5*time.Second,
		memory("pulsar_kafka_peak_mib", "route"), overClient("pulsar_kafka_vs_bare", "route", .6))
	from, err := b.fromPulsar(ctx, p)
	if err != nil {
		return err
	}
	to := b.toKafka(ctx)
	return b.compare(p, b.routes(ctx, p, "route", atLeastOnce, to, from), b.publisher(ctx, p, "kafka", b.kafka, to))
}

// pulsarRabbitMQ compares both values of provenance. The plain client sends no properties.
// RabbitMQ is much slower with more than 64 bytes of them.
func (b *pigeonhole) pulsarRabbitMQ(ctx context.Context, name string) error {
	p := b.part(name, 150_000, time.Minute,
		memory("pulsar_rabbitmq_peak_mib", "full"), overClient("pulsar_rabbitmq_vs_bare", "full", .7),
		memory("pulsar_rabbitmq_hops_peak_mib", "hops"), overClient("pulsar_rabbitmq_hops_vs_bare", "hops", .7),
	)
	from, err := b.fromPulsar(ctx, p)
	if err != nil {
		return err
	}
	return b.compare(p,
		b.routes(ctx, p, "full", atLeastOnce+", provenance: full", b.toRabbitMQ(ctx), from),
		b.publisher(ctx, p, "rabbitmq", b.rabbitMQ, b.toRabbitMQ(ctx)),
		b.routes(ctx, p, "hops", atLeastOnce+", provenance: hops", b.toRabbitMQ(ctx), from),
	)
}

// growthPartitions measures the cost of the same messages from Kafka to Pulsar, by partitions.
func (b *pigeonhole) growthPartitions(ctx context.Context, name string) error {
	p := b.part(name, 1_000_000, 0, memory("growth_64_partitions_peak_mib", "64"),
		workload.Target{Name: "growth_cpu_64_partitions_over_4", Figure: "cpu_us", Of: "64", Over: "4", AtMost: new(1.4)})
	return b.growth(ctx, p, []int{4, 16, 64}, func(n int) (routes, partitions int) { return 1, n })
}

// growthRoutes is growthPartitions with more routes of one partition each.
func (b *pigeonhole) growthRoutes(ctx context.Context, name string) error {
	p := b.part(name, 1_000_000, 0, memory("growth_50_routes_peak_mib", "50"))
	return b.growth(ctx, p, []int{1, 10, 50}, func(n int) (routes, partitions int) { return n, 1 })
}

func (b *pigeonhole) growth(ctx context.Context, p *workload.Part, sizes []int, shape func(int) (routes, partitions int)) error {
	p.MaxRounds = 2
	var sides []side
	for _, size := range sizes {
		routes, partitions := shape(size)
		var sources []func() (string, error)
		for range routes {
			from, err := b.fromKafka(ctx, partitions, p.Messages/routes)
			if err != nil {
				return err
			}
			sources = append(sources, from)
		}
		sides = append(sides, b.routes(ctx, p, fmt.Sprint(size), atLeastOnce, b.toPulsar(ctx, partitions, "key"), sources...))
	}
	return b.compare(p, sides...)
}
