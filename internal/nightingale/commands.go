package nightingale

import (
	"context"
	"flag"
	"strings"

	"github.com/aviaryhq/aviary/internal/setup"
	"github.com/aviaryhq/aviary/internal/trial"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Flags registers the command line's own flags.
func Flags(fs *flag.FlagSet, cfg *Config) {
	const usage = "print the samples of the topic as they arrive, until Ctrl-C; receive no requests"
	fs.BoolFunc("tail", usage, func(string) error {
		cfg.Tail = true
		// A tail often runs on a machine with a receiver, whose admin server has the default port.
		// On a terminal its log lines appear between the samples.
		cfg.Admin.Listen, cfg.Log.Level = "127.0.0.1:0", "warn"
		return nil
	})
	fs.StringVar(&cfg.TailTopic, "tail.topic", cfg.TailTopic, "the `topic` that -tail reads; default: the key topic")
}

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

// Connect returns what -config.connect tries: Pulsar, and the topics that the configuration names
// in full.
func Connect(cfg Config) (trials []trial.Trial, end func()) {
	pulsar, end := trial.Pulsar("pulsar", cfg.Pulsar, cfg.tryTopics)
	return []trial.Trial{pulsar}, end
}

// tryTopics returns the trials of the topics. It cannot try a topic with placeholders, because its
// name depends on the samples.
func (c Config) tryTopics(client *messaging.Client) []trial.Trial {
	var topics []trial.Trial
	asked := c.Topic // the trial of the admin API needs any topic of the namespace
	if before, _, template := strings.Cut(c.Topic, "{"); template {
		asked = before[:strings.LastIndexByte(before, '/')+1] + "aviary-reach"
		topics = append(topics, trial.Of("topic "+c.Topic, trial.Note("not tried: its name depends on the requests")))
	} else {
		topics = append(topics, trial.Publish(client, "topic", c.Topic))
	}
	if overflow := c.Topics.OverflowTopic; overflow != "" {
		asked = overflow
		topics = append(topics, trial.Publish(client, "topics.overflow_topic", overflow))
	}
	switch {
	case messaging.ValidTopic(asked):
		return append(trial.Admin(client, "pulsar", c.Pulsar.AdminURL, asked), topics...)
	case c.Pulsar.AdminURL != "": // the namespace also depends on the samples
		note := trial.Note("not tried: the topic's namespace depends on the requests")
		topics = append(topics, trial.Of("pulsar.admin_url "+c.Pulsar.AdminURL, note))
	}
	return topics
}
