package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/health"
	"github.com/aviaryhq/aviary/internal/sonic/topic"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
	"github.com/aviaryhq/aviary/pkg/backoff"
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

	mu          sync.Mutex
	status      Status
	otherConfig string       // the Config of the other zone that came last
	lastInTopic wire.ID      // the last effect known to be in the topic
	ends        []endOfTopic // ends of the topic at earlier checks that are not known to be applied yet
	gapAt       *wire.ID     // after which effects are missing, once logged; nil: none are missing
	lags        lags
}

func newProgress(cfg Config, client *messaging.Client, log *zap.Logger, m *Metrics) *progress {
	log = log.Named("apply").With(zap.String("origin", cfg.Origin))
	m.initOrigin(cfg.Origin)
	return &progress{
		cfg: cfg, client: client, log: log, metrics: m,
		health: health.New(log), clockSkew: health.New(log.Named("clock")), topic: health.New(zap.NewNop()),
	}
}

// run consumes the topic until ctx ends, with watch beside it. subscribing returns why there is no
// subscription.
func (p *progress) run(ctx context.Context, apply func(ctx context.Context, d *messaging.Delivery) error, watch func(ctx context.Context, subscribing func() error)) error {
	ctx, stop := context.WithCancel(ctx)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer stop()
	consumer, err := p.client.Consumer(p.cfg.consumer())
	if err != nil {
		return err
	}
	p.mu.Lock()
	p.status.Began = time.Now()
	p.mu.Unlock()
	watching.Go(func() { watch(ctx, consumer.Unhealthy) })
	return consumer.Run(ctx, func(handling context.Context, d *messaging.Delivery) error { return p.handle(handling, ctx, d, apply) })
}

// handle applies one message. It returns nil when this message and all before it are applied.
func (p *progress) handle(ctx, running context.Context, d *messaging.Delivery, apply func(context.Context, *messaging.Delivery) error) error {
	var pause backoff.Backoff
	for {
		err := apply(ctx, d)
		p.health.Set(err)
		if err == nil || running.Err() != nil {
			return err // with an error the process stops; the message will be delivered again
		}
		pause.Wait(running)
	}
}

// header reads the header of a message. Without an error it is nil for a message to skip: one that
// the origin's Sonic has not written, and one that cannot be read and that this zone has passed.
func (p *progress) header(d *messaging.Delivery, passed func(*wire.Header) (bool, error)) (*wire.Header, error) {
	h, err := topic.Header(d, p.cfg.Origin, p.cfg.Shard)
	if err == nil {
		return h, nil
	}
	if errors.Is(err, wire.ErrForeign) {
		p.metrics.foreign.WithLabelValues(p.cfg.Origin).Inc()
		p.log.Error("skipped a foreign message", zap.Stringer("message", d.ID), zap.String("topic", d.Topic), zap.Error(err))
		return nil, nil //nolint:nilnil // see the comment
	}
	if was, passedErr := passed(h); passedErr != nil {
		return nil, passedErr
	} else if was {
		return nil, nil //nolint:nilnil // see the comment
	}
	return nil, cannotApply(d, h, err)
}

// logGap counts and logs that effects are missing before h, unless it has for the same place.
func (p *progress) logGap(h *wire.Header, at wire.ID) {
	p.mu.Lock()
	again := p.gapAt != nil && *p.gapAt == at
	p.gapAt = &at
	p.mu.Unlock()
	if again {
		return
	}
	p.metrics.gaps.WithLabelValues(p.cfg.Origin).Inc()
	p.log.Warn("effects are missing, reading them again", zap.Stringer("cursor", at), zap.Stringer("next", h.First), zap.Stringer("prev", h.Prev))
}

// readAgain passes the messages behind one, or from the beginning of the topic on, to f, up to that
// before d.
func (p *progress) readAgain(ctx context.Context, d *messaging.Delivery, after string, f func(context.Context, *messaging.Delivery) error) error {
	r, err := p.reader(ctx, d.Topic, after)
	if err != nil {
		return err
	}
	defer func() { _ = r.Close(context.WithoutCancel(ctx)) }()
	for {
		missing, err := r.Next(ctx)
		if err != nil {
			return fmt.Errorf("cannot read the topic again: %w", err)
		}
		if missing.ID.Compare(d.ID) >= 0 {
			return nil
		}
		if err := f(ctx, missing); err != nil {
			return err
		}
	}
}

// readToEnd passes the messages behind one, or from the beginning of the topic on, to f, up to the
// end.
func (p *progress) readToEnd(ctx context.Context, after string, f func(context.Context, *messaging.Delivery) error) error {
	r, err := p.reader(ctx, p.cfg.Topic, after)
	if err != nil {
		return err
	}
	defer func() { _ = r.Close(context.WithoutCancel(ctx)) }()
	if _, err := r.ReadToEnd(ctx, f); err != nil {
		return fmt.Errorf("cannot apply what the topic has again: %w", err)
	}
	return nil
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

// cannotApply returns the error for a message that cannot be applied.
func cannotApply(d *messaging.Delivery, h *wire.Header, err error) error {
	return fmt.Errorf("message %s of %s, with effects of zone %s up to %s, cannot be applied, and nothing behind it is: %w: see docs/sonic-replication.md, A message that cannot be applied",
		d.ID, d.Topic, h.Origin, h.Last, err)
}

// reportGap sets Status.Gap and returns the error for missing effects that the topic does not have
// any more.
func (p *progress) reportGap(h *wire.Header, at wire.ID) error {
	p.mu.Lock()
	p.status.Gap = true
	p.mu.Unlock()
	return fmt.Errorf("effects of zone %s after %s, up to %s, are missing, and the topic no longer has them: see docs/sonic-replication.md, A gap", p.cfg.Origin, at, h.Prev)
}

// recordApplied updates the status after a message was applied.
func (p *progress) recordApplied(d *messaging.Delivery, h *wire.Header) {
	now := time.Now()
	cursor, delay := reachedBy(h), now.Sub(newest(h))
	// What counts is the clock of effects, not Sonic's: it is the clock of that zone's Redis, or
	// that of another zone that is further ahead and whose effects that Redis has applied.
	ahead := max(d.PublishTime.Sub(now), -delay)
	p.mu.Lock()
	st := &p.status
	var differs []string
	changed := false
	if h.Config != "" && h.Config != p.otherConfig {
		p.otherConfig, differs = h.Config, wire.Differing(p.cfg.Config, h.Config)
		changed = !slices.Equal(differs, st.Differs)
		st.Differs = differs
	}
	st.Cursor, st.Count, st.Delay, st.At, st.MaxSilence, st.Gap, p.gapAt = cursor, h.Count, delay, now, maxSilence, false, nil
	if cursor.Compare(p.lastInTopic) >= 0 {
		p.lastInTopic, st.Known = cursor, h.Count
	}
	p.lags.add(now, delay)
	p.mu.Unlock()
	p.logDiffering(changed, differs)
	p.metrics.delay.WithLabelValues(p.cfg.Origin).Observe(max(delay, 0).Seconds())
	p.metrics.ahead.WithLabelValues(p.cfg.Origin).Set(max(ahead, 0).Seconds())
	if most := p.cfg.MaxClockSkew; ahead > most {
		p.clockSkew.Set(fmt.Errorf("the clock of zone %s, or of a zone whose effects it applies, is ahead of this zone's by more than %s: the later write may not win, and keys expire at the wrong time",
			p.cfg.Origin, most))
	} else {
		p.clockSkew.Set(nil)
	}
}

// logDiffering logs once which settings differ, and once when none differ any more.
func (p *progress) logDiffering(changed bool, differs []string) {
	switch {
	case !changed:
	case len(differs) == 0:
		p.log.Info("the configuration of the other zone is equal again")
	default:
		p.log.Error("the configuration of the other zone differs in keys that must be equal in all zones: the zones do not become equal", zap.Strings("keys", differs))
	}
}

// readEnd reads the last message of the topic. It returns nil if the topic has no message that can
// be read.
func (p *progress) readEnd(ctx context.Context) (*wire.Header, error) {
	ctx, cancel := context.WithTimeout(ctx, watchEvery)
	defer cancel()
	last, err := p.client.Last(ctx, p.cfg.Topic)
	if err != nil || last == nil {
		return nil, err
	}
	h, err := topic.Header(last, p.cfg.Origin, p.cfg.Shard)
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

// reader returns a reader that begins after the message of a cursor, or at the beginning of the
// topic.
func (p *progress) reader(ctx context.Context, topic, after string) (*messaging.Reader, error) {
	cfg := messaging.ReaderConfig{Topic: topic, Name: "sonic"}
	if id, err := messaging.ParseMessageID([]byte(after)); err == nil && !id.IsZero() {
		cfg.After = []messaging.MessageID{id}
	}
	r, err := p.client.Reader(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("cannot read the topic again: %w", err)
	}
	return r, nil
}
