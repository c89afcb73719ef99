package nightingale

import (
	"strings"

	"github.com/aviaryhq/aviary/internal/trial"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

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
		topics = append(topics, trial.Of("topic "+c.Topic, trial.Note("not tried: its name depends on what is sent")))
	} else {
		topics = append(topics, trial.Publish(client, "topic", c.Topic))
	}
	if overflow := c.Topics.OverflowTopic; overflow != "" {
		asked = overflow
		topics = append(topics, trial.Publish(client, "topics.overflow_topic", overflow))
	}
	if !messaging.ValidTopic(asked) { // the namespace also depends on the samples
		if c.Pulsar.AdminURL != "" {
			topics = append(topics, trial.Of("pulsar.admin_url "+c.Pulsar.AdminURL, trial.Note("not tried: the topic's namespace depends on what is sent")))
		}
		return topics
	}
	return append(trial.Admin(client, "pulsar", c.Pulsar.AdminURL, asked), topics...)
}
