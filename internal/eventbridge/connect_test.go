package eventbridge_test

import (
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/eventbridge"
	"github.com/aviaryhq/aviary/internal/trial"
	"github.com/aviaryhq/aviary/test/stack"
)

// -config.connect tells of each thing, and makes nothing.
func TestConnect(t *testing.T) {
	pulsar, kafka, rabbit := stack.Pulsar(t), stack.Kafka(t), stack.RabbitMQ(t)
	ns := pulsar.Namespace(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	text := strings.NewReplacer("PULSAR", pulsar.URL(), "ADMIN", pulsar.AdminURL(), "NS", ns, "KAFKA", kafka.Brokers()[0], "RABBIT", "amqp://"+rabbit.Addr()+"/",
		"AWAY", l.Addr().String())
	try := func(yaml string) (lines string, failed int) {
		cfg, err := load(t, text.Replace(yaml), nil)
		require.NoError(t, err)
		trials, end := eventbridge.Connect(cfg)
		defer end()
		var out strings.Builder
		_, failed = trial.Run(t.Context(), trials, &out)
		assert.NotContains(t, out.String(), "secret")
		return out.String(), failed
	}

	lines, failed := try(`
pulsar: {url: PULSAR, admin_url: ADMIN}
topics: {namespace: NS}
connections:
  kafka: {k: {brokers: [KAFKA]}}
  rabbitmq: {m: {url: RABBIT}}
  pulsar: {p: {url: PULSAR}}
`)
	assert.Zero(t, failed)
	assert.Equal(t, text.Replace(`  pulsar.url PULSAR: ok
  pulsar.admin_url ADMIN: ok
  topics.namespace NS, admin: ok
  topics.namespace NS, deduplication: note: not set at the namespace, the brokers' default applies: ordered subscribers need it
  topics.namespace NS, retention: ok
  topics.namespace, to write persistent://NS/eventbridge-registry: note: does not exist yet; the first use creates it, if the broker allows that
  topics.namespace, to read persistent://NS/eventbridge-registry: note: does not exist yet; the first use creates it, if the broker allows that
  connections.kafka.k.brokers KAFKA: ok
  connections.rabbitmq.m.url RABBIT: ok
  connections.pulsar.p.url PULSAR: ok
`), lines)

	lines, failed = try(`
pulsar: {url: PULSAR, admin_url: ADMIN}
topics: {namespace: public/no-such-namespace}
connections:
  kafka: {k: {brokers: [AWAY]}}
  rabbitmq: {m: {url: RABBIT, password: secret}}
  pulsar: {p: {url: pulsar://AWAY}}
`)
	assert.Equal(t, 7, failed, lines)
	for _, want := range []string{
		"topics.namespace public/no-such-namespace, deduplication: failed: .*404 Not Found: .*",
		"topics.namespace, to write persistent://public/no-such-namespace/eventbridge-registry: failed: its namespace does not exist; -setup creates it",
		"connections.kafka.k.brokers AWAY: failed: .*connection refused",
		"connections.rabbitmq.m.url RABBIT: failed: .*wrong user name or password.*",
		"connections.pulsar.p.url pulsar://AWAY: failed: .*connection refused",
	} {
		assert.Regexp(t, "(?m)^  "+text.Replace(want)+"$", lines)
	}
}
