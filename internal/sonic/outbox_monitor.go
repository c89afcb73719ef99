package sonic

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/sonic/proxy"
	"github.com/aviaryhq/aviary/internal/sonic/redislib"
	"github.com/aviaryhq/aviary/pkg/backoff"
)

// outboxMonitor measures the outbox. Every Sonic of the zone does, also those that do not publish
// it. While the outbox is full, outboxMonitor makes the proxy delay writes or refuse them.
type outboxMonitor struct {
	ask       func(ctx context.Context, cfg OutboxConfig) (measurement, error)
	log       *zap.Logger
	setWrites func(w proxy.WriteMode, reason string)

	mu   sync.Mutex // held during calls of setWrites, so that the last call has the last decision
	cfg  OutboxConfig
	last measurement
}

// measurement is the result of a measurement. Entries, Bytes, Noted and Lost are -1 while unknown, and
// Age is negative. In front of a Redis Cluster Entries, Noted and Lost are always unknown.
type measurement struct {
	redislib.Unsent
	full bool
}

// unknownMeasurement returns the result to use while Redis cannot be reached.
func unknownMeasurement(full bool) measurement {
	return measurement{redislib.Unsent{Entries: -1, Bytes: -1, Age: -time.Second, Noted: -1, Lost: -1}, full}
}

// problem describes a full outbox.
func (m measurement) problem() string {
	problem := "the outbox is full"
	if m.Bytes >= 0 {
		problem += fmt.Sprintf(": Pulsar has not stored %d bytes of effects", m.Bytes)
	}
	if m.Age >= 0 {
		problem += fmt.Sprintf(", the oldest %s old", m.Age.Round(time.Second))
	}
	return problem
}

// newOutboxMonitor returns a monitor that measures by ask.
func newOutboxMonitor(cfg OutboxConfig, ask func(context.Context, OutboxConfig) (measurement, error), log *zap.Logger, writes func(proxy.WriteMode, string)) *outboxMonitor {
	return &outboxMonitor{cfg: cfg, ask: ask, log: log.Named("outbox"), setWrites: writes, last: unknownMeasurement(false)}
}

// change sets new bounds. They take effect with the next measurement. If the outbox is full now, a
// new value of Full takes effect at once.
func (o *outboxMonitor) change(cfg OutboxConfig) {
	o.mu.Lock()
	defer o.mu.Unlock()
	was := o.cfg
	o.cfg = cfg
	if o.last.full && cfg.Full != was.Full {
		o.applyFull(cfg, o.last)
	}
}

func (o *outboxMonitor) bounds() OutboxConfig {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.cfg
}

// applyFull makes the proxy treat writes as cfg.Full says for a full outbox.
func (o *outboxMonitor) applyFull(cfg OutboxConfig, m measurement) {
	how := proxy.WritesDelayed
	switch cfg.Full {
	case fullFail:
		how = proxy.WritesRefused
	case fullDrop:
		how = proxy.WritesOpen
	}
	o.setWrites(how, m.problem())
}

func (o *outboxMonitor) state() measurement {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.last
}

// measureInterval is how often the outbox is measured. Writes between two measurements may exceed
// its bounds: see bound.
const measureInterval = 500 * time.Millisecond

// run measures until ctx ends.
func (o *outboxMonitor) run(ctx context.Context) error {
	for {
		m, err := o.measure(ctx)
		if err != nil {
			m = unknownMeasurement(o.state().full) // the shipper logs the error
		}
		o.record(m)
		if !backoff.Sleep(ctx, measureInterval) {
			return nil
		}
	}
}

// record stores a measurement. When the outbox has become full, or has room again, record informs
// the proxy.
func (o *outboxMonitor) record(m measurement) {
	o.mu.Lock()
	defer o.mu.Unlock()
	was, cfg := o.last, o.cfg
	o.last = m
	switch {
	case m.full && !was.full:
		o.log.Error("the outbox is full", zap.Int64("bytes", m.Bytes), zap.Duration("age", m.Age), zap.String("writes", cfg.Full))
		o.applyFull(cfg, m)
	case !m.full && was.full:
		o.log.Info("the outbox has room again")
		o.setWrites(proxy.WritesOpen, "")
	}
}

// measureTimeout bounds a measurement.
const measureTimeout = 2 * time.Second

func (o *outboxMonitor) measure(ctx context.Context) (measurement, error) {
	ctx, cancel := context.WithTimeout(ctx, measureTimeout)
	defer cancel()
	return o.ask(ctx, o.bounds())
}

// measureOne returns a function that measures the outbox of one Redis.
func measureOne(l *redislib.Library) func(context.Context, OutboxConfig) (measurement, error) {
	return func(ctx context.Context, cfg OutboxConfig) (measurement, error) {
		u, err := l.Unsent(ctx)
		if err != nil {
			return measurement{}, err
		}
		m := measurement{Unsent: u}
		m.full = m.Entries > 0 && (m.Bytes > int64(cfg.Bytes) || cfg.Age > 0 && m.Age > cfg.Age)
		if drops := m.full && cfg.Full == fullDrop; drops != u.Dropping || cfg.bound() != u.Bound {
			// Every Sonic of the zone comes to the same result. A Redis that is not open drops nothing,
			// so its refusal is no error.
			if err := l.SetDropping(ctx, drops, cfg.bound()); err != nil && !redislib.NotReady(err) {
				return measurement{}, err
			}
		}
		return m, nil
	}
}

// minBoundMargin is the least that the stream may hold beyond OutboxConfig.Bytes: between two
// measurements writes go on.
const minBoundMargin = 16 << 20

// bound returns what the stream may hold before Redis itself refuses writes, or drops their
// effects: a quarter more than Bytes, beyond which the proxy does so. Without the margin, writes
// that may wait would be refused.
func (c OutboxConfig) bound() redislib.Bound {
	return redislib.Bound{Bytes: int64(c.Bytes) + max(int64(c.Bytes)/4, minBoundMargin), Drops: c.Full == fullDrop}
}
