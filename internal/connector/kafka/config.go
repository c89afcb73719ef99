package kafka

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/IBM/sarama"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/connector"
)

// system is the name of Kafka in a message's origin.
const system = "kafka"

// Values of keys.
const (
	readCommitted   = "read_committed"
	readUncommitted = "read_uncommitted"

	gapAlarm = "alarm"
	gapFail  = "fail"

	partitionKey    = "key"
	partitionSource = "source"

	missingWait   = "wait"
	missingCreate = "create"
)

// SourceConfig says what to read.
type SourceConfig struct {
	Connection `yaml:",inline"`
	// Cluster is the name of the cluster in the provenance of its messages. Default kafka.
	Cluster string `yaml:"cluster"`
	// Group is the consumer group. It must be given. After a restart the source continues at the
	// committed offsets of the group. Several processes of one group share the partitions.
	Group string `yaml:"group"`
	// InstanceID makes this process a static member of the group. If it restarts within
	// session_timeout, also after a crash, it continues at once with the partitions that it had.
	// Without it, after a crash, the group waits for session_timeout. Each process needs its own
	// id: a second process with the same id removes the first from the group. The partitions of a
	// process that stops for good get a new owner after session_timeout. Letters, digits, '-', '_'
	// and '.', at most 249. Default: none.
	InstanceID string `yaml:"instance_id"`
	// Topics are the topics to read. A topic that does not exist is read as soon as it exists. Give
	// either this or pattern.
	Topics []string `yaml:"topics"`
	// Pattern is a regular expression (RE2) for the whole names of the topics to read, also of
	// topics that are created later. It does not select topics internal to Kafka, such as
	// __consumer_offsets.
	Pattern string `yaml:"pattern"`
	// DiscoverEvery is the interval at which the source looks for new topics and new partitions. A
	// change of the topics restarts the group's session; new partitions are added to it. At least
	// 1s. Default 30s.
	DiscoverEvery time.Duration `yaml:"discover_every"`
	// IsolationLevel is read_committed (skip messages of aborted transactions, wait for open ones)
	// or read_uncommitted. Default read_committed.
	IsolationLevel string `yaml:"isolation_level"`
	// OnGap says what to do when messages were deleted before they were read: alarm (log and count
	// it, and continue from the oldest message) or fail (stop the route). The topic's retention
	// deletes messages, and so does deleting the topic and creating it again. Default alarm.
	OnGap string `yaml:"on_gap"`
	// CommitInterval is the interval at which offsets are committed. After a crash, the messages
	// stored since the last commit are read again. At least 10ms. Default 1s.
	CommitInterval time.Duration `yaml:"commit_interval"`
	// SessionTimeout is how long a member may send no heartbeat before the group gives its
	// partitions to others. At least 6s. Default 45s.
	SessionTimeout time.Duration `yaml:"session_timeout"`
	// DrainTimeout bounds how long a partition waits for its messages in flight before it is
	// released, at a rebalance and at a stop. Its next owner reads the messages again that are not
	// stored by then. It must be shorter than request_timeout. The members of the group have the
	// sum of both, and 10s, to rebalance. Default 20s.
	DrainTimeout time.Duration `yaml:"drain_timeout"`
	// FetchBytes bounds one fetch of a partition, in compressed bytes. One fetch of a broker has up
	// to twice as many. A single larger batch is fetched whole. Messages that compress well take
	// many times as much memory: then use a smaller value. From 1KiB to 64MiB. Default 1MiB.
	FetchBytes config.Bytes `yaml:"fetch_bytes"`
	// BufferBytes bounds the messages that are fetched and not taken by the route yet, of all
	// partitions together, in equal shares. A partition above its share is paused; it still accepts
	// what was requested before. The source uses at most a quarter of the route's in_flight.bytes,
	// and half of that for one fetch. From 1MiB to 4GiB. Default 32MiB.
	BufferBytes config.Bytes `yaml:"buffer_bytes"`
}

// DefaultSourceConfig returns the defaults. Group, and Topics or Pattern, have none.
func DefaultSourceConfig() SourceConfig {
	return SourceConfig{
		Connection:     defaultConnection(),
		Cluster:        system,
		DiscoverEvery:  30 * time.Second,
		IsolationLevel: readCommitted,
		OnGap:          gapAlarm,
		CommitInterval: time.Second,
		SessionTimeout: 45 * time.Second,
		DrainTimeout:   20 * time.Second,
		FetchBytes:     config.MiB,
		BufferBytes:    32 * config.MiB,
	}
}

// Validate returns every fault, by its path below this section. It connects to nothing.
func (c SourceConfig) Validate() error {
	errs := []error{
		c.Connection.validate(),
		config.Require(c.Cluster != "", "cluster", "must not be empty"),
		config.Require(c.Group != "", "group", "must name the consumer group"),
		config.Require((len(c.Topics) == 0) != (c.Pattern == ""), "topics", "must be given, either here or by pattern"),
	}
	if c.InstanceID != "" {
		err := checkName(c.InstanceID)
		errs = append(errs, config.Require(err == nil, "instance_id", "must be the name of a member, got %q: %v", c.InstanceID, err))
	}
	for i, topic := range c.Topics {
		err := checkName(topic)
		errs = append(errs, config.Require(err == nil, fmt.Sprintf("topics[%d]", i), "must be the name of a topic, got %q: %v", topic, err))
	}
	_, err := compilePattern(c.Pattern)
	return errors.Join(append(errs,
		config.Require(err == nil, "pattern", "must be a regular expression: %v", err),
		config.CheckAtLeast("discover_every", c.DiscoverEvery, time.Second),
		config.CheckOneOf("isolation_level", c.IsolationLevel, readCommitted, readUncommitted),
		config.CheckOneOf("on_gap", c.OnGap, gapAlarm, gapFail),
		config.CheckAtLeast("commit_interval", c.CommitInterval, 10*time.Millisecond),
		config.CheckAtLeast("session_timeout", c.SessionTimeout, 6*time.Second),
		config.Require(c.DrainTimeout > 0 && c.DrainTimeout < c.RequestTimeout,
			"drain_timeout", "must be > 0 and shorter than request_timeout (%s), got %s", c.RequestTimeout, c.DrainTimeout),
		config.CheckRange("fetch_bytes", c.FetchBytes, config.KiB, 64*config.MiB),
		config.CheckRange("buffer_bytes", c.BufferBytes, config.MiB, 4096*config.MiB))...)
}

// compilePattern returns nil for an empty pattern.
func compilePattern(pattern string) (*regexp.Regexp, error) {
	if pattern == "" {
		return nil, nil //nolint:nilnil // no pattern is no fault
	}
	return regexp.Compile("^(?:" + pattern + ")$")
}

// settings are sarama's, for a route that may have that many bytes in flight.
func (c SourceConfig) settings(inFlight int64) (*sarama.Config, error) {
	conf, err := c.Connection.settings()
	if err != nil {
		return nil, err
	}
	conf.ChannelBufferSize = 1024
	conf.Metadata.Full = false
	conf.Metadata.RefreshFrequency = c.DiscoverEvery
	conf.Consumer.Return.Errors = true
	conf.Consumer.Fetch.Default = int32(c.fetchSize(inFlight))
	conf.Consumer.Fetch.Max = 0 // a bound makes the library skip a message above it
	conf.Consumer.Fetch.MaxBytes = int32(c.responseSize(inFlight))
	conf.Consumer.MaxWaitTime = 100 * time.Millisecond // for the first byte
	conf.Consumer.MaxProcessingTime = 5 * time.Second  // never reached: fillBuffer reads at once
	conf.Consumer.Retry.Backoff = time.Second
	conf.Consumer.IsolationLevel = sarama.ReadUncommitted
	if c.IsolationLevel == readCommitted {
		conf.Consumer.IsolationLevel = sarama.ReadCommitted
	}
	conf.Consumer.Offsets.Initial = sarama.OffsetOldest
	// The library commits the marks of all partitions in one request, with retries. The marks
	// follow the pipelines' watermarks only.
	conf.Consumer.Offsets.AutoCommit.Enable = true
	conf.Consumer.Offsets.AutoCommit.Interval = c.CommitInterval
	// With an invalid committed offset the claim starts at the oldest message, and checkGap finds
	// out why. Without this the session would end first.
	conf.Consumer.Group.ResetInvalidOffsets = true
	conf.Consumer.Group.InstanceId = c.InstanceID
	conf.Consumer.Group.Session.Timeout = c.SessionTimeout
	conf.Consumer.Group.Heartbeat.Interval = min(c.SessionTimeout/10, 3*time.Second)
	conf.Consumer.Group.Rebalance.Timeout = c.DrainTimeout + c.RequestTimeout + 10*time.Second
	conf.Consumer.Group.Rebalance.Retry.Backoff = time.Second
	conf.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{sarama.NewBalanceStrategyCooperativeSticky()}
	return conf, conf.Validate()
}

// SinkConfig says how to write.
type SinkConfig struct {
	Connection `yaml:",inline"`
	// Cluster is the name of the cluster in the hops of messages. Sources of the same cluster must
	// have the same name. Default kafka.
	Cluster string `yaml:"cluster"`
	// Topic is the destination of a route without to. Default: none.
	Topic string `yaml:"topic"`
	// Partition chooses the partition of a message: key (by the key's hash, as Kafka's Java client
	// does it; each batch of messages without a key goes to another partition) or source (the
	// number of its partition at the source). Default key.
	Partition string `yaml:"partition"`
	// Compression is none, gzip, snappy, lz4 or zstd. Default lz4.
	Compression string `yaml:"compression"`
	// Linger is how long a batch that is not full waits for more messages. At most 1m. Default 5ms.
	Linger time.Duration `yaml:"linger"`
	// MaxMessageBytes bounds a message, and a batch of several, before compression. A larger
	// message is refused. It should not exceed the topics' max.message.bytes: brokers refuse a
	// larger batch as a whole, and its messages are then sent one by one. From 1KiB to 64MiB.
	// Default 1000000.
	MaxMessageBytes config.Bytes `yaml:"max_message_bytes"`
	// Retries is how often a batch that the brokers cannot store for now is sent again before its
	// messages fail. Pipelines send them again after a pause, so it is no key. Default 5.
	Retries int `yaml:"-"`
	// MissingTopic says what to do when a topic does not exist: wait (report it, and try again
	// until the topic exists) or create (with the brokers' default number of replicas). Default
	// wait.
	MissingTopic string `yaml:"missing_topic"`
	// CreatePartitions is the number of partitions of a created topic; -1 is the brokers' default.
	// Default -1.
	CreatePartitions int32 `yaml:"create_partitions"`
}

// DefaultSinkConfig returns the defaults.
func DefaultSinkConfig() SinkConfig {
	return SinkConfig{
		Connection:       defaultConnection(),
		Cluster:          system,
		Partition:        partitionKey,
		Compression:      "lz4",
		Linger:           5 * time.Millisecond,
		MaxMessageBytes:  1_000_000,
		Retries:          5,
		MissingTopic:     missingWait,
		CreatePartitions: -1,
	}
}

// Validate returns every fault, by its path below this section. It connects to nothing.
func (c SinkConfig) Validate() error {
	err := checkName(c.Topic)
	return errors.Join(
		c.Connection.validate(),
		config.Require(c.Cluster != "", "cluster", "must not be empty"),
		config.Require(err == nil || c.Topic == "", "topic", "must be the name of a topic, got %q: %v", c.Topic, err),
		config.CheckOneOf("partition", c.Partition, partitionKey, partitionSource),
		config.CheckOneOf("compression", c.Compression, "none", "gzip", "snappy", "lz4", "zstd"),
		config.CheckOneOf("missing_topic", c.MissingTopic, missingWait, missingCreate),
		config.CheckRange("max_message_bytes", c.MaxMessageBytes, config.KiB, 64*config.MiB),
		config.CheckRange("linger", c.Linger, 0, time.Minute),
		config.Require(c.CreatePartitions > 0 || c.CreatePartitions == -1,
			"create_partitions", "must be > 0, or -1 for the brokers' default, got %d", c.CreatePartitions))
}

// checkName returns the fault of the name of a topic, or of a member of a group, by Kafka's
// rules.
func checkName(name string) error {
	switch {
	case name == "":
		return errors.New("it is empty")
	case len(name) > 249:
		return errors.New("it is longer than 249 characters")
	case name == "." || name == "..":
		return errors.New("it is not allowed")
	}
	for i := range len(name) {
		c := name[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '.' && c != '_' && c != '-' {
			return fmt.Errorf("it may hold letters, digits, '.', '_' and '-' only, not %q", c)
		}
	}
	return nil
}

// minBuffer is the smallest bufferSize, unless buffer_bytes is smaller.
const minBuffer = 256 << 10

// bufferSize is how many fetched bytes may wait for a route that may have inFlight bytes in flight.
// More than a quarter of these would only wait, and many routes with small shares would take many
// times their memory.
func (c SourceConfig) bufferSize(inFlight int64) int64 {
	return min(int64(c.BufferBytes), max(inFlight/4, minBuffer))
}

// fetchSize is how many bytes one fetch asks for per partition.
func (c SourceConfig) fetchSize(inFlight int64) config.Bytes {
	return min(c.FetchBytes, config.Bytes(c.bufferSize(inFlight)/2))
}

// responseSize bounds the response to a fetch.
func (c SourceConfig) responseSize(inFlight int64) config.Bytes {
	return min(2*c.fetchSize(inFlight), 64*config.MiB)
}

// Memory implements [connector.SourceConfig]: it counts the buffers, and the responses that are
// being received and decompressed.
func (c SourceConfig) Memory(_ int, inFlight int64) int64 {
	return c.bufferSize(inFlight) + 2*int64(c.responseSize(inFlight))
}

// Memory implements [connector.SinkConfig]: it counts the batches of 16 partitions, which are being
// compressed and sent.
func (c SinkConfig) Memory(_ int, inFlight int64) int64 {
	return min(16*int64(c.MaxMessageBytes), inFlight)
}

// System returns Kafka for Pigeonhole's table of systems.
func System() connector.System {
	return connector.System{
		Name:   system,
		Source: func() connector.SourceConfig { c := DefaultSourceConfig(); return &c },
		Sink:   func() connector.SinkConfig { c := DefaultSinkConfig(); return &c },
	}
}

// Offsets implements [connector.PartitionedSource].
func (c SourceConfig) Offsets() bool { return true }

// ForDeadLetters implements [connector.PartitionedSink].
func (c SinkConfig) ForDeadLetters() connector.SinkConfig {
	c.Partition = partitionKey
	return &c
}

// NameRules implements [connector.SinkConfig]. checkName refuses names that no topic can have.
func (c SinkConfig) NameRules() connector.NameRules {
	return connector.NameRules{Reserved: func(topic string) string {
		if strings.HasPrefix(topic, "__") {
			return `it begins with "__", which Kafka reserves for its own topics`
		}
		return ""
	}}
}
