package pigeonhole

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/connector/kafka"
	"github.com/aviaryhq/aviary/internal/connector/message"
	"github.com/aviaryhq/aviary/internal/connector/pipeline"
	"github.com/aviaryhq/aviary/internal/connector/pulsar"
	"github.com/aviaryhq/aviary/internal/connector/rabbitmq"
	"github.com/aviaryhq/aviary/internal/pigeonhole/transform"
)

// TestSectionsOfEverySystem: each use of a system's factory is another section, under its own name.
func TestSectionsOfEverySystem(t *testing.T) {
	names := map[string]bool{}
	for _, s := range systems() {
		assert.False(t, names[s.Name], s.Name)
		names[s.Name] = true
		source, sink := s.Source(), s.Sink()
		assert.NotSame(t, source, s.Source())
		assert.NotSame(t, sink, s.Sink())
	}
}

// TestDeadLettersOfARouteThatKeepsPartitionsHaveASinkOfTheirOwn: the route's own takes each offset
// of a partition once, and its topic may have more partitions than that of dead letters.
func TestDeadLettersOfARouteThatKeepsPartitionsHaveASinkOfTheirOwn(t *testing.T) {
	sink := pulsar.DefaultSinkConfig()
	sink.Partition = "source"
	c := RouteConfig{
		Name: "r", Source: SourceConfig{"kafka": new(kafka.SourceConfig)}, Sink: SinkConfig{"pulsar": &sink}, Guarantee: EffectivelyOnce, Provenance: provenanceFull,
	}
	require.NoError(t, c.Validate())
	system, deadLetters := c.deadLetterSink()
	assert.Nil(t, deadLetters, "none are kept")
	assert.Empty(t, system)

	c.DeadLetter.To = "dead"
	system, deadLetters = c.deadLetterSink()
	assert.Equal(t, "pulsar", system)
	own, ok := deadLetters.(*pulsar.SinkConfig)
	assert.True(t, ok)
	assert.Equal(t, []any{false, "key"}, []any{own.EffectivelyOnce, own.Partition})

	_, section := c.sink()
	own, ok = section.(*pulsar.SinkConfig)
	assert.True(t, ok)
	assert.Equal(t, []any{true, "source"}, []any{own.EffectivelyOnce, own.Partition})

	c.Guarantee = AtLeastOnce
	_, deadLetters = c.deadLetterSink()
	own, ok = deadLetters.(*pulsar.SinkConfig)
	assert.True(t, ok)
	assert.Equal(t, []any{false, "key"}, []any{own.EffectivelyOnce, own.Partition})

	sink.Partition = "key"
	_, deadLetters = c.deadLetterSink()
	assert.Nil(t, deadLetters, "the route's own")
}

// TestRoutesHaveTheRulesOfTheirSink: a value of a message must not name what the sink's system
// reserves.
func TestRoutesHaveTheRulesOfTheirSink(t *testing.T) {
	intoKafka, intoRabbitMQ, intoPulsar := kafka.DefaultSinkConfig(), rabbitmq.DefaultSinkConfig(), pulsar.DefaultSinkConfig()
	for name, sink := range map[string]SinkConfig{
		"__consumer_offsets": {"kafka": &intoKafka}, "amq.gen-1": {"rabbitmq": &intoRabbitMQ}, "a/b/c": {"pulsar": &intoPulsar},
	} {
		changes, err := RouteConfig{Sink: sink, Config: transform.Config{To: "{key}"}}.newTransform()
		require.NoError(t, err)
		_, _, err = changes.Apply(&message.Message{Key: []byte(name)})
		reason, _ := pipeline.Refused(err)
		assert.Equal(t, "template", reason, name)
	}
}

// TestOneSystemsTopicKeepsItsName: {topic} alone is exempt from the rules, if source and sink are of
// one system.
func TestOneSystemsTopicKeepsItsName(t *testing.T) {
	fromKafka, fromPulsar, intoPulsar := kafka.DefaultSourceConfig(), pulsar.DefaultSourceConfig(), pulsar.DefaultSinkConfig()
	for topic, says := range map[string]string{
		"a/b/c": "contains '/'", "__c": `begins with "__"`, "c-partition-0": "partitions of a topic", "..": "step in a path", "c": "",
	} {
		m := &message.Message{From: message.From{Topic: topic}}
		same, err := RouteConfig{Source: SourceConfig{"pulsar": &fromPulsar}, Sink: SinkConfig{"pulsar": &intoPulsar}, Config: transform.Config{To: "{topic}"}}.newTransform()
		require.NoError(t, err)
		to, _, err := same.Apply(m)
		require.NoError(t, err)
		assert.Equal(t, topic, to)
		other, err := RouteConfig{Source: SourceConfig{"kafka": &fromKafka}, Sink: SinkConfig{"pulsar": &intoPulsar}, Config: transform.Config{To: "{topic}"}}.newTransform()
		require.NoError(t, err)
		if _, _, err = other.Apply(m); says == "" {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, says)
		}
	}
}
