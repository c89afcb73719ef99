package target

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/config"
)

// sections is a configuration with those of this package.
type sections struct {
	Targets     Config      `yaml:"targets"`
	Connections Connections `yaml:"connections"`
}

func load(t *testing.T, text string) (sections, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "eventbridge.yaml")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	loaded, err := config.Load(config.Spec[sections]{
		Name: "eventbridge", Defaults: func() sections { return sections{Targets: DefaultConfig()} }, Args: []string{"-config.file", file},
	})
	return loaded.Config, err
}

func TestConfig(t *testing.T) {
	c, err := load(t, `
targets: {allow: [10.0.0.0/8, "fd00::/8"], ports: [443, 8443]}
connections:
  kafka:
    main: {brokers: [kafka-1:9092]}
  rabbitmq:
    main: {url: amqp://rabbit/orders}
  redis:
    main: {addresses: [redis:6379], password: hidden}
  pulsar:
    other: {url: "pulsar://other:6650"}
`)
	require.NoError(t, err)
	assert.Equal(t, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}, c.Targets.Allow)
	assert.Equal(t, 512, c.Targets.IdleConnections)
	kafka := c.Connections.Kafka["main"]
	assert.Equal(t, []string{"kafka-1:9092"}, kafka.Brokers)
	assert.Equal(t, "eventbridge", kafka.ClientID)
	assert.Equal(t, "lz4", kafka.sink().Compression)
	rabbit := c.Connections.RabbitMQ["main"]
	assert.Equal(t, "eventbridge", rabbit.Name)
	assert.Equal(t, "orders", rabbit.sink("orders").Exchange)
	assert.Equal(t, 32, c.Connections.Redis["main"].MaxConnections)
	assert.Equal(t, "pulsar://other:6650", c.Connections.Pulsar["other"].sink().URL)
}

func TestConfigFaults(t *testing.T) {
	_, err := load(t, `
targets: {allow: [10.0.0.0], ports: [70000], idle_connections: 0, idle_timeout: 1ms}
connections:
  kafka:
    main: {brokers: [], compression: best, topic: x}
  rabbitmq:
    main: {url: "amqp://a:b@rabbit/"}
  redis:
    a: {addresses: [redis], db: -1}
    b: {addresses: ["a:1", "b:2"]}
    c: {tls: {ca_file: /none}}
    d: {tls: {enabled: true, ca_file: /none}}
    f: {password_file: /none}
    e: {cluster: true, master: m, password: x, password_file: y}
  pulsar:
    other: {url: http://other}
`)
	for _, path := range []string{
		"targets.allow[0]", "targets.ports[0]", "targets.idle_connections", "targets.idle_timeout", "connections.kafka.main.brokers",
		"connections.kafka.main.compression", "connections.kafka.main.topic", "connections.rabbitmq.main.url", "connections.redis.a.addresses[0]", "connections.redis.a.db",
		"connections.redis.b.addresses", "connections.redis.c.tls.enabled", "connections.redis.d.tls.ca_file", "connections.redis.e.master",
		"connections.redis.e.password_file", "connections.redis.f.password_file: must name a readable file", "connections.pulsar.other.url",
	} {
		assert.ErrorContains(t, err, path+":")
	}
	assert.NotContains(t, err.Error(), "a:b@")
}

// TestRedisWaitsAsLongAsTheSubscriberSays: the client's own time for an answer would end an attempt
// before its time, which the error then names.
func TestRedisWaitsAsLongAsTheSubscriberSays(t *testing.T) {
	for _, c := range []Redis{{Addresses: []string{"127.0.0.1:1"}}, {Addresses: []string{"127.0.0.1:1"}, Cluster: true}} {
		client, err := c.open()
		require.NoError(t, err)
		read, write := time.Duration(0), time.Duration(0)
		switch client := client.(type) {
		case *redis.Client:
			read, write = client.Options().ReadTimeout, client.Options().WriteTimeout
		case *redis.ClusterClient:
			read, write = client.Options().ReadTimeout, client.Options().WriteTimeout
		}
		assert.Equal(t, 5*time.Minute, read, "the longest delivery.timeout")
		assert.Equal(t, 5*time.Minute, write)
		require.NoError(t, client.Close())
	}
}
