package engine

import (
	"errors"
	"time"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Config bounds what the engine of one process does. Start from [DefaultConfig].
type Config struct {
	// PrefetchMessages and PrefetchBytes bound the events of one bus that this process has received
	// and not acknowledged: events to match, and events whose copies are not all stored. Further
	// events wait at the brokers. Defaults 5,000 and 32 MiB.
	PrefetchMessages int   `yaml:"prefetch_messages"`
	PrefetchBytes    int64 `yaml:"prefetch_bytes"`
	// QueueRecords and QueueBytes bound the copies that wait for one send topic (for ordered
	// subscribers, for one of its partitions). If the queue is full, the partition of the bus that
	// the next copy comes from waits. Defaults 1,000 and 8 MiB.
	QueueRecords int   `yaml:"queue_records"`
	QueueBytes   int64 `yaml:"queue_bytes"`
	// StallAfter is how long a send topic may accept nothing before its copies go to the
	// subscriber's dead-letter topic, as long as that accepts them. Default 1m, at least 1s.
	StallAfter time.Duration `yaml:"stall_after"`
	// IdleAfter is how long a send topic may get no copy before its producer is closed. Default 1m.
	IdleAfter time.Duration `yaml:"idle_after"`
	// DedupEvents bounds how many events this process remembers, over all buses, to leave out
	// duplicates. Each takes about 100 bytes. Default 1,000,000.
	DedupEvents int `yaml:"dedup_events"`
	// DedupRebuild bounds how long an engine that takes over a partition may read back the events
	// of the dedup window. Default 10s.
	DedupRebuild time.Duration `yaml:"dedup_rebuild"`
	// AckBatchIndex acknowledges the events of a batch one by one: see messaging.ConsumerConfig.
	// Default false.
	AckBatchIndex bool `yaml:"ack_batch_index"`
	// Compression is that of copies: lz4, zstd or none. With lz4, each open send topic takes half a
	// megabyte more. Default none.
	Compression messaging.Compression `yaml:"compression"`
	// StopTimeout bounds how long the copies of received events may take to be stored when the
	// engine stops. Default 10s.
	StopTimeout time.Duration `yaml:"stop_timeout"`
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{
		PrefetchMessages: 5000, PrefetchBytes: 32 << 20,
		QueueRecords: 1000, QueueBytes: 8 << 20,
		StallAfter: time.Minute, IdleAfter: time.Minute,
		DedupEvents: 1_000_000, DedupRebuild: 10 * time.Second,
		Compression: messaging.NoCompression, StopTimeout: 10 * time.Second,
	}
}

// Validate reports all faults at once, each as "path: what would be right".
func (c Config) Validate() error {
	errs := []error{
		config.CheckAtLeast("prefetch_messages", c.PrefetchMessages, 1),
		config.CheckAtLeast("prefetch_bytes", c.PrefetchBytes, 1),
		config.CheckAtLeast("queue_records", c.QueueRecords, 1),
		config.CheckAtLeast("queue_bytes", c.QueueBytes, 1),
		config.CheckAtLeast("dedup_events", c.DedupEvents, 0),
		config.CheckAtLeast("stall_after", c.StallAfter, time.Second),
		config.CheckAtLeast("idle_after", c.IdleAfter, time.Second),
		config.CheckAtLeast("dedup_rebuild", c.DedupRebuild, 0),
		config.CheckAtLeast("stop_timeout", c.StopTimeout, time.Second),
	}
	switch c.Compression {
	case messaging.LZ4, messaging.ZSTD, messaging.NoCompression:
	default:
		errs = append(errs, config.Fault("compression", "must be lz4, zstd or none, got %q", c.Compression))
	}
	return errors.Join(errs...)
}
