package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/IBM/sarama"

	"github.com/aviaryhq/aviary/test/bench/measure"
	"github.com/aviaryhq/aviary/test/bench/pieces"
	"github.com/aviaryhq/aviary/test/bench/servers"
	"github.com/aviaryhq/aviary/test/systems/rabbitmq"

	amqp "github.com/rabbitmq/amqp091-go"
	"golang.org/x/sync/errgroup"

	"github.com/aviaryhq/aviary/test/stack"
)

const (
	bridgePayload = 512
	bridgeParts   = 4 // partitions of topics of Kafka and Pulsar
)

// bridgeBench is what the parts of the scenario share.
type bridgeBench struct {
	*measure.Report
	dir, binary   string
	pulsar        *servers.Broker
	kafka, rabbit string
	admin         sarama.ClusterAdmin
}

// pigeonholeScenario measures the real binary between real servers: it moves what
// waits at the source, and is compared with clients that do the one half of it.
func pigeonholeScenario(ctx context.Context, r *measure.Report) (err error) {
	b := &bridgeBench{Report: r}
	if b.dir, err = os.MkdirTemp("", "aviary-bench-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()
	b.binary = filepath.Join(b.dir, "pigeonhole")
	if err := servers.Build(ctx, "pigeonhole", b.binary); err != nil {
		return err
	}
	stop, err := b.servers(ctx)
	defer stop()
	if err != nil {
		return err
	}
	r.Row("part\tours msg/s\tmsg/CPU s\tpeak MiB\tother\tmsg/s\tmsg/CPU s\tratio (median, min-max)")
	for _, part := range []struct {
		name string
		run  func(context.Context) error
	}{
		// First: after the others the disk is busy for minutes with gigabytes that they have left
		// to be written.
		{"latency", b.latency},
		{"kafka_pulsar", b.kafkaPulsar}, {"rabbitmq_pulsar", b.rabbitPulsar}, {"pulsar_kafka", b.pulsarKafka},
		{"pulsar_rabbitmq", b.pulsarRabbit}, {"drivers", b.drivers}, {"growth_partitions", b.growthPartitions},
		{"growth_routes", b.growthRoutes},
	} {
		if !r.Wants(part.name) {
			continue
		}
		if err := part.run(ctx); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return nil
}

// servers starts the three systems for this run alone.
func (b *bridgeBench) servers(ctx context.Context) (stop func(), err error) {
	stop = func() {}
	if b.pulsar, err = servers.StartBroker(ctx, servers.Options{Conf: map[string]string{"brokerDeduplicationEnabled": "true"}}); err != nil {
		return stop, err
	}
	s, err := stack.New(stack.Config{Log: os.Stderr, Owned: true, Checkout: fmt.Sprintf("bench-bridge-%d", os.Getpid())})
	if err != nil {
		return b.pulsar.Stop, err
	}
	stop = func() {
		if b.admin != nil {
			_ = b.admin.Close()
		}
		b.pulsar.Stop()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := s.Down(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
		}
	}
	lines, err := s.Up(ctx, "kafka", "rabbitmq")
	if err != nil {
		return stop, err
	}
	for _, line := range lines {
		if v, ok := strings.CutPrefix(line, "KAFKA_BROKERS="); ok {
			b.kafka = v
		}
		if v, ok := strings.CutPrefix(line, "RABBITMQ_URL="); ok {
			b.rabbit = v
		}
	}
	b.admin, err = sarama.NewClusterAdmin(strings.Split(b.kafka, ","), sarama.NewConfig())
	return stop, err
}

// count is how many messages one turn moves.
func (b *bridgeBench) count(n int) int {
	if b.Quick {
		return n / 5
	}
	return n
}

// crossing is one measured run of a route.
type crossing struct {
	messages, seconds, cpu, peak float64
}

func (c crossing) rate() float64   { return c.messages / c.seconds }
func (c crossing) perCPU() float64 { return c.messages / c.cpu }

// against runs a route and a bare client in turn, after a run of the route that warms
// up: a broker that was just started compiles itself on the same cores.
func (b *bridgeBench) against(ctx context.Context, name, other string, route func(context.Context) (crossing, error), bare func(context.Context) (measure.Outcome, error)) (ratio float64, ours []crossing, err error) {
	var theirs []measure.Outcome
	if _, err := route(ctx); err != nil {
		return 0, nil, err
	}
	if err := measure.InTurn(b.Rounds,
		measure.Into(&ours, func(int) (crossing, error) { return route(ctx) }),
		measure.Into(&theirs, func(int) (measure.Outcome, error) { return bare(ctx) }),
	); err != nil {
		return 0, nil, err
	}
	ratios := measure.Ratios(measure.Each(ours, crossing.rate), measure.Each(theirs, measure.Outcome.Rate))
	of := func(f func(crossing) float64) float64 { return measure.Median(measure.Each(ours, f)) }
	their := func(f func(measure.Outcome) float64) float64 { return measure.Median(measure.Each(theirs, f)) }
	peak := measure.Most(measure.Each(ours, func(c crossing) float64 { return c.peak }))
	b.Row("%s\t%.0f\t%.0f\t%.0f\t%s\t%.0f\t%.0f\t%.3f (%.3f-%.3f)", name, of(crossing.rate), of(crossing.perCPU), peak, other,
		their(measure.Outcome.Rate), their(func(o measure.Outcome) float64 { return float64(o.Messages) / o.CPU }), measure.Median(ratios), measure.Least(ratios), measure.Most(ratios))
	b.Figure(name+"_msg_s", of(crossing.rate))
	b.Figure(name+"_other_msg_s", their(measure.Outcome.Rate))
	b.AtMost(name+"_peak_mib", peak, 256)
	return measure.Median(ratios), ours, nil
}

// start runs the binary with one route, named bench, with more lines of it, and waits until it is
// ready.
func (b *bridgeBench) start(ctx context.Context, guarantee, source, sink, to string, more ...string) (s *servers.Server, err error) {
	return b.startWith(ctx, bridgeRoute("bench", guarantee, source, sink, to, more...))
}

// bridgeRoute is a route of the configuration, with more lines.
func bridgeRoute(name, guarantee, source, sink, to string, more ...string) string {
	text := fmt.Sprintf("- name: %s\n  guarantee: %s\n  source: {%s}\n  sink: {%s}\n  to: %q\n", name, guarantee, source, sink, to)
	for _, line := range more {
		text += "  " + line + "\n"
	}
	return text
}

// startWith runs the binary with these routes and waits until it is ready.
func (b *bridgeBench) startWith(ctx context.Context, routes string) (s *servers.Server, err error) {
	file, text := filepath.Join(b.dir, "pigeonhole.yaml"), "routes:\n"+routes
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return nil, err
	}
	_, admin, err := servers.TwoPorts()
	if err != nil {
		return nil, err
	}
	s, err = servers.Start(b.binary, filepath.Join(b.dir, "pigeonhole.log"), []string{"PIGEONHOLE_ADMIN_LISTEN=" + admin}, "-config.file", file)
	if err != nil {
		return nil, err
	}
	s.Admin = "http://" + admin
	if err := s.Await(ctx, s.Admin+"/-/ready"); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

// cross runs one route until it has stored n messages, and measures from the first one
// stored to the last.
func (b *bridgeBench) cross(ctx context.Context, n int, guarantee, source, sink, to string, more ...string) (c crossing, err error) {
	return b.crossWith(ctx, n, strings.ReplaceAll(to, "/", "_"), bridgeRoute("bench", guarantee, source, sink, to, more...))
}

// crossWith is cross for any routes; label is in the names of profiles.
func (b *bridgeBench) crossWith(ctx context.Context, n int, label, routes string) (c crossing, err error) {
	s, err := b.startWith(ctx, routes)
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, s.Stop()) }()
	if b.Profile != "" {
		done := make(chan error, 1)
		go func() {
			done <- s.Profiles(ctx, filepath.Join(b.Profile, "pigeonhole-"+label))
		}()
		defer func() { err = errors.Join(err, <-done) }()
	}
	var began time.Time
	var first int64
	var used float64
	for deadline := time.Now().Add(3 * time.Minute); ; {
		stored, err := b.storedBy(ctx, s)
		if err != nil {
			return c, err
		}
		switch {
		case stored >= int64(n):
			now := time.Now()
			cpu, err := s.CPU()
			if err != nil {
				return c, err
			}
			c = crossing{messages: float64(stored - first), seconds: now.Sub(began).Seconds(), cpu: cpu - used}
			c.peak, err = s.Peak()
			return c, err
		case began.IsZero() && stored > 0:
			began, first = time.Now(), stored
			if used, err = s.CPU(); err != nil {
				return c, err
			}
		case time.Now().After(deadline):
			return c, fmt.Errorf("%d of %d messages stored in time", stored, n)
		}
		measure.Wait(ctx, 10*time.Millisecond)
		if ctx.Err() != nil {
			return c, ctx.Err()
		}
	}
}

func (b *bridgeBench) storedBy(ctx context.Context, s *servers.Server) (int64, error) {
	var all struct {
		Routes []struct {
			Stored int64 `json:"stored"`
		} `json:"routes"`
	}
	err := servers.Get(ctx, s.Admin+"/routes", &all)
	stored := int64(0)
	for _, route := range all.Routes {
		stored += route.Stored
	}
	return stored, err
}

// The sections of the configuration.

func (b *bridgeBench) fromKafka(topic string) string {
	return fmt.Sprintf("kafka: {brokers: [%q], group: %s, topics: [%s]}", b.kafka, topic+"-"+fmt.Sprint(time.Now().UnixNano()), topic)
}

func (b *bridgeBench) toPulsar() string { return fmt.Sprintf("pulsar: {url: %q}", b.pulsar.Url) }

func (b *bridgeBench) fromPulsar(topic string) string {
	return fmt.Sprintf("pulsar: {url: %q, topics: [%q], subscription: bench-%d, type: failover}", b.pulsar.Url, topic, time.Now().UnixNano())
}

// bareRabbit is the URL without its user, who is the default one.
func (b *bridgeBench) bareRabbit() string { return strings.Replace(b.rabbit, "guest:guest@", "", 1) }

func (b *bridgeBench) kafkaTopic(part string) (string, error) {
	return b.kafkaTopicOf(part, bridgeParts)
}

func (b *bridgeBench) kafkaTopicOf(part string, partitions int) (string, error) {
	name := "bench-" + part + "-" + fmt.Sprint(time.Now().UnixNano())
	if err := b.admin.CreateTopic(name, &sarama.TopicDetail{NumPartitions: int32(partitions), ReplicationFactor: 1}, false); err != nil {
		return "", err
	}
	// A new topic's partitions have no leaders for a while, which a producer takes for a failure.
	for deadline := time.Now().Add(time.Minute); ; {
		topics, err := b.admin.DescribeTopics([]string{name})
		if err != nil {
			return "", err
		}
		led := 0
		for _, p := range topics[0].Partitions {
			if p.Err == sarama.ErrNoError && p.Leader >= 0 {
				led++
			}
		}
		if led == partitions {
			return name, nil
		}
		if time.Now().After(deadline) {
			return "", fmt.Errorf("%d of %d partitions of %s have leaders", led, partitions, name)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (b *bridgeBench) pulsarTopic(ctx context.Context, part string) (string, error) {
	return b.pulsarTopicOf(ctx, part, bridgeParts)
}

func (b *bridgeBench) pulsarTopicOf(ctx context.Context, part string, partitions int) (string, error) {
	topic := servers.Fresh(part)
	return topic, servers.Put(ctx, b.pulsar.TopicURL(topic)+"/partitions", partitions)
}

func (b *bridgeBench) kafkaPulsar(ctx context.Context) error {
	n := b.count(2_000_000)
	source, err := b.kafkaTopic("source")
	if err != nil {
		return err
	}
	if _, err := measure.Run(ctx, measure.Piece{Kind: "sarama-produce", URL: b.kafka, Topic: source, Payload: bridgePayload, Format: measure.Varied, Count: n, Seconds: 120}); err != nil {
		return err
	}
	route := func(guarantee, partition string) func(context.Context) (crossing, error) {
		return func(ctx context.Context) (crossing, error) {
			topic, err := b.pulsarTopic(ctx, "bridged")
			if err != nil {
				return crossing{}, err
			}
			c, err := b.cross(ctx, n, guarantee, b.fromKafka(source), fmt.Sprintf("pulsar: {url: %q, partition: %s}", b.pulsar.Url, partition), topic)
			if err != nil {
				return c, err
			}
			return c, b.counted(ctx, topic, n, guarantee == "effectively_once")
		}
	}
	raw := func(ctx context.Context) (measure.Outcome, error) {
		return measure.Run(ctx, measure.Piece{Kind: "raw-async", URL: b.pulsar.Url, Topic: servers.Fresh("raw"), Payload: bridgePayload, Format: measure.Varied, Count: n, Seconds: pieceSeconds})
	}
	ratio, ours, err := b.against(ctx, "kafka_pulsar", "pulsar-client-go", route("at_least_once", "key"), raw)
	if err != nil {
		return err
	}
	b.AtLeast("kafka_pulsar_vs_raw", ratio, .75)
	b.AtLeast("kafka_pulsar_msg_s", measure.Median(measure.Each(ours, crossing.rate)), 100_000)
	var once, again []crossing
	if err := measure.InTurn(b.Rounds,
		measure.Into(&once, func(int) (crossing, error) { return route("effectively_once", "source")(ctx) }),
		measure.Into(&again, func(int) (crossing, error) { return route("at_least_once", "source")(ctx) }),
	); err != nil {
		return err
	}
	ratios := measure.Ratios(measure.Each(once, crossing.rate), measure.Each(again, crossing.rate))
	b.Row("kafka_pulsar_effectively_once\t%.0f\t%.0f\t%.0f\tat_least_once\t\t\t%.3f (%.3f-%.3f)", measure.Median(measure.Each(once, crossing.rate)),
		measure.Median(measure.Each(once, crossing.perCPU)), measure.Most(measure.Each(once, func(c crossing) float64 { return c.peak })), measure.Median(ratios), measure.Least(ratios), measure.Most(ratios))
	b.AtLeast("effectively_once_vs_at_least_once", measure.Median(ratios), .8)
	return nil
}

// counted compares what the topic's broker has taken with what was to arrive.
func (b *bridgeBench) counted(ctx context.Context, topic string, n int, exactly bool) error {
	var stats struct {
		MsgInCounter int `json:"msgInCounter"`
	}
	path := strings.Replace(topic, "://", "/", 1)
	if err := servers.Get(ctx, b.pulsar.Admin+"/admin/v2/"+path+"/partitioned-stats", &stats); err != nil {
		return err
	}
	if stats.MsgInCounter < n || exactly && stats.MsgInCounter != n {
		return fmt.Errorf("the topic holds %d of %d messages", stats.MsgInCounter, n)
	}
	return nil
}

// queue makes a durable queue, with n messages if asked for.
func (b *bridgeBench) queue(ctx context.Context, n int) (name string, drop func() error, err error) {
	name = "bench-" + fmt.Sprint(time.Now().UnixNano())
	connection, channel, err := rabbitmq.Open(b.rabbit)
	if err != nil {
		return "", nil, err
	}
	if _, err := channel.QueueDeclare(name, true, false, false, false, amqp.Table{}); err != nil {
		return "", nil, errors.Join(err, connection.Close())
	}
	drop = func() error {
		_, err := channel.QueueDelete(name, false, false, false)
		return errors.Join(err, connection.Close())
	}
	if n > 0 {
		_, err = measure.Run(ctx, measure.Piece{Kind: "amqp-publish", URL: b.rabbit, Topic: name, Payload: bridgePayload, Format: measure.Varied, Count: n, Seconds: 120})
	}
	return name, drop, err
}

func (b *bridgeBench) rabbitPulsar(ctx context.Context) error {
	n := b.count(150_000)
	ratio, _, err := b.against(ctx, "rabbitmq_pulsar", "amqp091-go", func(ctx context.Context) (c crossing, err error) {
		queue, drop, err := b.queue(ctx, n)
		if err != nil {
			return c, err
		}
		defer func() { err = errors.Join(err, drop()) }()
		topic, err := b.pulsarTopic(ctx, "bridged")
		if err != nil {
			return c, err
		}
		if c, err = b.cross(ctx, n, "at_least_once", fmt.Sprintf("rabbitmq: {url: %q, queues: [{name: %s}], prefetch: %d}", b.bareRabbit(), queue, pieces.Window), b.toPulsar(), topic); err != nil {
			return c, err
		}
		return c, b.counted(ctx, topic, n, false)
	}, func(ctx context.Context) (o measure.Outcome, err error) {
		queue, drop, err := b.queue(ctx, n)
		if err != nil {
			return o, err
		}
		defer func() { err = errors.Join(err, drop()) }()
		return measure.Run(ctx, measure.Piece{Kind: "amqp-consume", URL: b.rabbit, Topic: queue, Count: n})
	})
	if err == nil {
		b.AtLeast("rabbitmq_pulsar_vs_bare", ratio, .75)
	}
	return err
}

// pulsarSource makes a topic with n messages.
func (b *bridgeBench) pulsarSource(ctx context.Context, n int) (string, error) {
	topic, err := b.pulsarTopic(ctx, "source")
	if err != nil {
		return "", err
	}
	_, err = measure.Run(ctx, measure.Piece{Kind: "ops-async", URL: b.pulsar.Url, Topic: topic, Payload: bridgePayload, Format: measure.Varied, Count: n, Seconds: 120})
	return topic, err
}

func (b *bridgeBench) pulsarKafka(ctx context.Context) error {
	n := b.count(1_500_000)
	source, err := b.pulsarSource(ctx, n)
	if err != nil {
		return err
	}
	ratio, _, err := b.against(ctx, "pulsar_kafka", "sarama", func(ctx context.Context) (c crossing, err error) {
		topic, err := b.kafkaTopic("bridged")
		if err != nil {
			return c, err
		}
		if c, err = b.cross(ctx, n, "at_least_once", b.fromPulsar(source), fmt.Sprintf("kafka: {brokers: [%q]}", b.kafka), topic); err != nil {
			return c, err
		}
		return c, b.countedKafka(topic, n)
	}, func(ctx context.Context) (o measure.Outcome, err error) {
		topic, err := b.kafkaTopic("bare")
		if err != nil {
			return o, err
		}
		return measure.Run(ctx, measure.Piece{Kind: "sarama-produce", URL: b.kafka, Topic: topic, Payload: bridgePayload, Format: measure.Varied, Count: n, Seconds: pieceSeconds})
	})
	if err == nil {
		b.AtLeast("pulsar_kafka_vs_bare", ratio, .6)
	}
	return err
}

func (b *bridgeBench) countedKafka(topic string, n int) (err error) {
	client, err := sarama.NewClient(strings.Split(b.kafka, ","), sarama.NewConfig())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	var total int64
	for p := range int32(bridgeParts) {
		end, err := client.GetOffset(topic, p, sarama.OffsetNewest)
		if err != nil {
			return err
		}
		total += end
	}
	if total < int64(n) {
		return fmt.Errorf("the topic holds %d of %d messages", total, n)
	}
	return nil
}

func (b *bridgeBench) pulsarRabbit(ctx context.Context) error {
	n := b.count(150_000)
	source, err := b.pulsarSource(ctx, n)
	if err != nil {
		return err
	}
	route := func(provenance string) func(context.Context) (crossing, error) {
		return func(ctx context.Context) (c crossing, err error) {
			queue, drop, err := b.queue(ctx, 0)
			if err != nil {
				return c, err
			}
			defer func() { err = errors.Join(err, drop()) }()
			return b.cross(ctx, n, "at_least_once", b.fromPulsar(source), fmt.Sprintf("rabbitmq: {url: %q}", b.bareRabbit()), queue, "provenance: "+provenance)
		}
	}
	bare := func(ctx context.Context) (o measure.Outcome, err error) {
		queue, drop, err := b.queue(ctx, 0)
		if err != nil {
			return o, err
		}
		defer func() { err = errors.Join(err, drop()) }()
		return measure.Run(ctx, measure.Piece{Kind: "amqp-publish", URL: b.rabbit, Topic: queue, Payload: bridgePayload, Format: measure.Varied, Count: n, Seconds: 60})
	}
	ratio, _, err := b.against(ctx, "pulsar_rabbitmq", "amqp091-go", route("full"), bare)
	if err != nil {
		return err
	}
	b.AtLeast("pulsar_rabbitmq_vs_bare", ratio, .7)
	// The bare publisher's messages have no properties, and RabbitMQ is much slower with more than
	// 64 bytes of them.
	ratio, _, err = b.against(ctx, "pulsar_rabbitmq_hops", "amqp091-go", route("hops"), bare)
	if err != nil {
		return err
	}
	b.AtLeast("pulsar_rabbitmq_hops_vs_bare", ratio, .7)
	return nil
}

// latency compares what an application sees that reads a message from Pulsar, where the
// route has put it, with what one sees that reads it from Kafka itself, in the same
// moments, at 1,000 messages a second. How long a message takes that is produced into
// Pulsar is there for orientation.
func (b *bridgeBench) latency(ctx context.Context) error {
	const perSecond = 1000
	seconds := 80.0
	if b.Quick {
		seconds = 8
	}
	// timed runs a feed and its readers at once.
	timed := func(feed measure.Piece, readers ...measure.Piece) ([]measure.Outcome, error) {
		read := make([]measure.Outcome, len(readers))
		group, ctx := errgroup.WithContext(ctx)
		feed.Payload, feed.Count, feed.Seconds = bridgePayload, perSecond, seconds+2
		for i, reader := range readers {
			reader.Seconds = seconds
			group.Go(func() (err error) {
				read[i], err = measure.Run(ctx, reader)
				return err
			})
		}
		group.Go(func() error { _, err := measure.Run(ctx, feed); return err })
		return read, group.Wait()
	}
	direct := servers.Fresh("direct")
	straight, err := timed(measure.Piece{Kind: "timed-pulsar", URL: b.pulsar.Url, Topic: direct}, measure.Piece{Kind: "timed-consume", URL: b.pulsar.Url, Topic: direct})
	if err != nil {
		return err
	}
	source, err := b.kafkaTopic("timed")
	if err != nil {
		return err
	}
	topic := servers.Fresh("timed")
	route, err := b.start(ctx, "at_least_once", b.fromKafka(source), b.toPulsar(), topic)
	if err != nil {
		return err
	}
	read, err := timed(measure.Piece{Kind: "timed-kafka", URL: b.kafka, Topic: source},
		measure.Piece{Kind: "timed-consume", URL: b.pulsar.Url, Topic: topic}, measure.Piece{Kind: "timed-read", URL: b.kafka, Topic: source})
	if err == nil {
		err = b.stages(ctx, route)
	}
	if err := errors.Join(err, route.Stop()); err != nil {
		return err
	}
	bridged, there := read[0], read[1]
	b.Row("latency at %d msg/s, p50/p99 ms\t%.2f/%.2f\t\t\tread from Kafka\t%.2f/%.2f\t\tadded %.2f/%.2f", perSecond,
		bridged.P50, bridged.P99, there.P50, there.P99, bridged.P50-there.P50, bridged.P99-there.P99)
	b.Row("\t\t\t\tproduced into Pulsar\t%.2f/%.2f", straight[0].P50, straight[0].P99)
	b.Figure("bridged_p99_ms", bridged.P99)
	b.Figure("read_from_kafka_p99_ms", there.P99)
	b.AtMost("added_latency_p99_ms", bridged.P99-there.P99, 10)
	return nil
}

// stages tells where the route's messages spent their time, as it has sampled it.
func (b *bridgeBench) stages(ctx context.Context, s *servers.Server) error {
	families, err := servers.Metrics(ctx, s.Admin+"/metrics")
	if err != nil {
		return err
	}
	for _, m := range families["pigeonhole_stage_duration_seconds"].GetMetric() {
		var stage string
		for _, l := range m.GetLabel() {
			if l.GetName() == "stage" {
				stage = l.GetValue()
			}
		}
		h := m.GetHistogram()
		below := func(share float64) float64 {
			for _, bucket := range h.GetBucket() {
				if float64(bucket.GetCumulativeCount()) >= share*float64(h.GetSampleCount()) {
					return 1000 * bucket.GetUpperBound()
				}
			}
			return math.Inf(1)
		}
		b.Row("  of it %s (%d sampled)\t\t\t\tp50/p99 below\t%.1f/%.1f", stage, h.GetSampleCount(), below(.5), below(.99))
	}
	return nil
}
