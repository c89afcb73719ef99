package pulsar

import (
	"fmt"

	"github.com/aviaryhq/aviary/internal/connector/message"
	"github.com/aviaryhq/aviary/internal/connector/pipeline"
)

// sourceTopic is the topic that a writer's messages come from. Its offsets cannot be compared with
// those of another topic, not even of one with the same name that was created again or is in another
// cluster.
type sourceTopic struct {
	system, cluster, topic string
	id                     string // empty where the brokers have none, or it was not known when a message was stored
}

func sourceOf(f *message.From) sourceTopic {
	return sourceTopic{f.System, f.Cluster, f.Topic, f.TopicID}
}

// sourceOfLast is the sourceTopic that a stored message comes from.
func sourceOfLast(o *message.Origin) sourceTopic {
	return sourceTopic{o.System, o.Cluster, o.Topic, o.ID}
}

// same reports whether both are one topic, as far as their fields tell. The id comes before the
// cluster's name, which is only a configured name and may change.
func (s sourceTopic) same(other sourceTopic) bool {
	switch {
	case s.topic != other.topic:
		return false
	case s.id != "" && other.id != "":
		return s.id == other.id
	case s.cluster != "" && other.cluster != "":
		return s.system == other.system && s.cluster == other.cluster
	default:
		return true
	}
}

// producerName is the name of the topic's producer. Brokers deduplicate by producer name and sequence
// id, which is the offset, so each source topic has a name of its own.
func (s sourceTopic) producerName(prefix string) string {
	if s.id == "" {
		return prefix + "-" + s.topic
	}
	return prefix + "-" + s.topic + "-" + s.id
}

// String is the topic for people.
func (s sourceTopic) String() string {
	if s.id == "" {
		return message.PlaceName(s.system, s.cluster, s.topic)
	}
	return message.PlaceName(s.system, s.cluster, s.topic) + " (id " + s.id + ")"
}

// refuseOtherSource refuses a partition whose last message comes from another topic.
func (w *writer) refuseOtherSource(holds sourceTopic) error {
	text := "partition %d of %s holds messages of %s, and is to take those of %s: effectively_once allows no others"
	if holds.id != "" && w.source.id != "" {
		text += "; to go on behind them, list the former id in former_sources"
	}
	return pipeline.Refuse("other_source", fmt.Errorf(text, w.key.partition, w.key.topic, holds, w.source))
}

// otherSourceError is the outcome of another topic's messages while the writer is open. It is not
// final for a topic that was created again: its messages wait until the writer has stored those of
// the former topic.
func (w *writer) otherSourceError(other sourceTopic) error {
	if w.source.topic == other.topic {
		return fmt.Errorf("partition %d of %s still takes messages of %s: %s waits", w.key.partition, w.key.topic, w.source, other)
	}
	return pipeline.Refuse("other_source", fmt.Errorf("partition %d of %s takes messages of %s, effectively_once allows no others: %s",
		w.key.partition, w.key.topic, w.source, other))
}
