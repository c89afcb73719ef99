package messaging

import (
	"context"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/consume"
)

// Consumer prepares a consumer. It fails on a bad configuration only; nothing is
// connected before Run, RunAsync or Drain.
func (c *Client) Consumer(cfg ConsumerConfig, opts ...ConsumerOption) (*Consumer, error) {
	return c.consumers.New(cfg, opts...)
}

// Consumer consumes a subscription while inside Consumer.Run, Consumer.RunAsync or Consumer.Drain,
// one of them at a time, and has no connection and holds no message outside them.
type Consumer = consume.Consumer

// ConsumerConfig says what to consume and how.
type ConsumerConfig = consume.ConsumerConfig

// DefaultConsumerConfig is a durable shared subscription.
func DefaultConsumerConfig() ConsumerConfig { return consume.DefaultConsumerConfig() }

// ConsumerOption adjusts a Consumer.
type ConsumerOption = consume.ConsumerOption

// OnOwned makes Run, RunAsync and Drain call f for each partition that an Exclusive or Failover
// subscription begins to deliver to the consumer, so that the service can load what it keeps for
// the partition.
func OnOwned(f func(ctx context.Context, topic string, partition int)) ConsumerOption {
	return consume.OnOwned(f)
}

// SubscriptionType is how consumers of one subscription share its messages.
type SubscriptionType = consume.SubscriptionType

// The types of subscriptions.
const (
	Shared    = consume.Shared    // spreads single messages over all consumers, without order
	KeyShared = consume.KeyShared // spreads keys over all consumers
	Failover  = consume.Failover  // delivers each partition to one consumer; others stand by
	Exclusive = consume.Exclusive // admits one consumer
)

// Order is what a consumer keeps in order while it handles messages concurrently.
type Order = consume.Order

// What is kept in order.
const (
	OrderNone      = consume.OrderNone      // nothing: any message at any time
	OrderKey       = consume.OrderKey       // the messages of one key
	OrderPartition = consume.OrderPartition // the messages of one partition
	OrderTotal     = consume.OrderTotal     // one message at a time, each partition in its order
)

// Handler handles one message.
type Handler = consume.Handler

// AsyncHandler takes one message over.
type AsyncHandler = consume.AsyncHandler

// PendingDelivery is one attempt at a message whose verdict is not given yet.
type PendingDelivery = consume.PendingDelivery

// EnsureSubscription creates the durable subscription on each partition of topic, unless it exists.
// Messages that are published from at on wait for its consumers. Brokers that create missing topics
// create this one. Unlike [Subscription.Create] it needs no admin API: it connects a consumer to
// each partition and closes it at once, without receiving anything.
//
// It tries once, until ctx ends or the client is closed. After an error some of the partitions may
// have the subscription.
func (c *Client) EnsureSubscription(ctx context.Context, topic, subscription string, at StartAt) error {
	return c.cluster.EnsureSubscription(ctx, topic, subscription, at)
}
