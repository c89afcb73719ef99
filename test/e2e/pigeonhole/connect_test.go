package pigeonhole

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/aviaryhq/aviary/test/systems/rabbitmq"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/pigeonhole"
	"github.com/aviaryhq/aviary/internal/trial"
	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/stack"
)

// tried has -config.connect's trials of a configuration made.
func tried(t *testing.T, text string) (lines string, failed int) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "pigeonhole.yaml")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	loaded, err := config.Load(config.Spec[pigeonhole.Config]{
		Name: "pigeonhole", Defaults: pigeonhole.DefaultConfig, Args: []string{"-config.file", file, "-config.connect"}, Usage: os.Stderr,
	})
	require.NoError(t, err)
	trials, end := pigeonhole.Connect(loaded.Config)
	defer end()
	var out strings.Builder
	_, failed = trial.Run(t.Context(), trials, &out)
	return out.String(), failed
}

// unreachable is an address where nobody listens.
func unreachable(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	return l.Addr().String()
}

func pulsarConfig(srv *stack.PulsarServer) messaging.Config {
	cfg := messaging.DefaultConfig()
	cfg.URL, cfg.AdminURL = srv.URL(), srv.AdminURL()
	return cfg
}

// -config.connect tells of each thing of each route, and makes nothing.
func TestConnect(t *testing.T) {
	t.Parallel()
	kafka, rabbit, pulsar := stack.Kafka(t), stack.RabbitMQ(t), stack.Pulsar(t)
	ns := pulsar.Namespace(t)
	topic, queue := kafka.Topic(t, 1), rabbit.Name(t)
	require.NoError(t, rabbitmq.Declare(rabbit.URL(), queue))
	t.Cleanup(func() { assert.NoError(t, rabbitmq.Delete(rabbit.URL(), queue)) })
	p := pulsar.Topic(t, ns, 2)
	text := strings.NewReplacer("KAFKA", kafka.Brokers()[0], "RABBIT", "amqp://"+rabbit.Addr()+"/", "ADMIN", pulsar.AdminURL(), "PULSAR", pulsar.URL(),
		"AWAY", unreachable(t), "TOPIC", topic, "QUEUE", queue, "PT", p, "NS", ns)

	lines, failed := tried(t, text.Replace(`
routes:
- name: a
  source: {kafka: {brokers: [KAFKA], group: never-there, topics: [TOPIC]}}
  sink: {rabbitmq: {url: RABBIT}}
  to: QUEUE
- name: b
  source: {rabbitmq: {url: RABBIT, declare: create, queues: [{name: QUEUE}, {name: QUEUE-2}]}}
  sink: {pulsar: {url: PULSAR, admin_url: ADMIN}}
  to: PT
  dead_letter: {to: "persistent://NS/letters"}
- name: c
  source: {pulsar: {url: PULSAR, admin_url: ADMIN, subscription: s, topics: [PT]}}
  sink: {kafka: {brokers: [KAFKA], missing_topic: create}}
  to: TOPIC-2
- name: d
  source: {kafka: {brokers: [KAFKA], group: never-there, pattern: TOPIC-none}}
  sink: {rabbitmq: {url: RABBIT, exchange: amq.direct}}
  to: "{key}"
`))
	assert.Zero(t, failed)
	assert.Equal(t, text.Replace(`  routes[0].source.kafka.brokers KAFKA: ok
  routes[0].source.kafka: topic TOPIC: ok
  routes[0].source.kafka.group never-there: ok
  routes[0].sink.rabbitmq.url RABBIT: ok
  routes[0].to: queue QUEUE: ok
  routes[1].source.rabbitmq.url RABBIT: ok
  routes[1].source.rabbitmq.queues[0] QUEUE: ok
  routes[1].source.rabbitmq.queues[1] QUEUE-2: note: does not exist yet; the start creates it, if this user may do that
  routes[1].sink.pulsar.url PULSAR: ok
  routes[1].sink.pulsar.admin_url ADMIN: ok
  routes[1].to: topic PT: ok
  routes[1].dead_letter.to: topic persistent://NS/letters: note: does not exist yet; the first use creates it, if the broker allows that
  routes[2].source.pulsar.url PULSAR: ok
  routes[2].source.pulsar.admin_url ADMIN: ok
  routes[2].source.pulsar: topic PT: ok
  routes[2].source.pulsar.subscription s of PT: note: does not exist yet; the first use creates it, if the broker allows that, and begins at the earliest message
  routes[2].sink.kafka.brokers KAFKA: ok
  routes[2].to: topic TOPIC-2: note: does not exist yet; the first use creates it
  routes[3].source.kafka.brokers KAFKA: ok
  routes[3].source.kafka.pattern TOPIC-none: note: the pattern matches no topic that this user may see
  routes[3].source.kafka.group never-there: ok
  routes[3].sink.rabbitmq.url RABBIT: ok
  routes[3].sink.rabbitmq.exchange amq.direct: ok
  routes[3].to {key}: note: not tried: it depends on the message
`), strings.ReplaceAll(lines, "note: not tried: the cluster has no consumer group yet", "ok"))

	lines, failed = tried(t, text.Replace(`
routes:
- name: a
  source: {kafka: {brokers: [AWAY], group: g, topics: [TOPIC]}}
  sink: {rabbitmq: {url: RABBIT, username: guest, password: hunter2}}
- name: b
  source: {kafka: {brokers: [KAFKA], group: g, topics: [TOPIC-missing]}}
  sink: {rabbitmq: {url: RABBIT, exchange: QUEUE-exchange}}
- name: c
  source: {rabbitmq: {url: RABBIT, queues: [{name: QUEUE-2}, {name: QUEUE, type: quorum}]}}
  sink: {pulsar: {url: PULSAR, admin_url: ADMIN}}
  to: persistent://public/no-such-namespace/x
- name: d
  source: {rabbitmq: {url: RABBITother, queues: [{name: QUEUE}]}}
  sink: {kafka: {brokers: [KAFKA]}}
`))
	assert.Equal(t, 13, failed)
	assert.NotContains(t, lines, "hunter2")
	for _, want := range []string{
		`routes\[0\].source.kafka.brokers AWAY: failed: .*connection refused`,
		`routes\[0\].sink.rabbitmq.url RABBIT: failed: .*wrong user name or password.*`,
		`routes\[0\].to: not tried: the check above failed`,
		`routes\[1\].source.kafka: topic TOPIC-missing: failed: does not exist: create it; a running service reads it from then on`,
		`routes\[1\].sink.rabbitmq.exchange QUEUE-exchange: failed: does not exist`,
		`routes\[2\].source.rabbitmq.queues\[0\] QUEUE-2: failed: does not exist`,
		`routes\[2\].source.rabbitmq.queues\[1\] QUEUE: failed: queue "QUEUE" is not as configured: .*`,
		`routes\[2\].to: topic persistent://public/no-such-namespace/x: failed: its namespace does not exist; -setup creates it`,
		`routes\[3\].source.rabbitmq.url RABBITother: failed: .*virtual host "other".*`,
		`routes\[3\].sink.kafka.topic: failed: no topic is configured: the sink would refuse each message`,
	} {
		assert.Regexp(t, "(?m)^  "+text.Replace(want)+"$", lines)
	}
	// Who keeps the number of a partition needs as many.
	three, two := kafka.Topic(t, 3), pulsar.Topic(t, ns, 2)
	text = strings.NewReplacer("KAFKA", kafka.Brokers()[0], "PULSAR", pulsar.URL(), "THREE", three, "TWO", two, "NS", ns, "ENOUGH", pulsar.Topic(t, ns, 3),
		"ONE", kafka.Topic(t, 1), "WIDE", kafka.Topic(t, 2), "ADMIN", pulsar.AdminURL())
	client, err := messaging.Dial(t.Context(), pulsarConfig(pulsar))
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, client.Close(context.Background())) })
	require.NoError(t, client.Namespace(ns).SetDeduplication(t.Context(), false))
	lines, failed = tried(t, text.Replace(`
routes:
- {name: a, source: {kafka: {brokers: [KAFKA], group: g, topics: [ONE, THREE]}}, sink: {pulsar: {url: PULSAR, partition: source}}, to: TWO, guarantee: effectively_once}
- {name: b, source: {kafka: {brokers: [KAFKA], group: g, topics: [THREE]}}, sink: {pulsar: {url: PULSAR, partition: source}}, to: "persistent://NS/none"}
- {name: c, source: {kafka: {brokers: [KAFKA], group: g, topics: [THREE]}}, sink: {pulsar: {url: PULSAR, partition: source}}, to: ENOUGH}
- {name: d, source: {kafka: {brokers: [KAFKA], group: g, topics: [ONE]}}, sink: {pulsar: {url: PULSAR, partition: source}}, to: "persistent://NS/none"}
- {name: e, source: {kafka: {brokers: [KAFKA], group: g, topics: [THREE]}}, sink: {pulsar: {url: PULSAR}}, to: TWO}
- {name: f, source: {pulsar: {url: PULSAR, subscription: s, topics: [ENOUGH]}}, sink: {kafka: {brokers: [KAFKA], partition: source}}, to: WIDE}
- {name: g, source: {pulsar: {url: PULSAR, subscription: s, topics: [ENOUGH]}},
   sink: {kafka: {brokers: [KAFKA], partition: source, missing_topic: create, create_partitions: 3}}, to: WIDE-2}
- {name: h, source: {kafka: {brokers: [KAFKA], group: g, pattern: "THREE.*"}}, sink: {pulsar: {url: PULSAR, partition: source}}, to: TWO}
- {name: i, source: {kafka: {brokers: [KAFKA], group: g, topics: [THREE]}}, sink: {pulsar: {url: PULSAR, admin_url: ADMIN, partition: source}}, to: ENOUGH,
   guarantee: effectively_once, dead_letter: {to: TWO, sink: {pulsar: {url: PULSAR, partition: source}}}}
`))
	assert.Equal(t, 4, failed, lines)
	for _, want := range []string{
		`routes\[0\].to: partitions: failed: it has 2 partitions and THREE has 3: the sink would refuse messages from the other partitions`,
		`routes\[1\].to: partitions: failed: create it with 3 partitions, as many as THREE has: .*`,
		`routes\[2\].to: partitions: ok`,
		`routes\[3\].to: partitions: ok`,
		`routes\[5\].to: partitions: failed: it has 2 partitions and ENOUGH has 3: .*`,
		`routes\[6\].to: partitions: ok`,
		`routes\[7\].to: partitions: note: the number of partitions of the source is not known: it has a topic pattern`,
		`routes\[8\].to: partitions: ok`,
		`routes\[8\].to: deduplication: note: off: a connection that breaks may store messages twice, unless .*`,
		`routes\[8\].dead_letter.to: partitions: failed: it has 2 partitions and THREE has 3: .*`,
	} {
		assert.Regexp(t, "(?m)^  "+text.Replace(want)+"$", lines)
	}
	assert.NotContains(t, lines, "routes[4].to: partitions")

	stats := pulsar.Stats(t, p)
	assert.Empty(t, stats.Subscriptions)
	assert.ErrorContains(t, rabbitmq.With(rabbit.URL(), func(c *amqp.Channel) error {
		_, err := c.QueueDeclarePassive(queue+"-2", true, false, false, false, nil)
		return err
	}), "NOT_FOUND")
}
