package pigeonhole

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/aviaryhq/aviary/internal/connector"
	"github.com/aviaryhq/aviary/internal/connector/kafka"
	"github.com/aviaryhq/aviary/internal/connector/pulsar"
)

// TestEverySystemMakesItsSourceAndSink: the compiler does not see it.
func TestEverySystemMakesItsSourceAndSink(t *testing.T) {
	for _, field := range reflect.VisibleFields(reflect.TypeFor[SourceConfig]()) {
		assert.True(t, field.Type.Implements(reflect.TypeFor[connector.SourceConfig]()), field.Name)
	}
	for _, field := range reflect.VisibleFields(reflect.TypeFor[SinkConfig]()) {
		assert.True(t, field.Type.Implements(reflect.TypeFor[connector.SinkConfig]()), field.Name)
	}
}

// TestDeadLettersOfARouteThatKeepsPartitionsHaveASinkOfTheirOwn: the route's own takes each offset
// of a partition once, and its topic may have more partitions than that of dead letters.
func TestDeadLettersOfARouteThatKeepsPartitionsHaveASinkOfTheirOwn(t *testing.T) {
	sink := pulsar.DefaultSinkConfig()
	sink.Partition = "source"
	c := RouteConfig{Source: SourceConfig{Kafka: new(kafka.SourceConfig)}, Sink: SinkConfig{Pulsar: &sink}, Guarantee: EffectivelyOnce}
	assert.True(t, c.supportsEffectivelyOnce())
	system, deadLetters := c.deadLetterSink()
	assert.Nil(t, deadLetters, "none are kept")
	assert.Empty(t, system)

	c.DeadLetter.To = "dead"
	system, deadLetters = c.deadLetterSink()
	assert.Equal(t, "pulsar", system)
	own, ok := deadLetters.(*pulsar.SinkConfig)
	assert.True(t, ok)
	assert.Equal(t, []string{AtLeastOnce, "key"}, []string{own.Guarantee, own.Partition})

	_, section := c.sink()
	own, ok = section.(*pulsar.SinkConfig)
	assert.True(t, ok)
	assert.Equal(t, []string{EffectivelyOnce, "source"}, []string{own.Guarantee, own.Partition})

	c.Guarantee = AtLeastOnce
	_, deadLetters = c.deadLetterSink()
	own, ok = deadLetters.(*pulsar.SinkConfig)
	assert.True(t, ok)
	assert.Equal(t, []string{AtLeastOnce, "key"}, []string{own.Guarantee, own.Partition})

	sink.Partition = "key"
	_, deadLetters = c.deadLetterSink()
	assert.Nil(t, deadLetters, "the route's own")
}
