package pigeonhole

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/connector"
	"github.com/aviaryhq/aviary/internal/connector/kafka"
	"github.com/aviaryhq/aviary/internal/connector/pulsar"
)

func loadFile(path string) (config.Loaded[Config], error) {
	return config.Load(config.Spec[Config]{
		Name: "pigeonhole", Defaults: DefaultConfig, Args: []string{"-config.file", path, "-config.check"}, Usage: new(bytes.Buffer),
	})
}

// TestTheExamplesHaveEveryPair of systems.
func TestTheExamplesHaveEveryPair(t *testing.T) {
	loaded, err := loadFile("../../configs/examples/pigeonhole.yaml")
	require.NoError(t, err)
	pairs := map[string]bool{}
	for _, r := range loaded.Config.Routes {
		source, _ := only(r.Source)
		sink, _ := only(r.Sink)
		pairs[source+" "+sink] = true
	}
	assert.Len(t, pairs, 9)
	assert.Equal(t, DefaultConfig().InFlight, loaded.Config.InFlight)
	assert.Equal(t, DefaultConfig().Name, loaded.Config.Name)
}

// TestConfigurationFaults: all of a file at once, by path, with what would be right.
func TestConfigurationFaults(t *testing.T) {
	file := filepath.Join(t.TempDir(), "faulty.yaml")
	require.NoError(t, os.WriteFile(file, []byte(`
name: "a b"
in_flight: {messages: 0}
routes:
- name: one
  source: {kafka: {brokers: [], group: g, topics: [x], colour: red}}
  sink: {}
  filter: "key ="
- name: one
  source: {kafka: {brokers: ["a:1"], group: g}, pulsar: {subscription: s, topics: [t]}}
  sink: {rabbitmq: {url: "amqp://u:p@h/"}}
  guarantee: exactly_once
  dead_letter: {sink: {pulsar: {}}}
  to: "{header.}"
- name: two
  source: {rabbitmq: {queues: [{name: q}]}}
  sink: {pulsar: {}}
  guarantee: effectively_once
  dead_letter: {sink: {kafka: {brokers: ["b:1"]}}}
  set: {key: "1 + 1"}
`), 0o600))
	_, err := loadFile(file)
	require.Error(t, err)
	var faults *config.Error
	require.ErrorAs(t, err, &faults)
	text := err.Error()
	for _, want := range []string{
		"name: must be letters", "in_flight.messages: must be > 0", "routes[0].source.kafka.colour: is not a known key", "routes[0].source.kafka.brokers",
		"routes[0].sink: must be one of kafka, rabbitmq, pulsar, got 0", "routes[0].filter: ",
		`routes[1].name: must be unique, "one" is the name of routes[0] too`, "routes[1].source: must be one of kafka, rabbitmq, pulsar, got 2",
		"routes[1].guarantee: must be one of at_least_once, effectively_once", "routes[1].dead_letter.to: must be set", "routes[1].to: ",
		"routes[1].sink.rabbitmq.url: must not hold a user name", "routes[2].guarantee: effectively_once needs source.kafka and sink.pulsar",
		"routes[2].sink.pulsar.partition: must be source with guarantee effectively_once",
		"routes[2].dead_letter.to: must be set with dead_letter.sink", "routes[2].set.key: ",
	} {
		assert.Contains(t, text, want)
	}
	assert.NotContains(t, text, "u:p@", "no password")
	assert.NotContains(t, strings.ToLower(text), "panic")
}

// TestAConfigurationWithoutRoutesIsWarnedOf: it is valid, and probably the wrong file.
func TestAConfigurationWithoutRoutesIsWarnedOf(t *testing.T) {
	file := filepath.Join(t.TempDir(), "none.yaml")
	require.NoError(t, os.WriteFile(file, []byte("name: a\n"), 0o600))
	loaded, err := loadFile(file)
	require.NoError(t, err)
	assert.Equal(t, []string{"routes: the list is empty, so nothing is replicated"}, loaded.Warnings)

	loaded, err = loadFile("../../configs/examples/pigeonhole.yaml")
	require.NoError(t, err)
	assert.Empty(t, loaded.Warnings)
}

// A topic of dead letters may have fewer partitions than the source.
func TestDeadLettersDoNotKeepTheirPartition(t *testing.T) {
	intoKafka, intoPulsar := kafka.DefaultSinkConfig(), pulsar.DefaultSinkConfig()
	toKafka, toPulsar := SinkConfig{"kafka": &intoKafka}, SinkConfig{"pulsar": &intoPulsar}
	into := func(sink SinkConfig) connector.SinkConfig {
		_, section := RouteConfig{Sink: sink, DeadLetter: DeadLetter{To: "letters"}}.deadLetterSink()
		return section
	}
	assert.Nil(t, into(toKafka), "the route's own")
	assert.Nil(t, into(toPulsar), "the route's own")
	intoKafka.Partition, intoPulsar.Partition = "source", "source"
	assert.Equal(t, "key", into(toKafka).(*kafka.SinkConfig).Partition)   //nolint:forcetypeassert // it fails otherwise
	assert.Equal(t, "key", into(toPulsar).(*pulsar.SinkConfig).Partition) //nolint:forcetypeassert // it fails otherwise
	assert.Equal(t, "source", intoPulsar.Partition, "the route's sink stays as it is")
}
