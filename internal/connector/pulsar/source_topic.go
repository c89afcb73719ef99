package pulsar

import (
	"fmt"

	"github.com/aviaryhq/aviary/internal/connector/lane"
	"github.com/aviaryhq/aviary/internal/connector/message"
)

// sourceTopic is the topic that a writer's messages come from. Its offsets mean nothing
// beside those of another, be it one of the same name that was made anew or is another
// cluster's.
type sourceTopic struct {
	system, cluster, topic string
	id                     string // empty where the brokers give none, or a message was stored before it was told
}

func sourceOf(f *message.From) sourceTopic {
	return sourceTopic{f.System, f.Cluster, f.Topic, f.TopicID}
}

// sourceOfLast is the one that a stored message comes from.
func sourceOfLast(o *message.Origin) sourceTopic {
	return sourceTopic{o.System, o.Cluster, o.Topic, o.ID}
}

// is reports whether both are one topic, as far as they tell. An id tells more than the
// cluster's name, which is the configuration's and may change.
func (s sourceTopic) is(other sourceTopic) bool {
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

// producer is the name of the topic's producer, by which brokers tell what they have
// stored: each topic has offsets, and so a name, of its own.
func (s sourceTopic) producer(prefix string) string {
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

// otherSource refuses a partition whose last message comes from another topic.
func (w *writer) otherSource(holds sourceTopic) error {
	text := "partition %d of %s holds messages of %s, and is to take those of %s: effectively_once allows no others"
	if holds.id != "" && w.source.id != "" {
		text += "; to go on behind them, list the former id in former_sources"
	}
	return lane.Refuse("other_source", fmt.Errorf(text, w.key.partition, w.key.topic, holds, w.source))
}

// takenBy is what becomes of another topic's messages while the writer is open. A topic
// that was made anew waits until what is left of the former one is stored.
func (w *writer) takenBy(other sourceTopic) error {
	if w.source.topic == other.topic {
		return fmt.Errorf("partition %d of %s still takes messages of %s: %s waits", w.key.partition, w.key.topic, w.source, other)
	}
	return lane.Refuse("other_source", fmt.Errorf("partition %d of %s takes messages of %s, effectively_once allows no others: %s",
		w.key.partition, w.key.topic, w.source, other))
}
