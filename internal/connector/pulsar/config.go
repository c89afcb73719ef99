// Package pulsar is the source and the sink for Apache Pulsar, on pkg/messaging. Pigeonhole uses
// both, Eventbridge the sink.
//
// source.go takes messages from a subscription to pipelines, and partition.go acknowledges them
// once the pipelines have stored them. sink.go publishes messages of pipelines to topics. exact.go
// and writer.go do that under effectively_once.
package pulsar

import (
	"errors"
	"time"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// system is this package's name in provenance.
const system = "pulsar"

// Values of keys.
const (
	partitionKey    = "key"
	partitionSource = "source"
)

// SourceConfig says what to consume.
type SourceConfig struct {
	messaging.Config `yaml:",inline"`
	// Cluster is the name of the cluster in the provenance of its messages. Default pulsar.
	Cluster string `yaml:"cluster"`
	// Subscription is where the brokers keep what has been passed on. It must be given. Several
	// processes of one subscription share its messages.
	Subscription string `yaml:"subscription"`
	// Topics are consumed. Either these or Pattern must be given.
	Topics []string `yaml:"topics"`
	// Pattern is a regular expression for topics of one namespace, such as
	// persistent://public/default/orders-.*.
	Pattern string `yaml:"pattern"`
	// DiscoverEvery is how often new partitions and, with Pattern, new topics are looked for.
	// Default 1m.
	DiscoverEvery time.Duration `yaml:"discover_every"`
	// Type of the subscription. exclusive and failover keep the order of each partition; key_shared
	// keeps that of each key, and needs producers that do not batch, or batch by key; shared keeps
	// none. Default failover.
	Type messaging.SubscriptionType `yaml:"type"`
	// StartAt is where a new subscription begins: earliest or latest. Default earliest.
	StartAt messaging.StartAt `yaml:"start_at"`
	// PrefetchMessages and PrefetchBytes bound what is received and not passed on yet, over all
	// partitions. Few messages that are passed on slowly limit the rate: at 100,000 messages a second
	// and 100 ms until they are acknowledged, 10,000 are under way. Defaults 20000 and 64MiB.
	PrefetchMessages int          `yaml:"prefetch_messages"`
	PrefetchBytes    config.Bytes `yaml:"prefetch_bytes"`
	// AckEvery is how often acknowledgements are sent: 100ms but in tests.
	AckEvery time.Duration `yaml:"-"`
	// AckBatchIndex acknowledges the messages of a batch one by one; it needs
	// acknowledgmentAtBatchIndexLevelEnabled=true on the brokers. Without it a restart in the
	// middle of a batch passes its first part on again. Default false.
	AckBatchIndex bool `yaml:"ack_batch_index"`
	// DrainTimeout is how long messages in flight are waited for at a stop. What is not stored then
	// is delivered again to whoever subscribes next. From 1ms. Default 20s.
	DrainTimeout time.Duration `yaml:"drain_timeout"`
}

// DefaultSourceConfig returns the defaults. Subscription, and Topics or Pattern, have none.
func DefaultSourceConfig() SourceConfig {
	return SourceConfig{
		Config:           messaging.DefaultConfig(),
		Cluster:          system,
		DiscoverEvery:    time.Minute,
		Type:             messaging.Failover,
		StartAt:          messaging.StartEarliest,
		PrefetchMessages: 20_000,
		PrefetchBytes:    64 * config.MiB,
		AckEvery:         100 * time.Millisecond,
		DrainTimeout:     20 * time.Second,
	}
}

// Validate returns the faults of the section, except those of Config.
func (c SourceConfig) Validate() error {
	return errors.Join(c.consumer().Validate(), config.Require(c.Cluster != "", "cluster", "must not be empty"),
		config.CheckAtLeast("drain_timeout", c.DrainTimeout, time.Millisecond))
}

// partitioned reports whether order is kept by partition, with a pipeline for each.
func (c SourceConfig) partitioned() bool {
	return c.Type == messaging.Exclusive || c.Type == messaging.Failover
}

// consumer is the library's configuration.
func (c SourceConfig) consumer() messaging.ConsumerConfig {
	cc := messaging.DefaultConsumerConfig()
	cc.Topics, cc.Pattern, cc.DiscoverEvery = c.Topics, c.Pattern, c.DiscoverEvery
	cc.Subscription, cc.Type, cc.StartAt = c.Subscription, c.Type, c.StartAt
	cc.PrefetchMessages, cc.PrefetchBytes = c.PrefetchMessages, int64(c.PrefetchBytes)
	cc.MaxMessageBytes = firstMessageBytes
	cc.AckEvery, cc.AckBatchIndex = c.AckEvery, c.AckBatchIndex
	cc.StopTimeout = max(c.DrainTimeout, 0) + stopGrace
	// A message that is handed over is never given back with an error: pipelines repeat, and have dead
	// letters of their own.
	cc.Retry.InPlace, cc.Retry.MaxAttempts = true, 0
	cc.Retry.DeadLetterTopic, cc.Retry.DeadLetterSubscription = "non-persistent://unused/unused/dead-letters", "-"
	cc.StuckAfter = time.Hour // a full pipeline is not a stuck handler
	// The one worker of a shared subscription hands messages over in the order of delivery.
	cc.Order, cc.Concurrency = messaging.OrderNone, 1
	if c.partitioned() {
		cc.Order, cc.Concurrency = messaging.OrderPartition, partitionsAtOnce
	}
	return cc
}

const (
	// sharedPipelines is the number of pipelines of a shared or key_shared subscription. The others
	// have one for each partition.
	sharedPipelines = 4
	// partitionsAtOnce bounds the partitions whose pipelines may be full while others go on.
	partitionsAtOnce = 32
	// firstMessageBytes is how large messages are taken to be before any was seen.
	firstMessageBytes = 64 << 10
)

// stopGrace is how long after drain_timeout the consumer is left to acknowledge what was drained.
const stopGrace = 5 * time.Second

// SinkConfig says how to publish.
type SinkConfig struct {
	messaging.Config `yaml:",inline"`
	// Cluster is the name of the cluster in the hops of messages, as in sources of the same cluster.
	// Default pulsar.
	Cluster string `yaml:"cluster"`
	// EffectivelyOnce is set by a route with that guarantee. It needs a source that numbers a
	// partition's messages (Kafka), Partition source, and topics that nobody else writes to, each
	// partition from one partition of one source topic.
	EffectivelyOnce bool `yaml:"-"`
	// FormerSources are ids of source topics that others have taken the place of: they were deleted
	// and made anew, or the route reads another cluster. Under effectively_once a partition that
	// holds messages of one topic refuses those of another (other_source, which names both). Behind
	// the messages of a topic listed here those of the new topic are stored, from where its consumer
	// group stands. Default: none.
	FormerSources []string `yaml:"former_sources"`
	// Partition chooses a message's partition: key, by the key's hash as Pulsar's other clients do
	// it, messages without one in turn; or source, the one of the same number as at the source. A
	// message whose partition the topic lacks is refused. effectively_once needs source. Default
	// key.
	Partition string `yaml:"partition"`
	// MaxTopics bounds the topics that are open at once, from 1. Past it the one that was idle
	// longest is closed, or messages for another wait. Default 1000.
	MaxTopics int `yaml:"max_topics"`
	// IdleTimeout is after what time without messages a topic is closed. Under effectively_once
	// another process that takes a partition over waits this long, at most, unless this one has
	// released it. From 1s. Default 1m; under effectively_once 5s at most are used.
	IdleTimeout time.Duration `yaml:"idle_timeout"`
	// MaxMessageBytes is what the broker takes of a message with its headers (maxMessageSize in
	// broker.conf). Under effectively_once, where it must not be more than the broker's, a message is
	// refused when its largest possible entry is larger: the value without compression, key and
	// properties twice, 1KiB, and 0.4% of that. at_least_once leaves it to the broker. From 4KiB.
	// Default 5MiB, as Pulsar's.
	MaxMessageBytes config.Bytes `yaml:"max_message_bytes"`
	// CloseTimeout is how long a stop waits for messages in flight: 10s but in tests.
	CloseTimeout time.Duration `yaml:"-"`
	// Profile is how messages are published. Its name labels metrics. routing follows from
	// partition. Default: the library's "ops", with max_pending_records 10000.
	Profile messaging.Profile `yaml:"profile"`
}

// DefaultSinkConfig returns the defaults.
func DefaultSinkConfig() SinkConfig {
	profile := messaging.Ops()
	profile.MaxPendingRecords = 10_000 // each open topic allocates for them in advance
	return SinkConfig{
		Config:          messaging.DefaultConfig(),
		Cluster:         system,
		Partition:       partitionKey,
		MaxTopics:       1000,
		IdleTimeout:     time.Minute,
		MaxMessageBytes: 5 * config.MiB,
		CloseTimeout:    10 * time.Second,
		Profile:         profile,
	}
}

// Validate returns the faults of the section, except those of Config and Profile.
func (c SinkConfig) Validate() error {
	return errors.Join(
		config.CheckOneOf("partition", c.Partition, partitionKey, partitionSource),
		config.Require(c.Cluster != "", "cluster", "must not be empty"),
		config.CheckAtLeast("max_topics", c.MaxTopics, 1),
		config.CheckAtLeast("idle_timeout", c.IdleTimeout, time.Second),
		config.CheckAtLeast("max_message_bytes", c.MaxMessageBytes, 4*config.KiB))
}
