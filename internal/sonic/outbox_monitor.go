package sonic

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/sonic/message"
	"github.com/aviaryhq/aviary/internal/sonic/proxy"
	"github.com/aviaryhq/aviary/internal/sonic/redislib"
)

// outboxMonitor measures the outbox. Every Sonic of the zone does, also those that do not publish
// it. While the outbox is full, outboxMonitor makes the proxy delay writes or refuse them.
type outboxMonitor struct {
	redis     *redis.Client
	library   *redislib.Library
	log       *zap.Logger
	setWrites func(w proxy.Writes, reason string)

	mu   sync.Mutex // held during calls of writes, so that the last call has the last decision
	cfg  OutboxConfig
	last measurement
}

// measurement is the result of a measurement.
type measurement struct {
	length, bytes int64 // -1: not known
	age           time.Duration
	full          bool
	unsent        redislib.Unsent // Lost is -1 when unknown
}

// unknownMeasurement returns the result to use while Redis cannot be reached.
func unknownMeasurement(full bool) measurement {
	return measurement{length: -1, bytes: -1, full: full, unsent: redislib.Unsent{Noted: -1, Lost: -1}}
}

func newOutboxMonitor(cfg OutboxConfig, db *redis.Client, l *redislib.Library, log *zap.Logger, writes func(proxy.Writes, string)) *outboxMonitor {
	return &outboxMonitor{cfg: cfg, redis: db, library: l, log: log.Named("outbox"), setWrites: writes, last: unknownMeasurement(false)}
}

// change sets new bounds. They take effect with the next measurement. If the outbox is full now, a
// new value of Full takes effect at once.
func (g *outboxMonitor) change(cfg OutboxConfig) {
	g.mu.Lock()
	defer g.mu.Unlock()
	was := g.cfg
	g.cfg = cfg
	if g.last.full && cfg.Full != was.Full {
		g.applyFull(cfg, g.last)
	}
}

func (g *outboxMonitor) bounds() OutboxConfig {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.cfg
}

// applyFull makes the proxy treat writes as cfg.Full says for a full outbox.
func (g *outboxMonitor) applyFull(cfg OutboxConfig, m measurement) {
	how := proxy.WritesHeld
	switch cfg.Full {
	case fullFail:
		how = proxy.WritesRefused
	case fullDrop:
		how = proxy.WritesOpen
	}
	g.setWrites(how, fmt.Sprintf("the outbox is full: Pulsar has not stored %d bytes of effects, the oldest %s old", m.bytes, m.age.Round(time.Second)))
}

func (g *outboxMonitor) state() measurement {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.last
}

// measureInterval is how often the outbox is measured. Writes between two measurements may exceed
// its bounds.
const measureInterval = 500 * time.Millisecond

// run measures until ctx ends.
func (g *outboxMonitor) run(ctx context.Context) error {
	ticker := time.NewTicker(measureInterval)
	defer ticker.Stop()
	for {
		m, err := g.measure(ctx)
		if err != nil {
			m = unknownMeasurement(g.state().full) // the shipper logs the error
		}
		g.record(m)
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// record stores a measurement. When the outbox has become full, or has room again, record tells the
// proxy.
func (g *outboxMonitor) record(m measurement) {
	g.mu.Lock()
	defer g.mu.Unlock()
	was, cfg := g.last, g.cfg
	g.last = m
	switch {
	case m.full && !was.full:
		g.log.Error("the outbox is full", zap.Int64("bytes", m.bytes), zap.Duration("age", m.age), zap.String("writes", cfg.Full))
		g.applyFull(cfg, m)
	case !m.full && was.full:
		g.log.Info("the outbox has room again")
		g.setWrites(proxy.WritesOpen, "")
	}
}

// measureScript is a script that returns length, bytes, the id of the first entry and the time. It
// does not return the first entry itself, which may be large.
const measureScript = `
local first = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)
local now = redis.call('TIME')
return {redis.call('XLEN', KEYS[1]), redis.call('MEMORY', 'USAGE', KEYS[1]) or 0, first[1] and first[1][1] or '', now[1]}`

// measure asks Redis.
func (g *outboxMonitor) measure(ctx context.Context) (measurement, error) {
	asking, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	found, err := g.redis.EvalRO(asking, measureScript, []string{g.library.Outbox()}).Slice()
	if err != nil {
		return measurement{}, err
	}
	if len(found) != 4 {
		return measurement{}, fmt.Errorf("the answer of Redis has %d values", len(found))
	}
	var m measurement
	m.length, _ = found[0].(int64)
	m.bytes, _ = found[1].(int64)
	first, _ := found[2].(string)
	now, _ := found[3].(string)
	id, err1 := message.ParseID(first)
	seconds, err2 := strconv.ParseInt(now, 10, 64)
	if err1 == nil && err2 == nil && m.length > 0 {
		m.age = max(time.Unix(seconds, 0).Sub(time.UnixMilli(int64(id.Ms))), 0)
	}
	most := g.bounds()
	if m.unsent, err = g.library.Unsent(asking); err != nil {
		return measurement{}, err
	}
	m.full = most.Mode == outboxStream && m.length > 0 && (m.bytes > int64(most.Bytes) || most.Age > 0 && m.age > most.Age)
	if drops := m.full && most.Full == fullDrop; most.Mode == outboxStream && drops != m.unsent.Dropping {
		// Every Sonic of the zone comes to the same result. A Redis that is not open drops nothing,
		// so its refusal is no error.
		if err := g.library.SetDropping(asking, drops); err != nil && !redislib.NotReady(err) {
			return measurement{}, err
		}
	}
	return m, nil
}
