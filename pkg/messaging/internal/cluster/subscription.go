package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/clientquirks"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/record"
)

// EnsureSubscription is the client's method of that name.
func (c *Cluster) EnsureSubscription(ctx context.Context, topic, subscription string, at record.StartAt) error {
	if err := c.Enter(); err != nil {
		return err
	}
	defer c.Leave()
	ctx, done := clientquirks.EitherEnds(ctx, c.Life)
	defer done()
	err := func() error {
		if subscription == "" {
			return errors.New("the subscription must have a name")
		}
		if !record.ValidTopic(topic) {
			return fmt.Errorf("%w: %q", record.ErrInvalidTopic, topic)
		}
		if err := record.Keeps(topic); err != nil {
			return err
		}
		if at != record.StartEarliest && at != record.StartLatest && at != "" {
			return fmt.Errorf("it must begin at %s or %s, got %q", record.StartEarliest, record.StartLatest, at)
		}
		return c.CreateSubscription(ctx, topic, subscription, record.InitialPosition(at))
	}()
	if err != nil {
		return fmt.Errorf("messaging: subscription %s of %s: %w", subscription, topic, err)
	}
	return nil
}

// CreateSubscription goes through the partitions one after the other. It uses the connections of
// publishers: a consumer's connection stops reading while its queue is full, and the messages in
// that queue may wait for this call. The queue can exceed its size: when part of a batch was
// acknowledged and the batch comes again, the client grants permits for that part, for which the
// broker took none (pulsar-client-go v0.21.0 consumer_partition.go, skippedMessages).
func (c *Cluster) CreateSubscription(ctx context.Context, topic, subscription string, at pulsar.SubscriptionInitialPosition) error {
	partitions, err := CallWithTimeout(ctx, c, func() ([]string, error) {
		return c.Producers.TopicPartitions(topic)
	}, nil)
	for _, partition := range partitions {
		if err == nil {
			err = c.ensureSubscriptionOf(ctx, partition, subscription, at)
		}
	}
	return err
}

// ensureSubscriptionOf subscribes to one partition and closes the consumer.
func (c *Cluster) ensureSubscriptionOf(ctx context.Context, partition, subscription string, at pulsar.SubscriptionInitialPosition) error {
	_, err := CallWithTimeout(ctx, c, func() (none struct{}, err error) {
		ch := make(chan pulsar.ConsumerMessage)
		raw, err := c.Producers.Subscribe(pulsar.ConsumerOptions{
			Topic: partition, SubscriptionName: subscription, Type: pulsar.Shared, ReceiverQueueSize: 1,
			SubscriptionInitialPosition: at, BackOffPolicyFunc: clientquirks.NewBackoff, MessageChannel: ch,
		})
		if err == nil {
			clientquirks.CloseReceiving(raw, ch)
		}
		return none, err
	}, nil)
	if err != nil && subscriptionExists(err) {
		return nil
	}
	return err
}

// subscriptionExists reports whether a broker refused a consumer because others of another kind
// have the subscription.
func subscriptionExists(err error) bool {
	return clientquirks.CloseReason(err) == "busy" || strings.Contains(err.Error(), "Subscription is of different type")
}

// Partitions is the client's method of that name.
func (c *Cluster) Partitions(ctx context.Context, topic string) ([]string, error) {
	if err := c.Enter(); err != nil {
		return nil, err
	}
	topics, err := clientquirks.CallUntil(ctx, func() ([]string, error) {
		defer c.Leave()
		return c.Producers.TopicPartitions(topic)
	}, nil)
	if err != nil {
		return nil, fmt.Errorf("messaging: partitions of %s: %w", topic, err)
	}
	return topics, nil
}
