package consume

import (
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/clientquirks"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/cluster"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/record"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/retry"
)

// SubscriptionType is how consumers of one subscription share its messages.
type SubscriptionType string

const (
	// Exclusive admits one consumer.
	Exclusive SubscriptionType = "exclusive"
	// Failover delivers each partition to one consumer; others stand by.
	Failover SubscriptionType = "failover"
	// Shared spreads single messages over all consumers, without order.
	Shared SubscriptionType = "shared"
	// KeyShared spreads keys over all consumers.
	KeyShared SubscriptionType = "key_shared"
)

// Order is what a consumer keeps in order while it handles messages concurrently.
type Order string

const (
	// OrderNone hands out any message at any time.
	OrderNone Order = "none"
	// OrderKey hands out the messages of one key one after the other. A message
	// without a key is ordered against nothing.
	OrderKey Order = "key"
	// OrderPartition hands out the messages of one partition one after the other,
	// and those of several partitions side by side.
	OrderPartition Order = "partition"
	// OrderTotal hands out one message at a time, each partition in its order.
	OrderTotal Order = "total"
)

// ConsumerConfig says what to consume and how. Start from
// [DefaultConsumerConfig] and set Topics (or Pattern) and Subscription.
type ConsumerConfig struct {
	// Topics to consume. Either Topics or Pattern must be set. Topics must be persistent: brokers
	// give all messages of others one id, so what comes again cannot be recognised.
	Topics []string `yaml:"topics"`
	// Pattern is a regular expression for topics of one namespace, such as
	// persistent://public/default/orders-.*, which matches whole names. Topics that appear later
	// are found within DiscoverEvery. Retry and dead-letter topics must be named explicitly
	// with it, and the pattern must not match them.
	Pattern string `yaml:"pattern"`
	// DiscoverEvery is the interval of looking for new partitions and, with
	// Pattern, new topics. Default 1m.
	DiscoverEvery time.Duration `yaml:"discover_every"`
	// Subscription is the name under which the brokers keep the position, and the
	// label of the metrics.
	Subscription string `yaml:"subscription"`
	// Type of the subscription. Default shared.
	Type SubscriptionType `yaml:"type"`
	// StartAt applies to a subscription that does not exist yet. Default earliest.
	StartAt record.StartAt `yaml:"start_at"`
	// From is where the subscription begins in place of StartAt, if it does not exist yet: at a
	// message or a time, for instance. It is created there by the brokers' admin API
	// ([Config].AdminURL), before the consumer subscribes for the first time: one that is deleted
	// while it runs begins at StartAt. AtMessage needs a topic without
	// partitions, or a single partition of one. Not with Pattern. Nil, the default: StartAt.
	From *record.Position `yaml:"-"`
	// Durable false keeps no position: every subscribing, and every reconnecting,
	// begins at StartAt again. Default true.
	Durable bool `yaml:"durable"`
	// ReadCompacted reads only the latest message of each key from a compacted
	// topic. Exclusive and Failover only. Default false.
	ReadCompacted bool `yaml:"read_compacted"`

	// Order kept between handlers. Default: none for shared, else key.
	Order Order `yaml:"order"`
	// Concurrency is the number of handlers that may run at once. Default 16, or 1
	// with order total.
	Concurrency int `yaml:"concurrency"`
	// PrefetchMessages bounds the messages, over all partitions, that the brokers may send ahead,
	// and separately those that may be unfinished here (waiting, being handled, held for a retry).
	// At least one message per partition is received whatever the bounds. Default 1000.
	PrefetchMessages int `yaml:"prefetch_messages"`
	// PrefetchBytes bounds the bytes of both together. Default 64 MiB.
	PrefetchBytes int64 `yaml:"prefetch_bytes"`
	// HeldMessages bounds the messages that are held in this process for another attempt, with
	// those that wait behind them for their order. Up to this bound they do not count against
	// PrefetchMessages and PrefetchBytes, and other messages continue. Beyond it they count; when
	// nothing fits any more, nothing is received until an attempt succeeds or a message goes to the
	// dead-letter topic. It is not used with order total, where all messages wait. Default 10000.
	HeldMessages int `yaml:"held_messages"`
	// HeldBytes is the same bound in bytes. Default 64 MiB.
	HeldBytes int64 `yaml:"held_bytes"`
	// MaxMessageBytes is the assumed size of messages before any was received: the first receive
	// queue is so short that messages of this size fit PrefetchBytes, and is made longer when
	// messages are smaller. Failover subscriptions, where brokers wait for a second at every
	// subscribing, assume 64 KiB at most and correct that when larger messages arrive:
	// PrefetchBytes may be exceeded until then. Default 5 MiB, the brokers' own limit.
	MaxMessageBytes int64 `yaml:"max_message_bytes"`

	// Retry says what happens to a message whose handler failed.
	Retry retry.Retry `yaml:"retry"`

	// StuckAfter is how long a handler may run before it is logged and counted as stuck. The
	// handler is not stopped. Default 1m.
	StuckAfter time.Duration `yaml:"stuck_after"`
	// StopTimeout is how long handlers in flight may continue after Run's context
	// ended before theirs ends too, and how long closing waits for a broker that
	// does not answer. Default 30s.
	StopTimeout time.Duration `yaml:"stop_timeout"`
	// DrainIdle is how long Drain waits on partitions that deliver nothing, for
	// instance because another consumer of the subscription has their backlog.
	// Default 2s.
	DrainIdle time.Duration `yaml:"drain_idle"`
	// AckEvery and AckMessages group acknowledgements: they are sent when either
	// is reached. A crash redelivers what was not sent. Defaults 100ms, 1000.
	AckEvery    time.Duration `yaml:"ack_every"`
	AckMessages int           `yaml:"ack_messages"`
	// AckBatchIndex acknowledges the messages of a batch one by one, so that a
	// restart in the middle of a batch does not see its first part again. It needs
	// acknowledgmentAtBatchIndexLevelEnabled=true on the brokers and costs them
	// memory. Default false.
	AckBatchIndex bool `yaml:"ack_batch_index"`
}

// DefaultConsumerConfig is a durable shared subscription. Topics (or Pattern) and
// Subscription remain to be set.
func DefaultConsumerConfig() ConsumerConfig {
	return ConsumerConfig{
		DiscoverEvery:    time.Minute,
		Type:             Shared,
		StartAt:          record.StartEarliest,
		Durable:          true,
		PrefetchMessages: 1000,
		PrefetchBytes:    64 << 20,
		HeldMessages:     10_000,
		HeldBytes:        64 << 20,
		MaxMessageBytes:  5 << 20,
		Retry:            retry.Retry{MaxAttempts: 16, MinDelay: time.Second, MaxDelay: time.Minute},
		StuckAfter:       time.Minute,
		StopTimeout:      30 * time.Second,
		DrainIdle:        2 * time.Second,
		AckEvery:         100 * time.Millisecond,
		AckMessages:      1000,
	}
}

// derived fills in what depends on other fields.
func (c ConsumerConfig) derived() ConsumerConfig {
	if c.Order == "" {
		c.Order = OrderKey
		if c.Type == Shared {
			c.Order = OrderNone
		}
	}
	if c.Concurrency == 0 {
		c.Concurrency = 16
		if c.Order == OrderTotal {
			c.Concurrency = 1
		}
	}
	if len(c.Topics) == 1 && c.Pattern == "" {
		base := record.FullTopicName(c.Topics[0]) + "-" + c.Subscription
		if c.Retry.Topic == "" {
			c.Retry.Topic = base + "-RETRY"
		}
		if c.Retry.DeadLetterTopic == "" {
			c.Retry.DeadLetterTopic = base + "-DLQ"
		}
	}
	c.Retry = retry.Derived(c.Retry, c.Subscription)
	return c
}

// Validate reports every fault at once, each as "path: what would be right".
func (c ConsumerConfig) Validate() error {
	c = c.derived()
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	c.validateTopics(fault)
	if c.Subscription == "" {
		fault("subscription: must be set")
	}
	cluster.OneOf(fault, "type", c.Type, Exclusive, Failover, Shared, KeyShared)
	cluster.OneOf(fault, "start_at", c.StartAt, record.StartEarliest, record.StartLatest)
	cluster.OneOf(fault, "order", c.Order, OrderNone, OrderKey, OrderPartition, OrderTotal)
	if c.From != nil && (c.Pattern != "" || !c.Durable) {
		fault("from: needs topics and a durable subscription")
	}
	if c.ReadCompacted && c.Type != Exclusive && c.Type != Failover {
		fault("read_compacted: needs type exclusive or failover, got %q", string(c.Type))
	}
	if (c.Order == OrderTotal || c.Order == OrderPartition) && c.Type != Exclusive && c.Type != Failover {
		fault("order: %s needs type exclusive or failover, got %q", string(c.Order), string(c.Type))
	}
	if c.Order == OrderKey && c.Type == Shared {
		fault("order: key needs type exclusive, failover or key_shared: a shared subscription has no order to keep")
	}
	cluster.Positive(fault, "concurrency", c.Concurrency)
	if c.Order == OrderTotal && c.Concurrency > 1 {
		fault("concurrency: must be 1 with order total, got %d", c.Concurrency)
	}
	retry.Validate(c.Retry, c.usesRetryTopic(), fault)
	cluster.Positive(fault, "prefetch_messages", c.PrefetchMessages)
	cluster.Positive(fault, "prefetch_bytes", c.PrefetchBytes)
	cluster.Positive(fault, "held_messages", c.HeldMessages)
	cluster.Positive(fault, "held_bytes", c.HeldBytes)
	cluster.Positive(fault, "max_message_bytes", c.MaxMessageBytes)
	cluster.Positive(fault, "ack_messages", c.AckMessages)
	cluster.Positive(fault, "discover_every", c.DiscoverEvery)
	cluster.Positive(fault, "retry.min_delay", c.Retry.MinDelay)
	cluster.Positive(fault, "stuck_after", c.StuckAfter)
	cluster.Positive(fault, "stop_timeout", c.StopTimeout)
	cluster.Positive(fault, "drain_idle", c.DrainIdle)
	cluster.Positive(fault, "ack_every", c.AckEvery)
	return errors.Join(errs...)
}

func (c ConsumerConfig) validateTopics(fault func(string, ...any)) {
	if (len(c.Topics) == 0) == (c.Pattern == "") {
		fault("topics: either topics or pattern must be set")
	}
	for i, t := range c.Topics {
		if !record.ValidTopic(t) {
			fault("topics[%d]: must be a name or persistent://tenant/namespace/name, got %q", i, t)
		}
		if record.Keeps(t) != nil {
			fault("topics[%d]: must be persistent, got %q", i, t)
		}
		if n := record.FullTopicName(t); n == record.FullTopicName(c.Retry.Topic) || n == record.FullTopicName(c.Retry.DeadLetterTopic) {
			fault("topics[%d]: must not be the retry or dead-letter topic, got %q", i, t)
		}
	}
	for path, t := range map[string]string{"retry.topic": c.Retry.Topic, "retry.dead_letter_topic": c.Retry.DeadLetterTopic} {
		if t == "" && (path != "retry.topic" || c.usesRetryTopic()) && (len(c.Topics) > 1 || c.Pattern != "") {
			fault("%s: must be set with several topics or a pattern", path)
		}
		if t != "" && !record.ValidTopic(t) {
			fault("%s: must be a name or persistent://tenant/namespace/name, got %q", path, t)
		}
	}
	if c.Pattern == "" {
		return
	}
	re, err := regexp.Compile(clientquirks.Anchored(record.FullTopicName(c.Pattern)))
	if err != nil || !record.HasTopicParts(c.Pattern) || record.Keeps(c.Pattern) != nil {
		fault("pattern: must be a regular expression for persistent topics of one namespace, got %q", c.Pattern)
		return
	}
	for path, t := range map[string]string{"retry.topic": c.Retry.Topic, "retry.dead_letter_topic": c.Retry.DeadLetterTopic} {
		if t != "" && re.MatchString(record.FullTopicName(t)) {
			fault("pattern: must not match %s, got %q", path, c.Pattern)
		}
	}
}

// usesRetryTopic reports whether failed messages wait on a topic rather than in this process.
// Exclusive and failover subscriptions do not: a consumer that waits for its turn there would
// receive from the retry topic.
func (c ConsumerConfig) usesRetryTopic() bool {
	shared := c.Type == Shared || c.Type == KeyShared
	return shared && c.Order == OrderNone && c.Durable && !c.Retry.InPlace
}
