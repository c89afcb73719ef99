package engine

import (
	"errors"
	"time"

	"github.com/aviaryhq/aviary/internal/config"
)

// Config bounds what the engine of one process does. Start from [DefaultConfig].
type Config struct {
	// PrefetchBytes bounds the events of one bus that this process has received and not
	// acknowledged: events to match, and events whose copies are not all stored. Further events
	// wait at the brokers. Default 32 MiB.
	PrefetchBytes int64 `yaml:"prefetch_bytes"`
	// QueueBytes bounds the copies that wait for one send topic (for ordered subscribers, for one of
	// its partitions). If the queue is full, the partition of the bus that the next copy comes from
	// waits. Default 8 MiB.
	QueueBytes int64 `yaml:"queue_bytes"`
	// DedupEvents bounds how many events this process remembers, over all buses, to drop duplicates.
	// Each takes about 100 bytes. Default 1,000,000.
	DedupEvents int `yaml:"dedup_events"`
	// StopTimeout bounds how long the copies of received events may take to be stored when the
	// engine stops. Default 10s.
	StopTimeout time.Duration `yaml:"stop_timeout"`
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{PrefetchBytes: 32 << 20, QueueBytes: 8 << 20, DedupEvents: 1_000_000, StopTimeout: 10 * time.Second}
}

// Validate reports all faults at once, each as "path: what would be right".
func (c Config) Validate() error {
	return errors.Join(
		config.CheckAtLeast("prefetch_bytes", c.PrefetchBytes, 1),
		config.CheckAtLeast("queue_bytes", c.QueueBytes, 1),
		config.CheckAtLeast("dedup_events", c.DedupEvents, 0),
		config.CheckAtLeast("stop_timeout", c.StopTimeout, time.Second),
	)
}
