package pulsar

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/aviaryhq/aviary/internal/connector"
	"github.com/aviaryhq/aviary/internal/setup"
	"github.com/aviaryhq/aviary/internal/trial"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Try finds out whether the source can consume; path is its section's.
func (c SourceConfig) Try(path string) (t trial.Trial, end func()) {
	return trial.Pulsar(path, c.Config, func(client *messaging.Client) []trial.Trial {
		if c.Pattern != "" {
			return []trial.Trial{trial.Of(path+".pattern "+c.Pattern, trial.Note("not tried: the running source looks for the topics"))}
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

// trySubscription asks whether the subscription exists. Only the admin API can answer without
// creating it.
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
				all = append(all, trial.Of(place.Path,
					fmt.Errorf("%q is not a valid topic name: the sink would refuse each message", place.Name)))
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

// TryEffectivelyOnce implements [connector.ExactSink]: with admin_url it checks deduplication in the
// namespace, but not the topic's own policy, which overrides that.
func (c SinkConfig) TryEffectivelyOnce(path, topic string) []trial.Trial {
	if c.AdminURL == "" || !messaging.ValidTopic(topic) {
		return nil
	}
	return []trial.Trial{{Name: path + ": deduplication", Try: func(ctx context.Context) error {
		return withClient(ctx, c.Config, func(client *messaging.Client) error {
			return trial.TryDeduplication(ctx, client.Topic(topic).Namespace(), false,
				"a connection that breaks may store messages twice, unless the topic's own policy has it on")
		})
	}}}
}

// FollowsSource implements [connector.PartitionedSink].
func (c SinkConfig) FollowsSource() bool { return c.Partition == partitionSource }

// Names implements [connector.PartitionedSource].
func (c SourceConfig) Names() []string { return c.Topics }

// Offsets implements [connector.PartitionedSource].
func (c SourceConfig) Offsets() bool { return false }

// Partitions implements [connector.PartitionedSource].
func (c SourceConfig) Partitions(ctx context.Context, topic string) (int, error) {
	return partitionsOf(ctx, c.Config, topic)
}

// Partitions implements [connector.PartitionedSink].
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

// System returns Pulsar for Pigeonhole's table of systems.
func System() connector.System {
	return connector.System{
		Name:   system,
		Source: func() connector.SourceConfig { c := DefaultSourceConfig(); return &c },
		Sink:   func() connector.SinkConfig { c := DefaultSinkConfig(); return &c },
	}
}

// SetupCluster implements [connector.SetupSection].
func (c SourceConfig) SetupCluster() messaging.Config { return c.Config }

// SetupCluster implements [connector.SetupSection].
func (c SinkConfig) SetupCluster() messaging.Config { return c.Config }

// AddTo implements [connector.SetupSource]: messages that are published before the first start wait
// in the subscriptions. The topics belong to others.
func (c SourceConfig) AddTo(cluster *setup.Cluster, path string) {
	from := messaging.Earliest()
	if c.StartAt == messaging.StartLatest {
		from = messaging.Latest()
	}
	for _, topic := range c.Topics {
		cluster.Topics = append(cluster.Topics, setup.Topic{
			Path: path + ".topics", Name: topic, OthersCreateIt: true, Subscriptions: map[string]messaging.Position{c.Subscription: from},
		})
	}
	if c.Pattern != "" {
		cluster.Notes = append(cluster.Notes, path+".pattern "+c.Pattern+": its subscriptions are created when the service runs")
	}
}

// ForEffectivelyOnce implements [connector.ExactSink].
func (c SinkConfig) ForEffectivelyOnce() connector.SinkConfig {
	c.EffectivelyOnce = true
	return &c
}

// ForDeadLetters implements [connector.PartitionedSink].
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
			clauses = append(clauses, fmt.Sprintf("it has the part %q, which Pulsar's admin API reads as a step in a path", part))
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
