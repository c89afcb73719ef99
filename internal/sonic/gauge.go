package sonic

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/sonic/lane"
	"github.com/aviaryhq/aviary/internal/sonic/message"
	"github.com/aviaryhq/aviary/internal/sonic/proxy"
)

// gauge measures the outbox, whichever process ships it, and holds writes back, or refuses them, while it is full.
type gauge struct {
	redis  *redis.Client
	lane   *lane.Lane
	log    *zap.Logger
	writes func(w proxy.Writes, reason string)

	mu   sync.Mutex // held while writes is called, so that what was decided last is what is called last
	cfg  OutboxConfig
	last measured
}

// measured is what the outbox was last.
type measured struct {
	length, bytes int64 // -1: not known
	age           time.Duration
	full          bool
	unsent        lane.Unsent // Lost is -1 when it is not known
}

// unknown is what is kept while Redis cannot be asked.
func unknown(full bool) measured {
	return measured{length: -1, bytes: -1, full: full, unsent: lane.Unsent{Noted: -1, Lost: -1}}
}

func newGauge(cfg OutboxConfig, db *redis.Client, l *lane.Lane, log *zap.Logger, writes func(proxy.Writes, string)) *gauge {
	return &gauge{cfg: cfg, redis: db, lane: l, log: log.Named("outbox"), writes: writes, last: unknown(false)}
}

// change changes the bounds. While the outbox is full writes go the new way at once; new bounds count from the next measurement on.
func (g *gauge) change(cfg OutboxConfig) {
	g.mu.Lock()
	defer g.mu.Unlock()
	was := g.cfg
	g.cfg = cfg
	if g.last.full && cfg.Full != was.Full {
		g.hold(cfg, g.last)
	}
}

func (g *gauge) bounds() OutboxConfig {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.cfg
}

// hold holds writes back, or refuses them.
func (g *gauge) hold(cfg OutboxConfig, m measured) {
	how := proxy.WritesHeld
	switch cfg.Full {
	case fullFail:
		how = proxy.WritesRefused
	case fullGoOn:
		how = proxy.WritesOpen
	}
	g.writes(how, fmt.Sprintf("the outbox is full: Pulsar has not stored %d bytes of effects, the oldest %s old", m.bytes, m.age.Round(time.Second)))
}

func (g *gauge) state() measured {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.last
}

// gaugeEvery is how often the outbox is measured. Its bounds may be exceeded by what is written meanwhile.
const gaugeEvery = 500 * time.Millisecond

// run measures until ctx ends.
func (g *gauge) run(ctx context.Context) error {
	ticker := time.NewTicker(gaugeEvery)
	defer ticker.Stop()
	for {
		m, err := g.measure(ctx)
		if err != nil {
			m = unknown(g.state().full) // whoever ships says what is the matter
		}
		g.take(m)
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// take keeps what was measured, and opens or closes the way of writes.
func (g *gauge) take(m measured) {
	g.mu.Lock()
	defer g.mu.Unlock()
	was, cfg := g.last, g.cfg
	g.last = m
	switch {
	case m.full && !was.full:
		g.log.Error("the outbox is full", zap.Int64("bytes", m.bytes), zap.Duration("age", m.age), zap.String("writes", cfg.Full))
		g.hold(cfg, m)
	case !m.full && was.full:
		g.log.Info("the outbox has room again")
		g.writes(proxy.WritesOpen, "")
	}
}

// looking returns length, bytes, the first id and the time, without the first entry itself, which may be large.
const looking = `
local first = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)
local now = redis.call('TIME')
return {redis.call('XLEN', KEYS[1]), redis.call('MEMORY', 'USAGE', KEYS[1]) or 0, first[1] and first[1][1] or '', now[1]}`

// measure asks Redis.
func (g *gauge) measure(ctx context.Context) (measured, error) {
	asking, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	found, err := g.redis.EvalRO(asking, looking, []string{g.lane.Outbox()}).Slice()
	if err != nil {
		return measured{}, err
	}
	if len(found) != 4 {
		return measured{}, fmt.Errorf("the answer of Redis has %d values", len(found))
	}
	var m measured
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
	if m.unsent, err = g.lane.Unsent(asking); err != nil {
		return measured{}, err
	}
	m.full = most.Mode == outboxStream && m.length > 0 && (m.bytes > int64(most.Bytes) || most.Age > 0 && m.age > most.Age)
	if drops := m.full && most.Full == fullGoOn; most.Mode == outboxStream && drops != m.unsent.Skips {
		// Every Sonic of the zone sees the same. A Redis that is not open drops nothing.
		if err := g.lane.Skip(asking, drops); err != nil && !lane.NotReady(err) {
			return measured{}, err
		}
	}
	return m, nil
}
