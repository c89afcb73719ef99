package pigeonhole

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/pigeonhole"
	"github.com/aviaryhq/aviary/internal/trial"
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

// away is an address where nobody listens.
func away(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	return l.Addr().String()
}

// -config.connect tells of each thing of each route, and makes nothing.
func TestConnect(t *testing.T) {
	kafka, rabbit, pulsar := stack.Kafka(t), stack.RabbitMQ(t), stack.Pulsar(t)
	ns := pulsar.Namespace(t)
	topic, queue := kafka.Topic(t, 1), rabbit.Name(t)
	conn, err := amqp.Dial(rabbit.URL())
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, conn.Close()) })
	ch, err := conn.Channel()
	require.NoError(t, err)
	_, err = ch.QueueDeclare(queue, true, false, false, false, nil)
	require.NoError(t, err)
	t.Cleanup(func() { _, err := ch.QueueDelete(queue, false, false, false); assert.NoError(t, err) })
	p := pulsar.Topic(t, ns, 2)
	text := strings.NewReplacer("KAFKA", kafka.Brokers()[0], "RABBIT", "amqp://"+rabbit.Addr()+"/", "ADMIN", pulsar.AdminURL(), "PULSAR", pulsar.URL(),
		"AWAY", away(t), "TOPIC", topic, "QUEUE", queue, "PT", p, "NS", ns)

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
  routes[1].source.rabbitmq.queues[1] QUEUE-2: note: does not exist yet; the start makes it, if this user may
  routes[1].sink.pulsar.url PULSAR: ok
  routes[1].sink.pulsar.admin_url ADMIN: ok
  routes[1].to: topic PT: ok
  routes[1].dead_letter.to: topic persistent://NS/letters: note: does not exist yet; the first use creates it, if the broker allows that
  routes[2].source.pulsar.url PULSAR: ok
  routes[2].source.pulsar.admin_url ADMIN: ok
  routes[2].source.pulsar: topic PT: ok
  routes[2].source.pulsar.subscription s of PT: note: does not exist yet; the first use creates it, and begins at the earliest message
  routes[2].sink.kafka.brokers KAFKA: ok
  routes[2].to: topic TOPIC-2: note: does not exist yet; the first use creates it
  routes[3].source.kafka.brokers KAFKA: ok
  routes[3].source.kafka.pattern TOPIC-none: note: no topic that this user may see matches yet
  routes[3].source.kafka.group never-there: ok
  routes[3].sink.rabbitmq.url RABBIT: ok
  routes[3].sink.rabbitmq.exchange amq.direct: ok
  routes[3].to {key}: note: not tried: it depends on the message
`), strings.ReplaceAll(lines, "note: not known: this cluster has had no group yet", "ok"))

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
		`routes\[0\].source.kafka.brokers AWAY: .*connection refused`,
		`routes\[0\].sink.rabbitmq.url RABBIT: .*wrong user name or password.*`,
		`routes\[0\].to: not tried, because of the above`,
		`routes\[1\].source.kafka: topic TOPIC-missing: does not exist; it is read once it does`,
		`routes\[1\].sink.rabbitmq.exchange QUEUE-exchange: does not exist`,
		`routes\[2\].source.rabbitmq.queues\[0\] QUEUE-2: does not exist`,
		`routes\[2\].source.rabbitmq.queues\[1\] QUEUE: queue "QUEUE" is not as configured: .*`,
		`routes\[2\].to: topic persistent://public/no-such-namespace/x: its namespace does not exist`,
		`routes\[3\].source.rabbitmq.url RABBITother: .*virtual host "other".*`,
		`routes\[3\].sink.kafka.topic: no topic is named: each message would be refused`,
	} {
		assert.Regexp(t, "(?m)^  "+text.Replace(want)+"$", lines)
	}
	stats := pulsar.Stats(t, p)
	assert.Empty(t, stats.Subscriptions)
	_, err = ch.QueueDeclarePassive(queue+"-2", true, false, false, false, nil)
	assert.ErrorContains(t, err, "NOT_FOUND")
	ch, err = conn.Channel() // for the end
	require.NoError(t, err)
}
