package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/aviaryhq/aviary/internal/trial"
)

// Operations of Kafka's access control, as bits.
const (
	mayRead  = 1 << 3
	mayWrite = 1 << 4
	// unknownOperations is the answer of a broker that does not list the allowed operations.
	unknownOperations = math.MinInt32
)

// Try returns the trial of the connection, see [connector.SourceConfig]. If then is given, it
// returns the trials to run after that.
func (c Connection) Try(path string, then func(*kgo.Client) []trial.Trial) (t trial.Trial, end func()) {
	t.Name = path + ".brokers " + strings.Join(c.Brokers, ",")
	client, err := c.client(kgo.RequestRetries(1))
	if err != nil {
		return trial.Of(t.Name, err), func() {}
	}
	t.Try = func(ctx context.Context) error {
		if err := client.Ping(ctx); err != nil {
			return explainEOF(err)
		}
		return reachable(ctx, client)
	}
	if then != nil {
		t.Then = then(client)
	}
	return t, client.Close
}

// reachable returns why the brokers cannot be connected to at their advertised addresses. It is a
// note when some can.
func reachable(ctx context.Context, client *kgo.Client) error {
	request := kmsg.NewPtrMetadataRequest()
	request.Topics = []kmsg.MetadataRequestTopic{} // none, and not all
	response, err := request.RequestWith(ctx, client)
	if err != nil {
		return explainEOF(err)
	}
	ctx, cancel := context.WithTimeout(ctx, trial.Timeout*3/5) // leaves time to report which do not answer
	defer cancel()
	unreachable := make([]error, len(response.Brokers))
	var all sync.WaitGroup
	for i, b := range response.Brokers {
		all.Go(func() {
			if _, err := client.Broker(int(b.NodeID)).Request(ctx, kmsg.NewPtrApiVersionsRequest()); err != nil {
				unreachable[i] = fmt.Errorf("broker %d announces the address %s:%d (advertised.listeners): %w",
					b.NodeID, b.Host, b.Port, explainEOF(err))
			}
		})
	}
	all.Wait()
	unreachable = slices.DeleteFunc(unreachable, func(err error) bool { return err == nil })
	switch {
	case len(unreachable) == 0:
		return nil
	case len(unreachable) < len(response.Brokers):
		return trial.Notef("cannot connect to %d of %d brokers: %s",
			len(unreachable), len(response.Brokers), trial.Plain(unreachable[0]))
	default:
		return unreachable[0]
	}
}

// Try implements [connector.SourceConfig].
func (c SourceConfig) Try(path string) (t trial.Trial, end func()) {
	return c.Connection.Try(path, func(client *kgo.Client) (all []trial.Trial) {
		add := func(name string, try func(context.Context) error) {
			all = append(all, trial.Trial{Name: path + name, Try: try})
		}
		for _, topic := range c.Topics {
			add(": topic "+topic, func(ctx context.Context) error {
				err := tryTopic(ctx, client, topic, mayRead, "read")
				if errors.Is(err, kerr.UnknownTopicOrPartition) {
					return errors.New("does not exist; the source reads it when it exists")
				}
				return err
			})
		}
		if c.Pattern != "" {
			add(".pattern "+c.Pattern, func(ctx context.Context) error { return c.tryPattern(ctx, client) })
		}
		add(".group "+c.Group, func(ctx context.Context) error { return tryGroup(ctx, client, c.Group) })
		return all
	})
}

// Try implements [connector.SinkConfig].
func (c SinkConfig) Try(path string, to []trial.Place) (t trial.Trial, end func()) {
	return c.Connection.Try(path, func(client *kgo.Client) []trial.Trial {
		var all []trial.Trial
		for _, place := range to {
			topic := place.Name
			if topic == "" {
				topic, place.Path = c.Topic, path+".topic"
			}
			if topic == "" {
				all = append(all, trial.Of(place.Path, errors.New("no topic is configured: the sink would refuse each message")))
				continue
			}
			all = append(all, trial.Trial{Name: place.Path + ": topic " + topic, Try: func(ctx context.Context) error {
				return c.tryTopic(ctx, client, topic)
			}})
		}
		return all
	})
}

func (c SinkConfig) tryTopic(ctx context.Context, client *kgo.Client, topic string) error {
	err := tryTopic(ctx, client, topic, mayWrite, "write")
	switch {
	case !errors.Is(err, kerr.UnknownTopicOrPartition):
		return err
	case c.MissingTopic != missingCreate:
		return errors.New("does not exist")
	}
	if err := c.create(ctx, client, topic, true); err != nil {
		return fmt.Errorf("does not exist, and cannot be created: %w", explainEOF(err))
	}
	return trial.Note("does not exist yet; the first use creates it")
}

// denied reports whether an operation is not among those that a broker says are allowed.
func denied(allowed, operation int32) bool {
	return allowed != unknownOperations && allowed&operation == 0
}

// tryTopic returns why a topic cannot be used.
func tryTopic(ctx context.Context, client *kgo.Client, topic string, operation int32, verb string) error {
	topics, err := metadata(ctx, client, topic)
	if err != nil {
		return err
	}
	for _, t := range topics {
		switch err := kerr.ErrorForCode(t.ErrorCode); {
		case errors.Is(err, kerr.TopicAuthorizationFailed):
			return fmt.Errorf("this user may not see it: %w", err)
		case err != nil && !errors.Is(err, kerr.LeaderNotAvailable):
			return err
		case denied(t.AuthorizedOperations, operation):
			return fmt.Errorf("this user may not %s it", verb)
		}
	}
	return nil
}

// metadata asks about topics; about all without any. It creates none.
func metadata(ctx context.Context, client *kgo.Client, topics ...string) ([]kmsg.MetadataResponseTopic, error) {
	request := kmsg.NewPtrMetadataRequest()
	request.IncludeTopicAuthorizedOperations = true
	for _, topic := range topics {
		wanted := kmsg.NewMetadataRequestTopic()
		wanted.Topic = &topic
		request.Topics = append(request.Topics, wanted)
	}
	response, err := request.RequestWith(ctx, client)
	if err != nil {
		return nil, explainEOF(err)
	}
	return response.Topics, nil
}

func (c SourceConfig) tryPattern(ctx context.Context, client *kgo.Client) error {
	pattern, err := compilePattern(c.Pattern)
	if err != nil {
		return err
	}
	topics, err := metadata(ctx, client)
	if err != nil {
		return err
	}
	matches := 0
	for _, t := range topics {
		if t.Topic == nil || t.IsInternal || !pattern.MatchString(*t.Topic) {
			continue
		}
		matches++
		if denied(t.AuthorizedOperations, mayRead) {
			return fmt.Errorf("this user may not read topic %s", *t.Topic)
		}
	}
	if matches == 0 {
		return trial.Note("the pattern matches no topic that this user may see")
	}
	return nil
}

// tryGroup returns why the group cannot be used.
func tryGroup(ctx context.Context, client *kgo.Client, group string) error {
	// Brokers create this topic at the first request for a group.
	if _, err := countPartitions(ctx, client, "__consumer_offsets"); errors.Is(err, kerr.UnknownTopicOrPartition) {
		return trial.Note("not tried: the cluster has no consumer group yet")
	}
	request := kmsg.NewPtrDescribeGroupsRequest()
	request.Groups, request.IncludeAuthorizedOperations = []string{group}, true
	response, err := request.RequestWith(ctx, client)
	if err != nil {
		return explainEOF(err)
	}
	for _, g := range response.Groups {
		switch err := kerr.ErrorForCode(g.ErrorCode); {
		case errors.Is(err, kerr.GroupIDNotFound):
		case errors.Is(err, kerr.GroupAuthorizationFailed):
			return fmt.Errorf("this user may not use it: %w", err)
		case err != nil:
			return err
		case denied(g.AuthorizedOperations, mayRead):
			return errors.New("this user may not use it")
		}
	}
	return nil
}

// FollowsSource implements [connector.PartitionedSink].
func (c SinkConfig) FollowsSource() bool { return c.Partition == partitionSource }

// Names implements [connector.PartitionedSource].
func (c SourceConfig) Names() []string { return c.Topics }

// Partitions implements [connector.PartitionedSource].
func (c Connection) Partitions(ctx context.Context, topic string) (int, error) {
	client, err := c.client(kgo.RequestRetries(1))
	if err != nil {
		return 0, err
	}
	defer client.Close()
	return countPartitions(ctx, client, topic)
}

// Partitions implements [connector.PartitionedSink]. A topic that would be created counts with its
// partitions: 0 when the brokers' default decides.
func (c SinkConfig) Partitions(ctx context.Context, topic string) (int, error) {
	n, err := c.Connection.Partitions(ctx, cmp.Or(topic, c.Topic))
	if errors.Is(err, kerr.UnknownTopicOrPartition) && c.MissingTopic == missingCreate {
		return max(0, int(c.CreatePartitions)), nil
	}
	return n, err
}

func countPartitions(ctx context.Context, client *kgo.Client, topic string) (int, error) {
	topics, err := metadata(ctx, client, topic)
	if err != nil {
		return 0, err
	}
	if len(topics) != 1 {
		return 0, fmt.Errorf("topic %s: the broker did not return its partitions", topic)
	}
	if err := kerr.ErrorForCode(topics[0].ErrorCode); err != nil {
		return 0, fmt.Errorf("topic %s: %w", topic, err)
	}
	return len(topics[0].Partitions), nil
}
