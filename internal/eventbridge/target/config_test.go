package target

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

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
		Name: "eventbridge", Defaults: func() sections { return sections{} }, Args: []string{"-config.file", file},
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
  pulsar:
    other: {url: "pulsar://other:6650"}
`)
	require.NoError(t, err)
	assert.Equal(t, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}, c.Targets.Allow)
	kafka := c.Connections.Kafka["main"]
	assert.Equal(t, []string{"kafka-1:9092"}, kafka.Brokers)
	assert.Equal(t, "eventbridge", kafka.ClientID)
	assert.Equal(t, "lz4", kafka.sink().Compression)
	rabbit := c.Connections.RabbitMQ["main"]
	assert.Equal(t, "eventbridge", rabbit.Name)
	assert.Equal(t, "orders", rabbit.sink("orders").Exchange)
	assert.Equal(t, "pulsar://other:6650", c.Connections.Pulsar["other"].sink().URL)
}

func TestConfigFaults(t *testing.T) {
	_, err := load(t, `
targets: {allow: [10.0.0.0], ports: [70000]}
connections:
  kafka:
    main: {brokers: [], compression: best, topic: x}
  rabbitmq:
    main: {url: "amqp://a:b@rabbit/"}
  pulsar:
    other: {url: http://other}
`)
	for _, path := range []string{
		"targets.allow[0]", "targets.ports[0]", "connections.kafka.main.brokers",
		"connections.kafka.main.compression", "connections.kafka.main.topic", "connections.rabbitmq.main.url",
		"connections.pulsar.other.url",
	} {
		assert.ErrorContains(t, err, path+":")
	}
	assert.NotContains(t, err.Error(), "a:b@")
}
