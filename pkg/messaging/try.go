package messaging

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/adminapi"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/ask"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/clientquirks"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/cluster"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/record"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/topicname"
)

// The methods Try… check whether the client could use the cluster or a topic. They try once, until
// ctx ends or the client is closed, and create nothing.

// TryConnect connects to the cluster with the client's credentials, and closes the connection. The
// error says why this fails: [ErrAuthentication] for refused credentials, [ErrTLS] for
// certificates that were not accepted.
func (c *Client) TryConnect(ctx context.Context) error {
	return c.try(ctx, "connect", func(ctx context.Context, b ask.Broker) error { return b.Connect(ctx) })
}

// TryPublish returns nil when topic exists and takes this client's records. It opens a shared
// producer on the topic, or its first partition, and closes it. Errors besides those of
// TryConnect: [ErrTopicNotFound], with [ErrNamespaceNotFound] where that is so, [ErrAuthorization],
// [ErrTopicTerminated], and [ErrOwned] when another publisher has the topic to itself: the client
// may publish, once that one has gone. A topic that does not exist has another error when the
// broker that would serve it cannot be connected to.
// [ErrNoAdminURL] is in the error when a broker before 3.0.6 cannot tell, without AdminURL,
// whether the topic exists.
func (c *Client) TryPublish(ctx context.Context, topic string) error {
	return c.tryTopic(ctx, "publish to "+topic, topic, func(partition string) error {
		raw, err := c.cluster.Producers.CreateProducer(pulsar.ProducerOptions{
			Topic: partition, DisableBatching: true, MaxReconnectToBroker: new(uint), SendTimeout: -1,
		})
		if err == nil {
			raw.Close()
			return nil
		}
		switch final := cluster.OpeningFailure(err, true); {
		case final != nil:
			return final
		case clientquirks.Classify(err) == clientquirks.Terminated:
			return fmt.Errorf("%w: %w", record.ErrTopicTerminated, err)
		default:
			return err
		}
	})
}

// TryConsume returns nil when topic exists and this client may consume from it. It opens a reader
// at the end of the topic, or its first partition, and closes it: no subscription is made, and none
// is touched. The errors are those of [Client.TryPublish].
func (c *Client) TryConsume(ctx context.Context, topic string) error {
	return c.tryTopic(ctx, "consume from "+topic, topic, func(partition string) error {
		raw, err := c.cluster.Consumers.CreateReader(pulsar.ReaderOptions{
			Topic: partition, StartMessageID: pulsar.LatestMessageID(), ReceiverQueueSize: 1, BackoffPolicyFunc: clientquirks.NewBackoff,
		})
		if err == nil {
			raw.Close()
			return nil
		}
		if final := cluster.OpeningFailure(err, false); final != nil {
			return final
		}
		return err
	})
}

// TryPartitions returns how many partitions topic has: 0 for one without. It is
// [ErrTopicNotFound] for a topic that does not exist, or another error of [Client.TryPublish].
func (c *Client) TryPartitions(ctx context.Context, topic string) (partitions int, err error) {
	err = c.tryExisting(ctx, "partitions of "+topic, topic, func(_ context.Context, _ string, n int) error {
		partitions = n
		return nil
	})
	return partitions, err
}

// tryTopic calls try with the name of the topic, or of its first partition, when it exists.
func (c *Client) tryTopic(ctx context.Context, what, topic string, try func(partition string) error) error {
	return c.tryExisting(ctx, what, topic, func(ctx context.Context, name string, partitions int) error {
		if partitions > 0 {
			name = topicname.Partition(name, 0)
		}
		_, err := clientquirks.CallUntil(ctx, func() (none struct{}, err error) { return none, try(name) }, nil)
		return err
	})
}

// tryExisting calls try with the full name of the topic and the number of its partitions, when it
// exists.
func (c *Client) tryExisting(
	ctx context.Context, what, topic string, try func(ctx context.Context, name string, partitions int) error,
) error {
	return c.try(ctx, what, func(ctx context.Context, b ask.Broker) error {
		if !record.ValidTopic(topic) {
			return fmt.Errorf("%w: %q", record.ErrInvalidTopic, topic)
		}
		name := record.FullTopicName(topic)
		partitions, err := b.Partitions(ctx, name)
		if errors.Is(err, ask.ErrOld) {
			if partitions, err = c.admin.Topic(topic).Partitions(ctx); errors.Is(err, adminapi.ErrNoAdminURL) {
				err = fmt.Errorf("%w: %w", ask.ErrOld, err)
			}
		}
		switch {
		case errors.Is(err, ask.ErrNotFound):
			return tryMissing(ctx, b, name, err)
		case errors.Is(err, adminapi.ErrNotFound):
			return fmt.Errorf("%w: %w", record.ErrTopicNotFound, err)
		case err != nil:
			return err
		}
		return try(ctx, name, partitions)
	})
}

// tryMissing returns the error of a topic that does not exist. It adds what would keep a client
// from creating the topic: its namespace does not exist, or the broker that would serve the topic
// cannot be reached.
func tryMissing(ctx context.Context, b ask.Broker, name string, missing error) error {
	switch err := b.Serving(ctx, name); {
	case errors.Is(err, ask.ErrNoNamespace):
		return fmt.Errorf("%w: %w", record.ErrTopicNotFound, record.ErrNamespaceNotFound)
	case err != nil:
		return err
	default:
		return fmt.Errorf("%w: %w", record.ErrTopicNotFound, missing)
	}
}

func (c *Client) try(ctx context.Context, what string, try func(context.Context, ask.Broker) error) error {
	if err := c.cluster.Enter(); err != nil {
		return err
	}
	defer c.cluster.Leave()
	ctx, end := clientquirks.EitherEnds(ctx, c.cluster.Life)
	defer end()
	b, err := c.broker()
	if err == nil {
		err = try(ctx, b)
	}
	if err != nil {
		return fmt.Errorf("messaging: %s: %w", what, err)
	}
	return nil
}

// reachTopic is a partition's name: a broker that creates missing topics does not create one
// when it is asked how many partitions this one has.
const reachTopic = "persistent://public/default/aviary-reach-partition-0"

// Reach returns nil when a broker of the cluster has answered, and tries until ctx ends or the
// client is closed. Its request changes nothing. A refusal counts as an answer, for example that
// the topic does not exist, or that the client may not know this. So nil says that the cluster is
// reachable and has accepted the client's connection; it does not say what the client may do. Reach
// is safe for concurrent use.
func (c *Client) Reach(ctx context.Context) error {
	ctx, done := clientquirks.EitherEnds(ctx, c.cluster.Life)
	defer done()
	err := cluster.Insist(ctx, c.cluster.Log, func() error {
		_, err := cluster.CallWithTimeout(ctx, c.cluster, func() ([]string, error) { return c.cluster.Producers.TopicPartitions(reachTopic) }, nil)
		if err != nil && (clientquirks.Permanent(err) || cluster.OpeningFailure(err, false) != nil) {
			err = nil // an answer all the same
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("messaging: no broker has answered: %w", err)
	}
	return nil
}

// Unreachable says why no broker of the service URL could be connected to some seconds ago; nil
// when one could, and while that is not known. The first call of an outage begins to look, for the
// next ones. The text has no addresses: it is fit for those who may not know them. It is safe for
// concurrent use, and does not wait.
func (c *Client) Unreachable() error {
	return withoutAddresses(c.cluster.Reach.Err())
}

// withoutAddresses says what a failure to connect is, without the names and addresses in its text.
func withoutAddresses(err error) error {
	name, system, slow := (*net.DNSError)(nil), (*os.SyscallError)(nil), net.Error(nil)
	switch {
	case err == nil:
		return nil
	case errors.As(err, &name) && name.IsNotFound:
		return errors.New("no such host")
	case errors.As(err, &name): // its text may have the addresses of name servers
		return errors.New("the host's name cannot be looked up")
	case errors.As(err, &system):
		return system
	case errors.As(err, &slow) && slow.Timeout():
		return errors.New("i/o timeout")
	default:
		return errors.New("no connection")
	}
}
