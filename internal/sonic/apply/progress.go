package apply

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/health"
	"github.com/aviaryhq/aviary/internal/sonic/topic"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// progress is what the appliers of both kinds of zones have in common: the consumer of the other
// zone's topic, and how far this zone is. All methods are safe for concurrent use.
type progress struct {
	cfg       Config
	client    *messaging.Client
	log       *zap.Logger
	metrics   *Metrics
	health    *health.State
	clockSkew *health.State
	topic     *health.State // errors of the topic, which the Pulsar client logs
	passed    passedFunc

	mu            sync.Mutex
	status        Status
	otherSettings string       // the settings of the other zone that came last
	lastInTopic   wire.ID      // the last effect known to be in the topic
	ends          []endOfTopic // ends of the topic at earlier checks that are not known to be applied yet
	gapAt         *wire.ID     // after which effects are missing, once logged; nil: none are missing
	lags          lags
}

func newProgress(cfg Config, client *messaging.Client, log *zap.Logger, m *Metrics, passed passedFunc) *progress {
	log = log.Named("apply").With(zap.String("origin", cfg.Origin))
	m.initOrigin(cfg.Origin)
	return &progress{
		cfg: cfg, client: client, log: log, metrics: m, passed: passed,
		health: health.New(log), clockSkew: health.New(log.Named("clock")), topic: health.New(zap.NewNop()),
	}
}

// reachedBy returns the id up to which all effects of the origin are in this message or before it.
func reachedBy(h *wire.Header) wire.ID {
	if h.Slots {
		return wire.ID{Ms: h.Watermark}
	}
	return h.Last
}

// newest returns when the newest effect of a message was, or, of a zone with a Redis Cluster, what
// the clock of that zone was.
func newest(h *wire.Header) time.Time { return time.UnixMilli(int64(max(h.Last.Ms, h.Watermark))) }

// Status returns how far this zone has applied the effects.
func (p *progress) Status() Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.status
	s.Lags = p.lags.last(time.Now())
	return s
}

// Reached returns the time, in milliseconds, up to which this zone is known to have applied all
// effects of the other zone. It is 0 before the first one.
func (p *progress) Reached() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.status.Cursor.Ms
}

// Health returns errors of applying or of the topic: now is the present error, last the most
// recent one, and at its time.
func (p *progress) Health() (at time.Time, now, last error) {
	if now = p.health.Current(); now == nil {
		now = p.topic.Current()
	}
	at, last = p.health.Last()
	if later, topic := p.topic.Last(); later.After(at) {
		at, last = later, topic
	}
	return at, now, last
}

// recordApplied updates the status after a message was applied.
func (p *progress) recordApplied(d *messaging.Delivery, h *wire.Header) {
	now := time.Now()
	cursor, delay := reachedBy(h), now.Sub(newest(h))
	// What counts is the clock of effects, not Sonic's: it is the clock of that zone's Redis, or
	// that of another zone that is further ahead and whose effects that Redis has applied.
	ahead := max(d.PublishTime.Sub(now), -delay)
	p.mu.Lock()
	if h.Config != "" && h.Config != p.otherSettings {
		p.recordSettings(h.Config)
	}
	st := &p.status
	st.Cursor, st.Count, st.Delay, st.At, st.MaxSilence, st.Gap, p.gapAt = cursor, h.Count, delay, now, maxSilence, false, nil
	if cursor.Compare(p.lastInTopic) >= 0 {
		p.lastInTopic, st.Known = cursor, h.Count
	}
	p.lags.add(now, delay)
	p.mu.Unlock()
	p.metrics.delay.WithLabelValues(p.cfg.Origin).Observe(max(delay, 0).Seconds())
	p.metrics.ahead.WithLabelValues(p.cfg.Origin).Set(max(ahead, 0).Seconds())
	if most := p.cfg.MaxClockSkew; ahead > most {
		p.clockSkew.Set(fmt.Errorf("the clock of zone %s, or of a zone whose effects it applies, is ahead of this zone's by more than %s: the later write may not win, and keys expire at the wrong time",
			p.cfg.Origin, most))
	} else {
		p.clockSkew.Set(nil)
	}
}

// recordSettings records the settings of the other zone. It logs which differ, and when none do any
// more. The caller holds the lock.
func (p *progress) recordSettings(other string) {
	before, differs := p.status.Differs, wire.Differing(p.cfg.Settings, other)
	p.otherSettings, p.status.Differs = other, differs
	switch {
	case slices.Equal(differs, before):
	case len(differs) == 0:
		p.log.Info("the configuration of the other zone is equal again")
	default:
		p.log.Error("the configuration of the other zone differs in keys that must be equal in all zones: the zones do not become equal", zap.Strings("keys", differs))
	}
}

// endTimeout is how long reading the last message of the topic may take. It is longer than the client
// needs to find out that the last entry brings none.
const endTimeout = 15 * time.Second

// readEnd reads the last message of the topic. It returns nil if the topic has no message that can
// be read.
func (p *progress) readEnd(ctx context.Context) (*wire.Header, error) {
	ctx, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	last, err := p.client.Last(ctx, p.cfg.Topic)
	if err != nil || last == nil {
		return nil, err
	}
	h, err := topic.Header(last, p.cfg.Origin)
	if err != nil {
		return nil, nil //nolint:nilnil // handle logs the error
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.recordEnd(h)
	return h, nil
}

// endOfTopic is the last effect of the topic at an earlier check, and the number of effects up to
// it.
type endOfTopic struct {
	last  wire.ID
	count int64
}

// maxEnds is how many ends are kept at most.
const maxEnds = 1024

// recordEnd records the topic's end. The caller holds the lock.
func (p *progress) recordEnd(h *wire.Header) {
	last := reachedBy(h)
	if last.Compare(p.lastInTopic) < 0 {
		return
	}
	// The count starts over if the topic has lost its messages: the latest count is right, not the
	// highest.
	p.lastInTopic, p.status.Known = last, h.Count
	if n := len(p.ends); n > 0 && last.Compare(p.ends[n-1].last) <= 0 {
		return
	}
	if len(p.ends) == maxEnds { // the zone is far behind: every second end is precise enough
		for i := range maxEnds / 2 {
			p.ends[i] = p.ends[2*i]
		}
		p.ends = p.ends[:maxEnds/2]
	}
	p.ends = append(p.ends, endOfTopic{last, h.Count})
}

// takeCountUpTo returns the count of the last end that a cursor has reached, and removes this end
// and those before it. ok is false if the cursor has reached none. The caller holds the lock.
func (p *progress) takeCountUpTo(cursor wire.ID) (count int64, ok bool) {
	n := 0
	for n < len(p.ends) && cursor.Compare(p.ends[n].last) >= 0 {
		count, ok = p.ends[n].count, true
		n++
	}
	p.ends = slices.Delete(p.ends, 0, n)
	return count, ok
}

// updateCursor updates the status with the cursor that was read from this zone's Redis. If it is
// later than this process' own cursor, another process applies the effects.
func (p *progress) updateCursor(cursor wire.ID) {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	st := &p.status
	count, ok := p.takeCountUpTo(cursor)
	if cursor.Compare(st.Cursor) <= 0 {
		return
	}
	// The last effect may be as old as the interval of heartbeats although nothing is missing.
	st.Cursor, st.Delay, st.At, st.Gap = cursor, max(now.Sub(time.UnixMilli(int64(cursor.Ms)))-beatEvery, 0), now, false
	st.MaxSilence = maxSilence + watchEvery
	if ok {
		st.Count = count
	}
}

// recordTopicError records a problem of the topic: subscribing fails, or no message arrives and
// reading its end fails with endErr.
func (p *progress) recordTopicError(subscribing, endErr error) {
	_, silent := p.Status().silence(time.Now())
	switch {
	case subscribing != nil:
		p.topic.Set(subscribing)
	case silent && endErr != nil:
		p.topic.Set(fmt.Errorf("no effects arrive from zone %s, and the end of its topic cannot be read: %w", p.cfg.Origin, endErr))
	default:
		p.topic.Set(nil)
	}
}
