package kafka

import (
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/IBM/sarama"

	"github.com/aviaryhq/aviary/internal/config"
)

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
	// Group is the consumer group. Its committed offsets are where this source goes on after a
	// restart; several processes of one group share the partitions. It must be given.
	Group string `yaml:"group"`
	// InstanceID makes this process a static member of the group: when it starts again within
	// SessionTimeout, after a crash too, it goes on at once with the partitions that it had.
	// Without it the group waits for SessionTimeout after a crash. Each process of the group needs
	// its own (a second one with the same drives out the first); a process that stops for good
	// keeps its partitions from others until SessionTimeout. Letters, digits, '-', '_' and '.', at
	// most 249. Default: none.
	InstanceID string `yaml:"instance_id"`
	// Topics are read, each of them once it exists. Either these or Pattern must be given.
	Topics []string `yaml:"topics"`
	// Pattern is a regular expression (RE2): every topic whose whole name matches is read, those
	// that are made later too. Topics internal to Kafka (__consumer_offsets and the like) are not.
	Pattern string `yaml:"pattern"`
	// DiscoverEvery is how often new topics and new partitions are looked for. A change of the
	// topics starts the group's session anew; new partitions of a topic are added to it. At least
	// 1s. Default 30s.
	DiscoverEvery time.Duration `yaml:"discover_every"`
	// IsolationLevel is read_committed, which leaves out messages of aborted transactions and waits
	// for open ones, or read_uncommitted. Default read_committed.
	IsolationLevel string `yaml:"isolation_level"`
	// OnGap says what to do when messages are gone that have not been read: the committed offset
	// lies outside the partition's log, because of the topic's retention, or because the topic was
	// deleted and made again. alarm: log and count it, and go on from the oldest message. fail:
	// stop the route. Default alarm.
	OnGap string `yaml:"on_gap"`
	// CommitInterval is how often offsets are committed. A killed process's successor reads again
	// what was stored since. Default 1s.
	CommitInterval time.Duration `yaml:"commit_interval"`
	// SessionTimeout is after what silence the group gives this process's partitions to others.
	// From 6s. Default 45s.
	SessionTimeout time.Duration `yaml:"session_timeout"`
	// RebalanceTimeout is how long the members of the group have for giving up partitions. It must
	// be longer than drain_timeout and request_timeout together. Default 60s.
	RebalanceTimeout time.Duration `yaml:"rebalance_timeout"`
	// DrainTimeout is how long messages in flight are waited for before a partition is given up, at
	// a rebalance and at a stop. What is not stored then is read again by whoever has the partition
	// next. It must be shorter than request_timeout. Default 20s.
	DrainTimeout time.Duration `yaml:"drain_timeout"`
	// FetchBytes is how much is fetched of a partition at once, as it is stored, and half of what
	// is fetched from a broker at once. A single batch that is larger is fetched nevertheless. What
	// is compressed well takes many times as much memory here: fetch less of it. Default 1MiB.
	FetchBytes config.Bytes `yaml:"fetch_bytes"`
	// FetchMinBytes is how much the broker waits for, at most FetchWait, before it answers. More
	// than 1 saves requests at the price of latency. Default 1.
	FetchMinBytes config.Bytes `yaml:"fetch_min_bytes"`
	// FetchWait is how long the broker waits for new messages before it answers without any. From
	// 100ms to 5s. Default 100ms.
	FetchWait time.Duration `yaml:"fetch_wait"`
	// BufferBytes bounds what is fetched and not taken by the route yet, of all partitions
	// together, each with an equal share; above its share a partition is paused. What was asked for
	// before is still taken. No more is used than a quarter of the bytes that the route may have in
	// flight, and for one fetch half of that. At least 1MiB. Default 32MiB.
	BufferBytes config.Bytes `yaml:"buffer_bytes"`
}

// DefaultSourceConfig returns the defaults. Group, and Topics or Pattern, have none.
func DefaultSourceConfig() SourceConfig {
	return SourceConfig{
		Connection:       defaultConnection(),
		Cluster:          system,
		DiscoverEvery:    30 * time.Second,
		IsolationLevel:   readCommitted,
		OnGap:            gapAlarm,
		CommitInterval:   time.Second,
		SessionTimeout:   45 * time.Second,
		RebalanceTimeout: time.Minute,
		DrainTimeout:     20 * time.Second,
		FetchBytes:       config.MiB,
		FetchMinBytes:    1,
		FetchWait:        100 * time.Millisecond,
		BufferBytes:      32 * config.MiB,
	}
}

// Validate returns every fault at once, each by its path below this section. Nothing is connected
// to.
func (c SourceConfig) Validate() error {
	errs := []error{c.Connection.validate()}
	fault := func(path, format string, args ...any) { errs = append(errs, config.Fault(path, format, args...)) }
	if c.Cluster == "" {
		fault("cluster", "must not be empty")
	}
	if c.Group == "" {
		fault("group", "must name the consumer group")
	}
	if c.InstanceID != "" && !regexp.MustCompile(`^[A-Za-z0-9._-]{1,249}$`).MatchString(c.InstanceID) {
		fault("instance_id", "must be letters, digits, '-', '_' and '.', at most 249 of them, got %q", c.InstanceID)
	}
	if (len(c.Topics) == 0) == (c.Pattern == "") {
		fault("topics", "must be given, either here or by pattern")
	}
	for i, topic := range c.Topics {
		if err := checkTopic(topic); err != nil {
			fault(fmt.Sprintf("topics[%d]", i), "must be the name of a topic, got %q: %s", topic, err)
		}
	}
	if _, err := compilePattern(c.Pattern); err != nil {
		fault("pattern", "must be a regular expression: %s", err)
	}
	errs = append(errs,
		config.CheckAtLeast("discover_every", c.DiscoverEvery, time.Second),
		config.CheckOneOf("isolation_level", c.IsolationLevel, readCommitted, readUncommitted),
		config.CheckOneOf("on_gap", c.OnGap, gapAlarm, gapFail),
		config.CheckAtLeast("commit_interval", c.CommitInterval, 10*time.Millisecond),
		config.CheckAtLeast("session_timeout", c.SessionTimeout, 6*time.Second))
	if c.DrainTimeout <= 0 || c.DrainTimeout >= c.RequestTimeout {
		fault("drain_timeout", "must be > 0 and shorter than request_timeout (%s), got %s", c.RequestTimeout, c.DrainTimeout)
	}
	if c.RebalanceTimeout <= c.DrainTimeout+c.RequestTimeout {
		fault("rebalance_timeout", "must be longer than drain_timeout and request_timeout together (%s), got %s",
			c.DrainTimeout+c.RequestTimeout, c.RebalanceTimeout)
	}
	errs = append(errs,
		config.CheckRange("fetch_bytes", c.FetchBytes, config.KiB, 64*config.MiB),
		config.CheckRange("fetch_min_bytes", c.FetchMinBytes, 1, 64*config.MiB),
		config.CheckRange("buffer_bytes", c.BufferBytes, config.MiB, 4096*config.MiB),
		config.CheckRange("fetch_wait", c.FetchWait, 100*time.Millisecond, 5*time.Second))
	return errors.Join(errs...)
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
	conf.Consumer.Fetch.Min = int32(c.FetchMinBytes)
	conf.Consumer.Fetch.Default = int32(c.fetchSize(inFlight))
	conf.Consumer.Fetch.Max = 0 // a bound makes the library skip a message above it
	conf.Consumer.Fetch.MaxBytes = int32(min(2*c.fetchSize(inFlight), 64*config.MiB))
	conf.Consumer.MaxWaitTime = c.FetchWait
	conf.Consumer.MaxProcessingTime = 5 * time.Second // never reached: fillBuffer reads at once
	conf.Consumer.Retry.Backoff = time.Second
	conf.Consumer.IsolationLevel = sarama.ReadUncommitted
	if c.IsolationLevel == readCommitted {
		conf.Consumer.IsolationLevel = sarama.ReadCommitted
	}
	conf.Consumer.Offsets.Initial = sarama.OffsetOldest
	// What is committed are the marks, and those follow the pipelines' watermarks only. The library
	// commits them for all partitions in one request, and tries again when it fails.
	conf.Consumer.Offsets.AutoCommit.Enable = true
	conf.Consumer.Offsets.AutoCommit.Interval = c.CommitInterval
	// With an invalid committed offset the claim starts at the oldest message, and the claim then
	// finds out why and says so: see gap.go. Without this the session would end before anybody is
	// asked.
	conf.Consumer.Group.ResetInvalidOffsets = true
	conf.Consumer.Group.InstanceId = c.InstanceID
	conf.Consumer.Group.Session.Timeout = c.SessionTimeout
	conf.Consumer.Group.Heartbeat.Interval = min(c.SessionTimeout/10, 3*time.Second)
	conf.Consumer.Group.Rebalance.Timeout = c.RebalanceTimeout
	conf.Consumer.Group.Rebalance.Retry.Backoff = time.Second
	conf.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{sarama.NewBalanceStrategyCooperativeSticky()}
	return conf, conf.Validate()
}

// SinkConfig says how to write.
type SinkConfig struct {
	Connection `yaml:",inline"`
	// Cluster is the name of the cluster in the hops of messages: the one that sources of the same
	// cluster have. Default kafka.
	Cluster string `yaml:"cluster"`
	// Topic takes the messages for which the route names none. Default: none, the route must name
	// it.
	Topic string `yaml:"topic"`
	// Partition says how a message's partition is chosen. key: by the key's hash, as Kafka's Java
	// client does it; messages without a key are spread a batch at a time. source: the number of
	// the partition that it was read from. Default key.
	Partition string `yaml:"partition"`
	// Compression is none, gzip, snappy, lz4 or zstd. Default lz4.
	Compression string `yaml:"compression"`
	// Linger is how long a batch is collected, unless it is full before. 0: not at all. Default
	// 5ms.
	Linger time.Duration `yaml:"linger"`
	// MaxMessageBytes bounds a message, and the batch that is made of several, before compression.
	// A larger message is refused. Keep it at or below the topics' max.message.bytes: a batch above
	// that is refused as a whole, and its messages are then sent one by one. Default 1000000.
	MaxMessageBytes config.Bytes `yaml:"max_message_bytes"`
	// Retries is how often a batch that the brokers cannot store for now is sent again before the
	// route is told, which then pauses and sends anew. While no broker answers, messages wait here.
	// Default 5.
	Retries int `yaml:"retries"`
	// MissingTopic says what to do about a topic that does not exist. wait: report it and try again
	// until it does. create: create it. Default wait.
	MissingTopic string `yaml:"missing_topic"`
	// CreatePartitions and CreateReplication are those of a topic that is created. -1: the brokers'
	// own default. Default -1 both.
	CreatePartitions  int32 `yaml:"create_partitions"`
	CreateReplication int16 `yaml:"create_replication"`
}

// DefaultSinkConfig returns the defaults.
func DefaultSinkConfig() SinkConfig {
	return SinkConfig{
		Connection:        defaultConnection(),
		Cluster:           system,
		Partition:         partitionKey,
		Compression:       "lz4",
		Linger:            5 * time.Millisecond,
		MaxMessageBytes:   1_000_000,
		Retries:           5,
		MissingTopic:      missingWait,
		CreatePartitions:  -1,
		CreateReplication: -1,
	}
}

// Validate returns every fault at once, each by its path below this section. Nothing is connected
// to.
func (c SinkConfig) Validate() error {
	errs := []error{c.Connection.validate()}
	fault := func(path, format string, args ...any) { errs = append(errs, config.Fault(path, format, args...)) }
	if c.Cluster == "" {
		fault("cluster", "must not be empty")
	}
	if c.Topic != "" {
		if err := checkTopic(c.Topic); err != nil {
			fault("topic", "must be the name of a topic, got %q: %s", c.Topic, err)
		}
	}
	errs = append(errs,
		config.CheckOneOf("partition", c.Partition, partitionKey, partitionSource),
		config.CheckOneOf("compression", c.Compression, "none", "gzip", "snappy", "lz4", "zstd"),
		config.CheckOneOf("missing_topic", c.MissingTopic, missingWait, missingCreate),
		config.CheckRange("max_message_bytes", c.MaxMessageBytes, config.KiB, 64*config.MiB))
	if c.Linger < 0 || c.Linger > time.Minute {
		fault("linger", "must be from 0s to 1m, got %s", c.Linger)
	}
	errs = append(errs, config.CheckRange("retries", c.Retries, 0, 1000))
	if c.CreatePartitions == 0 || c.CreatePartitions < -1 {
		fault("create_partitions", "must be > 0, or -1 for the brokers' default, got %d", c.CreatePartitions)
	}
	if c.CreateReplication == 0 || c.CreateReplication < -1 {
		fault("create_replication", "must be > 0, or -1 for the brokers' default, got %d", c.CreateReplication)
	}
	return errors.Join(errs...)
}
