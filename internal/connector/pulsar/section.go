package pulsar

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/aviaryhq/aviary/internal/connector"
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

// trySubscription asks whether the subscription is there: only the admin API can tell without
// making it.
func (c SourceConfig) trySubscription(client *messaging.Client, path, topic string) trial.Trial {
	return trial.Trial{Name: path + ".subscription " + c.Subscription + " of " + topic, Try: func(ctx context.Context) error {
		names, err := client.Topic(topic).Subscriptions(ctx)
		switch {
		case err != nil && !errors.Is(err, messaging.ErrNotFound):
			return err
		case !slices.Contains(names, c.Subscription):
			return trial.Notef("does not exist yet; the first use creates it, if the broker allows that, and begins at the %s message", c.StartAt)
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

// TryDeduplication asks the admin API whether the brokers keep a topic from storing a message twice.
// The topic's own policy, which overrides the namespace's, is not asked for.
func (c SinkConfig) TryDeduplication(ctx context.Context, topic string) error {
	return withClient(ctx, c.Config, func(client *messaging.Client) error {
		return trial.TryDeduplication(ctx, client.Topic(topic).Namespace(), false,
			"a connection that breaks may store messages twice, unless the topic's own policy has it on")
	})
}

// FollowsSource says that a message goes to the partition of the number that it had at its source.
func (c SinkConfig) FollowsSource() bool { return c.Partition == partitionSource }

// Names are the topics that the configuration names.
func (c SourceConfig) Names() []string { return c.Topics }

// Partitions is how many partitions a topic has.
func (c SourceConfig) Partitions(ctx context.Context, topic string) (int, error) {
	return partitionsOf(ctx, c.Config, topic)
}

// Partitions is how many partitions a topic has: 0 when it does not exist.
func (c SinkConfig) Partitions(ctx context.Context, topic string) (int, error) {
	n, err := partitionsOf(ctx, c.Config, topic)
	if errors.Is(err, messaging.ErrTopicNotFound) {
		return 0, nil
	}
	return n, err
}

func partitionsOf(ctx context.Context, cfg messaging.Config, topic string) (n int, err error) {
	err = withClient(ctx, cfg, func(client *messaging.Client) error {
		n, err = client.TryPartitions(ctx, topic)
		return err
	})
	if err != nil {
		return 0, err
	}
	return max(n, 1), nil // a topic without partitions is one
}

func withClient(ctx context.Context, cfg messaging.Config, f func(*messaging.Client) error) error {
	client, err := messaging.Dial(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close(ctx) }() // nothing was published
	return f(client)
}

// SetDefaults is called before the section is decoded.
func (c *SourceConfig) SetDefaults() { *c = DefaultSourceConfig() }

// SetDefaults is called before the section is decoded.
func (c *SinkConfig) SetDefaults() { *c = DefaultSinkConfig() }

// ForEffectivelyOnce returns the section of a route with that guarantee.
func (c SinkConfig) ForEffectivelyOnce() connector.SinkConfig {
	c.EffectivelyOnce = true
	return &c
}

// ForDeadLetters returns the section of a sink for the dead letters of a route whose messages keep
// their partition: these have no order and no partition.
func (c SinkConfig) ForDeadLetters() connector.SinkConfig {
	c.Partition = partitionKey
	return &c
}

// NameRules implements [connector.SinkConfig].
func (c SinkConfig) NameRules() connector.NameRules {
	return connector.NameRules{Separator: '/', Reserved: reserved}
}

// reserved is NameRules.Reserved for Pulsar. It takes every "-partition-" for that of a partition's
// name: the client fails to open topics such as a-partition-b.
func reserved(topic string) string {
	var clauses []string
	local := topic[strings.LastIndexByte(topic, '/')+1:]
	if strings.HasPrefix(local, "__") {
		clauses = append(clauses, `its last part begins with "__", which Pulsar reserves for its own topics`)
	}
	if strings.HasSuffix(local, "__transaction_pending_ack") {
		clauses = append(clauses, `it ends in "__transaction_pending_ack", which Pulsar reserves for its own topics`)
	}
	if at := strings.LastIndex(local, "-partition-"); at >= 0 {
		clauses = append(clauses, fmt.Sprintf("it ends in %q, as Pulsar names the partitions of a topic", local[at:]))
	}
	for part := range strings.SplitSeq(topic, "/") {
		if part == "." || part == ".." {
			clauses = append(clauses, fmt.Sprintf("it has the part %q, which Pulsar's admin API takes for a step in a path", part))
		}
	}
	return strings.Join(clauses, " and ")
}

// Memory is what the source may hold besides the messages that the route has taken: those that were
// received ahead, with the client's overhead of each.
func (c SourceConfig) Memory(int, int64) int64 {
	const each = 512
	return int64(c.PrefetchBytes) + each*int64(c.PrefetchMessages)
}

// Memory is what the sink may hold of inFlight bytes that the route has given it: the batches that
// contain them.
func (c SinkConfig) Memory(_ int, inFlight int64) int64 {
	return min(c.Profile.MaxPendingBytes, inFlight)
}
