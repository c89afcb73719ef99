package processor

import (
	"errors"
	"fmt"
	"time"
)

// Config bounds what the processor of one process does. Start from [DefaultConfig].
type Config struct {
	// PrefetchBytes bounds, over all subscribers, the bytes of events that are here and not delivered, held ones not
	// counted. Each subscriber has an equal part, at least 128 KiB and at most 8 MiB. Default 128 MiB.
	PrefetchBytes int64 `yaml:"prefetch_bytes"`
	// HeldMessages bounds, for each ordered subscriber, the events that wait here for another attempt, or behind one that
	// does. Those of other keys go on meanwhile. Default 1,000.
	HeldMessages int `yaml:"held_messages"`
	// StartRate is how many subscribers a second begin to be consumed. Default 100.
	StartRate float64 `yaml:"start_rate"`
	// LogAttempts is how many of the latest attempts are kept for each subscriber. Default 50.
	LogAttempts int `yaml:"log_attempts"`
	// BacklogEvery is how often the brokers are asked for backlogs, where there is an address of their admin API.
	// Default 30s.
	BacklogEvery time.Duration `yaml:"backlog_every"`
	// StopTimeout bounds how long deliveries under way may take at a stop. Default 10s.
	StopTimeout time.Duration `yaml:"stop_timeout"`
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{
		PrefetchBytes: 128 << 20, HeldMessages: 1000, StartRate: 100, LogAttempts: 50,
		BacklogEvery: 30 * time.Second, StopTimeout: 10 * time.Second,
	}
}

// Validate reports every fault at once, each as "path: what would be right".
func (c Config) Validate() error {
	var errs []error
	least := func(path string, got, least float64) {
		if got < least {
			errs = append(errs, fmt.Errorf("%s: must be at least %g, got %g", path, least, got))
		}
	}
	least("prefetch_bytes", float64(c.PrefetchBytes), 1<<20)
	least("held_messages", float64(c.HeldMessages), 1)
	least("start_rate", c.StartRate, 1)
	least("log_attempts", float64(c.LogAttempts), 0)
	for _, d := range []struct {
		path string
		got  time.Duration
	}{{"backlog_every", c.BacklogEvery}, {"stop_timeout", c.StopTimeout}} {
		if d.got < time.Second {
			errs = append(errs, fmt.Errorf("%s: must be at least 1s, got %s", d.path, d.got))
		}
	}
	return errors.Join(errs...)
}

// The bounds of one subscriber's part of PrefetchBytes.
const (
	leastPart = 128 << 10
	mostPart  = 8 << 20
)

// Memory is about what the configuration lets events take that are here for so many subscribers.
func (c Config) Memory(subscribers int) int64 { return int64(subscribers) * c.part(subscribers) }

// part is the part of PrefetchBytes that one of n subscribers has.
func (c Config) part(n int) int64 {
	return min(max(c.PrefetchBytes/int64(max(n, 1)), leastPart), mostPart)
}
