package nightingale

import (
	"context"

	"github.com/aviaryhq/aviary/internal/setup"
)

// Setup returns what -setup creates: the topics that the configuration names in full, and the
// namespaces of all topics as far as they do not depend on the samples.
func Setup(_ context.Context, cfg Config) ([]setup.Cluster, error) {
	c := setup.Cluster{Path: "pulsar", Pulsar: cfg.Pulsar}
	topic := setup.Topic{
		Path: "topic", Name: cfg.Topic, Partitions: cfg.Setup.Partitions,
		WhyNoGrowth: "a series would move to another partition, and its samples would lose their order",
	}
	c.AddTopic(topic, cfg.Setup)
	if cfg.Topics.OverflowTopic != "" {
		topic.Path, topic.Name = "topics.overflow_topic", cfg.Topics.OverflowTopic
		c.AddTopic(topic, cfg.Setup)
	}
	return []setup.Cluster{c}, nil
}
