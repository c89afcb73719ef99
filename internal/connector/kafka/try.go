package kafka

import (
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
	// unknownOperations is what a broker answers that does not list the allowed operations.
	unknownOperations = math.MinInt32
)

// offsetsTopic stores the offsets of groups. Brokers create it at the first request for a group.
const offsetsTopic = "__consumer_offsets"

// Try finds out whether the cluster can be connected to; path is the section's. then has what is
// tried behind it.
func (c Connection) Try(path string, then func(*kgo.Client) []trial.Trial) (t trial.Trial, end func()) {
	t.Name = path + ".brokers " + strings.Join(c.Brokers, ",")
	c.ConnectTimeout = min(c.ConnectTimeout, trial.Timeout)
	client, err := c.plainClient()
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

// lookTime bounds how long brokers are waited for: less than a trial, which has to say which of
// them do not answer.
const lookTime = trial.Timeout * 3 / 5

// reachable returns why the brokers cannot be connected to where they say that they are. It is a
// note when some can.
func reachable(ctx context.Context, client *kgo.Client) error {
	request := kmsg.NewPtrMetadataRequest()
	request.Topics = []kmsg.MetadataRequestTopic{} // none, and not all
	response, err := request.RequestWith(ctx, client)
	if err != nil {
		return explainEOF(err)
	}
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	unreachable := make([]error, len(response.Brokers))
	var all sync.WaitGroup
	for i, b := range response.Brokers {
		all.Go(func() {
			if _, err := client.Broker(int(b.NodeID)).Request(ctx, kmsg.NewPtrApiVersionsRequest()); err != nil {
				unreachable[i] = fmt.Errorf("broker %d says that it is at %s:%d (advertised.listeners): %w", b.NodeID, b.Host, b.Port, explainEOF(err))
			}
		})
	}
	all.Wait()
	unreachable = slices.DeleteFunc(unreachable, func(err error) bool { return err == nil })
	switch {
	case len(unreachable) == 0:
		return nil
	case len(unreachable) < len(response.Brokers):
		return trial.Notef("%d of %d brokers cannot be connected to: %s", len(unreachable), len(response.Brokers), trial.Plain(unreachable[0]))
	default:
		return unreachable[0]
	}
}

// plainClient is one that only asks. What it asks fails when it fails.
func (c Connection) plainClient() (*kgo.Client, error) {
	options := []kgo.Opt{
		kgo.SeedBrokers(c.Brokers...), kgo.ClientID(c.ClientID), kgo.Dialer(c.dial), kgo.DisableClientMetrics(), kgo.RequestRetries(1),
	}
	mechanism, err := c.SASL.mechanism()
	if err != nil {
		return nil, err
	}
	if mechanism != nil {
		options = append(options, kgo.SASL(mechanism))
	}
	return kgo.NewClient(options...)
}

// Try finds out whether the source can read; path is its section's.
func (c SourceConfig) Try(path string) (t trial.Trial, end func()) {
	return c.Connection.Try(path, func(client *kgo.Client) []trial.Trial {
		var all []trial.Trial
		for _, topic := range c.Topics {
			all = append(all, trial.Trial{Name: path + ": topic " + topic, Try: func(ctx context.Context) error {
				return readable(ctx, client, topic)
			}})
		}
		if c.Pattern != "" {
			all = append(all, trial.Trial{Name: path + ".pattern " + c.Pattern, Try: func(ctx context.Context) error { return c.tryPattern(ctx, client) }})
		}
		return append(all, trial.Trial{Name: path + ".group " + c.Group, Try: func(ctx context.Context) error { return tryGroup(ctx, client, c.Group) }})
	})
}

func readable(ctx context.Context, client *kgo.Client, topic string) error {
	err := tryTopic(ctx, client, topic, mayRead, "read")
	if errors.Is(err, kerr.UnknownTopicOrPartition) {
		return errors.New("does not exist; it is read once it does")
	}
	return err
}

// Try finds out whether the sink can write to the places that are known; path is its section's.
func (c SinkConfig) Try(path string, to []trial.Place) (t trial.Trial, end func()) {
	return c.Connection.Try(path, func(client *kgo.Client) []trial.Trial {
		var all []trial.Trial
		for _, place := range to {
			topic := place.Name
			if topic == "" {
				topic, place.Path = c.Topic, path+".topic"
			}
			if topic == "" {
				all = append(all, trial.Of(place.Path, errNoTopic))
				continue
			}
			all = append(all, trial.Trial{Name: place.Path + ": topic " + topic, Try: func(ctx context.Context) error {
				return c.tryTopic(ctx, client, topic)
			}})
		}
		return all
	})
}

var errNoTopic = errors.New("no topic is named: each message would be refused")

func (c SinkConfig) tryTopic(ctx context.Context, client *kgo.Client, topic string) error {
	err := tryTopic(ctx, client, topic, mayWrite, "write")
	switch {
	case !errors.Is(err, kerr.UnknownTopicOrPartition):
		return err
	case c.MissingTopic != missingCreate:
		return errors.New("does not exist")
	}
	if err := c.creatable(ctx, client, topic); err != nil {
		return fmt.Errorf("does not exist, and cannot be created: %w", err)
	}
	return trial.Note("does not exist yet; the first use creates it")
}

// creatable has the brokers say whether the topic could be created.
func (c SinkConfig) creatable(ctx context.Context, client *kgo.Client, topic string) error {
	wanted := kmsg.NewCreateTopicsRequestTopic()
	wanted.Topic, wanted.NumPartitions, wanted.ReplicationFactor = topic, c.CreatePartitions, c.CreateReplication
	request := kmsg.NewPtrCreateTopicsRequest()
	request.Topics, request.ValidateOnly = append(request.Topics, wanted), true
	response, err := request.RequestWith(ctx, client)
	if err != nil {
		return explainEOF(err)
	}
	for _, topic := range response.Topics {
		if err := kerr.ErrorForCode(topic.ErrorCode); err != nil {
			return err
		}
	}
	return nil
}

// tryTopic returns why a topic cannot be used. It does not create the topic.
func tryTopic(ctx context.Context, client *kgo.Client, topic string, operation int32, verb string) error {
	wanted := kmsg.NewMetadataRequestTopic()
	wanted.Topic = kmsg.StringPtr(topic)
	response, err := metadata(ctx, client, wanted)
	if err != nil {
		return err
	}
	for _, t := range response.Topics {
		switch err := kerr.ErrorForCode(t.ErrorCode); {
		case errors.Is(err, kerr.TopicAuthorizationFailed):
			return fmt.Errorf("this user may not see it: %w", err)
		case err != nil && !errors.Is(err, kerr.LeaderNotAvailable):
			return err
		case operation != 0 && t.AuthorizedOperations != unknownOperations && t.AuthorizedOperations&operation == 0:
			return fmt.Errorf("this user may not %s it", verb)
		}
	}
	return nil
}

// metadata asks about topics; about all without any.
func metadata(ctx context.Context, client *kgo.Client, topics ...kmsg.MetadataRequestTopic) (*kmsg.MetadataResponse, error) {
	request := kmsg.NewPtrMetadataRequest()
	request.Topics, request.AllowAutoTopicCreation, request.IncludeTopicAuthorizedOperations = topics, false, true
	response, err := request.RequestWith(ctx, client)
	return response, explainEOF(err)
}

func (c SourceConfig) tryPattern(ctx context.Context, client *kgo.Client) error {
	pattern, err := compilePattern(c.Pattern)
	if err != nil {
		return err
	}
	response, err := metadata(ctx, client)
	if err != nil {
		return err
	}
	matches := 0
	for _, t := range response.Topics {
		if t.Topic == nil || t.IsInternal || !pattern.MatchString(*t.Topic) {
			continue
		}
		matches++
		if t.AuthorizedOperations != unknownOperations && t.AuthorizedOperations&mayRead == 0 {
			return fmt.Errorf("this user may not read topic %s", *t.Topic)
		}
	}
	if matches == 0 {
		return trial.Note("no topic that this user may see matches yet")
	}
	return nil
}

// tryGroup returns why the group cannot be used, as far as brokers tell.
func tryGroup(ctx context.Context, client *kgo.Client, group string) error {
	if err := tryTopic(ctx, client, offsetsTopic, 0, ""); errors.Is(err, kerr.UnknownTopicOrPartition) {
		return trial.Note("not known: this cluster has had no group yet")
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
		case g.AuthorizedOperations != unknownOperations && g.AuthorizedOperations&mayRead == 0:
			return errors.New("this user may not use it")
		}
	}
	return nil
}

// FollowsSource says that a message goes to the partition of the number that it had at its source.
func (c SinkConfig) FollowsSource() bool { return c.Partition == partitionSource }

// Names are the topics that the configuration names.
func (c SourceConfig) Names() []string { return c.Topics }

// Partitions is how many a topic has.
func (c SourceConfig) Partitions(ctx context.Context, topic string) (int, error) {
	return c.partitionsOf(ctx, topic)
}

// Partitions is how many the topic has, or is made with: none when that is not known before.
func (c SinkConfig) Partitions(ctx context.Context, topic string) (int, error) {
	if topic == "" {
		topic = c.Topic
	}
	n, err := c.partitionsOf(ctx, topic)
	if errors.Is(err, kerr.UnknownTopicOrPartition) && c.MissingTopic == missingCreate {
		return max(0, int(c.CreatePartitions)), nil
	}
	return n, err
}

func (c Connection) partitionsOf(ctx context.Context, topic string) (int, error) {
	client, err := c.plainClient()
	if err != nil {
		return 0, err
	}
	defer client.Close()
	wanted := kmsg.NewMetadataRequestTopic()
	wanted.Topic = kmsg.StringPtr(topic)
	response, err := metadata(ctx, client, wanted)
	if err != nil {
		return 0, err
	}
	partitions := 0
	for _, t := range response.Topics {
		if err := kerr.ErrorForCode(t.ErrorCode); err != nil {
			return 0, fmt.Errorf("topic %s: %w", topic, err)
		}
		partitions = len(t.Partitions)
	}
	return partitions, nil
}
