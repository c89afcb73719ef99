package engine

import (
	"errors"
	"fmt"
	"time"

	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Config bounds what the engine of one process does. Start from [DefaultConfig].
type Config struct {
	// PrefetchMessages and PrefetchBytes bound the events of one bus that are here and not acknowledged: received,
	// being matched, or waiting until all their copies are stored. What is beyond waits at the brokers. Defaults 5,000
	// and 32 MiB.
	PrefetchMessages int   `yaml:"prefetch_messages"`
	PrefetchBytes    int64 `yaml:"prefetch_bytes"`
	// QueueRecords and QueueBytes bound the copies that wait for one send topic (one partition of it for ordered
	// subscribers). A partition of the bus whose event finds the queue full waits. Defaults 1,000 and 8 MiB.
	QueueRecords int   `yaml:"queue_records"`
	QueueBytes   int64 `yaml:"queue_bytes"`
	// StallAfter is how long a send topic may take nothing before copies for it go to the subscriber's dead-letter
	// topic, while that works. Default 1m, at least 1s.
	StallAfter time.Duration `yaml:"stall_after"`
	// IdleAfter is after how long without a copy the producer of a send topic is closed. Default 1m.
	IdleAfter time.Duration `yaml:"idle_after"`
	// DedupEvents bounds how many events this process remembers, over all buses, to leave out those that come again.
	// Each takes about 100 bytes. Default 1,000,000.
	DedupEvents int `yaml:"dedup_events"`
	// DedupRebuild bounds how long reading the events of the window may take when a partition is taken over. Default
	// 10s.
	DedupRebuild time.Duration `yaml:"dedup_rebuild"`
	// AckBatchIndex acknowledges the events of a batch one by one: see messaging.ConsumerConfig. Default false.
	AckBatchIndex bool `yaml:"ack_batch_index"`
	// Compression of copies: lz4, zstd or none. Each open send topic takes half a megabyte more with lz4. Default none.
	Compression messaging.Compression `yaml:"compression"`
	// StopTimeout bounds how long events that are here may take to be stored at a stop. Default 10s.
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

// Validate reports every fault at once, each as "path: what would be right".
func (c Config) Validate() error {
	var errs []error
	least := func(path string, got, least int64) {
		if got < least {
			errs = append(errs, fmt.Errorf("%s: must be at least %d, got %d", path, least, got))
		}
	}
	long := func(path string, got, least time.Duration) {
		if got < least {
			errs = append(errs, fmt.Errorf("%s: must be at least %s, got %s", path, least, got))
		}
	}
	least("prefetch_messages", int64(c.PrefetchMessages), 1)
	least("prefetch_bytes", c.PrefetchBytes, 1)
	least("queue_records", int64(c.QueueRecords), 1)
	least("queue_bytes", c.QueueBytes, 1)
	least("dedup_events", int64(c.DedupEvents), 0)
	long("stall_after", c.StallAfter, time.Second)
	long("idle_after", c.IdleAfter, time.Second)
	long("dedup_rebuild", c.DedupRebuild, 0)
	long("stop_timeout", c.StopTimeout, time.Second)
	switch c.Compression {
	case messaging.LZ4, messaging.ZSTD, messaging.NoCompression:
	default:
		errs = append(errs, fmt.Errorf("compression: must be lz4, zstd or none, got %q", c.Compression))
	}
	return errors.Join(errs...)
}
