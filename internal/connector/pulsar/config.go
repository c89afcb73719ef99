// Package pulsar is the source and the sink for Apache Pulsar, on pkg/messaging. Pigeonhole uses
// both, Eventbridge uses the sink.
//
// source.go takes messages from a subscription to pipelines, and partition.go acknowledges them
// after the pipelines have stored them. sink.go publishes messages of pipelines to topics; exact.go
// and writer.go do this under effectively_once. The package imports no other system and no service.
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
	// Subscription is the name of the subscription to consume. It must be given. Several processes
	// with one subscription share its messages.
	Subscription string `yaml:"subscription"`
	// Topics are the topics to consume. Give either this or pattern.
	Topics []string `yaml:"topics"`
	// Pattern is a regular expression for the names of topics in one namespace, such as
	// persistent://public/default/orders-.*.
	Pattern string `yaml:"pattern"`
	// DiscoverEvery is the interval at which the source looks for new partitions and, with pattern,
	// new topics. Default 1m.
	DiscoverEvery time.Duration `yaml:"discover_every"`
	// Type is the type of the subscription: exclusive or failover (in order per partition),
	// key_shared (in order per key; it needs producers that do not batch, or batch by key) or
	// shared (no order). Default failover.
	Type messaging.SubscriptionType `yaml:"type"`
	// StartAt is where a new subscription begins: earliest or latest. Default earliest.
	StartAt messaging.StartAt `yaml:"start_at"`
	// PrefetchMessages bounds the messages that are received and not acknowledged yet, of all
	// partitions together. A small value limits the rate if storing messages takes long: at 100,000
	// messages a second and 100 ms until the acknowledgement, 10,000 are under way. Default 20000.
	PrefetchMessages int `yaml:"prefetch_messages"`
	// PrefetchBytes bounds the bytes of messages that are received and not acknowledged yet, of all
	// partitions together. Default 64MiB.
	PrefetchBytes config.Bytes `yaml:"prefetch_bytes"`
	// AckEvery is how often acknowledgements are sent: 100ms but in tests.
	AckEvery time.Duration `yaml:"-"`
	// AckBatchIndex acknowledges the messages of a batch one by one. It needs
	// acknowledgmentAtBatchIndexLevelEnabled=true on the brokers. Without it, a restart in the
	// middle of a batch replicates the first part of the batch again. Default false.
	AckBatchIndex bool `yaml:"ack_batch_index"`
	// DrainTimeout bounds how long a stop waits for messages in flight. The broker delivers the
	// messages that are not stored by then to the next consumer. From 1ms. Default 20s.
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
	// partitionsAtOnce bounds the partitions whose pipelines may be full while others continue.
	partitionsAtOnce = 32
	// firstMessageBytes is how large messages are taken to be before any was seen.
	firstMessageBytes = 64 << 10
)

// stopGrace is how long after drain_timeout the consumer is left to acknowledge what was drained.
const stopGrace = 5 * time.Second

// SinkConfig says how to publish.
type SinkConfig struct {
	messaging.Config `yaml:",inline"`
	// Cluster is the name of the cluster in the hops of messages. Sources of the same cluster must
	// have the same name. Default pulsar.
	Cluster string `yaml:"cluster"`
	// EffectivelyOnce is set by a route with that guarantee. It needs a source that numbers a
	// partition's messages (Kafka), Partition source, and topics without another producer, where
	// each partition stores the messages of one partition of one source topic.
	EffectivelyOnce bool `yaml:"-"`
	// FormerSources are the ids of source topics that the route read before: topics that were
	// deleted and created again, or topics of another cluster. Under effectively_once a partition
	// that holds messages of one topic refuses those of another (other_source; the error has the
	// ids of both). After messages of a topic in this list the partition stores those of the new
	// topic, from the committed offset of its consumer group. Default: none.
	FormerSources []string `yaml:"former_sources"`
	// Partition chooses the partition of a message: key (by the key's hash, as Pulsar's other
	// clients do it; messages without a key in turn) or source (the number of its partition at the
	// source). A message is refused if the topic does not have its partition. effectively_once
	// needs source. Default key.
	Partition string `yaml:"partition"`
	// MaxTopics bounds the topics that are open at the same time, from 1. At the bound, the sink
	// closes the topic that was idle longest; if no topic is idle, messages for another topic wait.
	// Default 1000.
	MaxTopics int `yaml:"max_topics"`
	// IdleTimeout is the time without messages after which a topic is closed. Under
	// effectively_once at most 5s are used; another process that takes over a partition waits up to
	// this time, unless this process has released the partition. From 1s. Default 1m.
	IdleTimeout time.Duration `yaml:"idle_timeout"`
	// MaxMessageBytes is the broker's limit for a message with its headers (maxMessageSize in
	// broker.conf). Under effectively_once it must not exceed the broker's limit, and a message is
	// refused if its largest possible entry is larger: the value without compression, key and
	// properties twice, 1KiB, and 0.4% of that. Under at_least_once the broker applies its limit.
	// From 4KiB. Default 5MiB, as Pulsar's.
	MaxMessageBytes config.Bytes `yaml:"max_message_bytes"`
	// CloseTimeout is how long a stop waits for messages in flight: 10s but in tests.
	CloseTimeout time.Duration `yaml:"-"`
	// Profile says how messages are published. Its name is a label of metrics. Partition determines
	// profile.routing. Default: the library's "ops", with max_pending_records 10000.
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
