package pulsar

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/aviaryhq/aviary/internal/trial"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Try finds out whether the source can consume; path is its section's.
func (c SourceConfig) Try(path string) (t trial.Trial, end func()) {
	return trial.Pulsar(path, c.Config, func(client *messaging.Client) []trial.Trial {
		if c.Pattern != "" {
			return []trial.Trial{trial.Of(path+".pattern "+c.Pattern, trial.Note("not tried: its topics are looked for when it runs"))}
		}
		all := trial.Admin(client, path, c.AdminURL, c.Topics[0])
		for _, topic := range c.Topics {
			one := trial.Consume(client, path+": topic", topic)
			if c.AdminURL != "" {
				one.Then = []trial.Trial{c.trySubscription(client, path, topic)}
			}
			all = append(all, one)
		}
		return all
	})
}

// trySubscription asks whether the subscription is there: only the admin API can tell without making it.
func (c SourceConfig) trySubscription(client *messaging.Client, path, topic string) trial.Trial {
	return trial.Trial{Name: path + ".subscription " + c.Subscription + " of " + topic, Try: func(ctx context.Context) error {
		names, err := client.Topic(topic).Subscriptions(ctx)
		switch {
		case err != nil && !errors.Is(err, messaging.ErrNotFound):
			return err
		case !slices.Contains(names, c.Subscription):
			return trial.Notef("does not exist yet; the first use creates it, and begins at the %s message", c.StartAt)
		}
		return nil
	}}
}

// Try finds out whether the sink can publish to the places that are known; path is its section's.
func (c SinkConfig) Try(path string, to []trial.Place) (t trial.Trial, end func()) {
	return trial.Pulsar(path, c.Config, func(client *messaging.Client) []trial.Trial {
		var all []trial.Trial
		for i, place := range to {
			if !messaging.ValidTopic(place.Name) {
				all = append(all, trial.Of(place.Path, fmt.Errorf("%q is no topic's name: each message would be refused", place.Name)))
				continue
			}
			if i == 0 {
				all = append(all, trial.Admin(client, path, c.AdminURL, place.Name)...)
			}
			all = append(all, trial.Publish(client, place.Path+": topic", place.Name))
		}
		return all
	})
}
