package delivery

import (
	"errors"
	"time"

	"github.com/aviaryhq/aviary/internal/config"
)

// Config bounds what the processor of one process does. Start from [DefaultConfig].
type Config struct {
	// PrefetchBytes bounds the bytes of events that were received and not delivered yet, over all
	// subscribers, without held events. Each subscriber has an equal part, at least 128 KiB and at
	// most 8 MiB. Default 128 MiB.
	PrefetchBytes int64 `yaml:"prefetch_bytes"`
	// HeldMessages bounds, for each ordered subscriber, the events in this process that wait for
	// another attempt, and those that wait behind them. Events of other keys are delivered
	// meanwhile. Together they have 1 MiB at most, or twice the subscriber's part of PrefetchBytes
	// if that is more. Default 1,000.
	HeldMessages int `yaml:"held_messages"`
	// StopTimeout bounds how long deliveries in flight may take when the processor stops. Default
	// 10s.
	StopTimeout time.Duration `yaml:"stop_timeout"`
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{PrefetchBytes: 128 << 20, HeldMessages: 1000, StopTimeout: 10 * time.Second}
}

// Validate reports all faults at once, each as "path: what would be right".
func (c Config) Validate() error {
	return errors.Join(
		config.CheckAtLeast("prefetch_bytes", c.PrefetchBytes, 1<<20),
		config.CheckAtLeast("held_messages", c.HeldMessages, 1),
		config.CheckAtLeast("stop_timeout", c.StopTimeout, time.Second))
}

const (
	// startRate is how many subscribers per second the processor begins to consume.
	startRate = 100
	// logAttempts is how many of the latest attempts the processor keeps for each subscriber.
	logAttempts = 50
)

// leastPart and mostPart bound one subscriber's part of PrefetchBytes. An ordered subscriber holds
// twice its part for another attempt, and leastHeld at least: its part becomes small when there are
// many subscribers, and a few large events that fail must not hold up others.
const (
	leastPart = 128 << 10
	mostPart  = 8 << 20
	leastHeld = 1 << 20
)

// Memory is about how many bytes the received events of so many subscribers may take.
func (c Config) Memory(subscribers int) int64 { return int64(subscribers) * c.part(subscribers) }

// part is the part of PrefetchBytes that each of n subscribers has.
func (c Config) part(n int) int64 {
	return min(max(c.PrefetchBytes/int64(max(n, 1)), leastPart), mostPart)
}
