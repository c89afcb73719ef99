package nightingale

import (
	"context"
	"strings"

	"github.com/aviaryhq/aviary/internal/trial"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Connect returns what -config.connect tries: Pulsar, and the topics that the configuration names in full.
func Connect(cfg Config) (trials []trial.Trial, end func()) {
	pulsar, end := trial.Pulsar("pulsar", cfg.Pulsar, func(client *messaging.Client) []trial.Trial {
		return cfg.tryTopics(client)
	})
	return []trial.Trial{pulsar}, end
}

// tryTopics tries the topics. Of a template the senders fill in the names: there is none to try.
func (c Config) tryTopics(client *messaging.Client) []trial.Trial {
	var topics []trial.Trial
	asked := c.Topic // of the admin API, about any topic of the namespace
	if before, _, template := strings.Cut(c.Topic, "{"); template {
		asked = before[:strings.LastIndexByte(before, '/')+1] + "aviary-reach"
		topics = append(topics, trial.Trial{Name: "topic " + c.Topic, Try: func(context.Context) error {
			return trial.Note("not tried: its name depends on what is sent")
		}})
	} else {
		topics = append(topics, trial.Publish(client, "topic", c.Topic))
	}
	if overflow := c.Topics.OverflowTopic; overflow != "" {
		asked = overflow
		topics = append(topics, trial.Publish(client, "topics.overflow_topic", overflow))
	}
	if !messaging.ValidTopic(asked) { // the namespace depends on what is sent, too
		return topics
	}
	return append(trial.Admin(client, "pulsar", c.Pulsar.AdminURL, asked), topics...)
}
