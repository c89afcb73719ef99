// Package apply applies another zone's effects to this zone's Redis. It consumes that zone's topic,
// one message at a time, and passes each message to the library of Redis functions. The library
// skips what it has already applied, and applies the rest in one step.
package apply

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/health"
	"github.com/aviaryhq/aviary/internal/sonic/message"
	"github.com/aviaryhq/aviary/internal/sonic/redislib"
	"github.com/aviaryhq/aviary/internal/sonic/topic"
	"github.com/aviaryhq/aviary/pkg/backoff"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Config says what to apply.
type Config struct {
	Zone   string // this zone
	Origin string // the other zone
	Shard  int    // of the topic
	Topic  string // of the other zone
	// MaxClockSkew is how far the other zone's clock may be ahead before the applier logs a
	// warning. See [Applier.SetMaxClockSkew].
	MaxClockSkew time.Duration
	// Config describes the part of this zone's configuration that must be equal in all zones: see
	// [message.Config].
	Config string
}

// Applier applies one zone's effects. Of several appliers for the same zone, in one process or in
// many, only one works at a time: the one to which the broker delivers the topic. All methods are
// safe for concurrent use.
type Applier struct {
	cfg       Config
	library   *redislib.Library
	client    *messaging.Client
	log       *zap.Logger
	metrics   *Metrics
	health    *health.State
	clockSkew *health.State
	topic     *health.State // errors of the topic, which the Pulsar client logs

	maxSkew atomic.Int64 // nanoseconds

	mu          sync.Mutex
	status      Status
	otherConfig string       // the Config of the other zone that came last
	lastInTopic message.ID   // the last effect known to be in the topic
	ends        []endOfTopic // ends of the topic at earlier checks that are not known to be applied yet
	gapAt       *message.ID  // after which effects are missing, once logged; nil: none are missing
	lags        lags
}

// Status says how far a zone has applied the effects of another zone.
type Status struct {
	// Cursor is the last effect that is known to be applied, zero for none. It is some seconds old
	// if another process applies the effects.
	Cursor message.ID
	// Count is how many effects the topic has up to Cursor. Known is how many effects the topic is
	// known to have. If another process applies the effects, Count is too low by some seconds of
	// effects at most: it is the count at the last observed end of the topic that Cursor has
	// reached.
	Count, Known int64
	// Delay is how old the last effect was, at most, when it was applied. At is the time of that.
	// Both are zero before the first effect.
	Delay time.Duration
	At    time.Time
	// MaxSilence is how long no message may arrive before the zone counts as behind. Before the
	// first effect this time starts at Began.
	MaxSilence time.Duration
	Began      time.Time
	// Gap says that effects are missing, and that the topic does not have them any more.
	Gap bool
	// Differs names the settings that must be equal in all zones, and differ in the other zone,
	// according to its last message.
	Differs []string
	// Lags covers the last minute.
	Lags Lags
}

// Behind returns how far the zone is behind the other one: in time, and in effects of the topic.
// known is false right after the start.
func (s Status) Behind(now time.Time) (lag time.Duration, effects int64, known bool) {
	effects = max(s.Known-s.Count, 0)
	silence, silent := s.silence(now)
	if s.At.IsZero() {
		return silence, effects, silent
	}
	if lag = s.Delay; silent {
		// Not even the other zone's heartbeats arrive.
		lag += silence
	}
	return max(lag, 0), effects, true
}

// silence returns how long no message of the other zone has arrived. silent says that this is too
// long.
func (s Status) silence(now time.Time) (silence time.Duration, silent bool) {
	since, most := s.At, s.MaxSilence
	if since.IsZero() {
		since, most = s.Began, maxSilence
	}
	if since.IsZero() {
		return 0, false
	}
	silence = now.Sub(since)
	return silence, silence > most
}

const (
	// beatEvery is how often a zone sends a heartbeat.
	beatEvery = time.Second
	// maxSilence is how long no message of a zone may arrive before the zone counts as silent.
	maxSilence = 3 * beatEvery
)

// New makes an applier.
func New(cfg Config, l *redislib.Library, client *messaging.Client, log *zap.Logger, m *Metrics) *Applier {
	log = log.Named("apply").With(zap.String("origin", cfg.Origin))
	m.initOrigin(cfg.Origin)
	a := &Applier{
		cfg: cfg, library: l, client: client, log: log, metrics: m,
		health: health.New(log), clockSkew: health.New(log.Named("clock")), topic: health.New(zap.NewNop()),
	}
	a.SetMaxClockSkew(cfg.MaxClockSkew)
	return a
}

// SetMaxClockSkew changes how far the other zone's clock may be ahead before the applier logs a
// warning.
func (a *Applier) SetMaxClockSkew(d time.Duration) { a.maxSkew.Store(int64(d)) }

// Status returns how far this zone has applied the effects.
func (a *Applier) Status() Status {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.status
	s.Lags = a.lags.last(time.Now())
	return s
}

// Health returns errors of applying or of the topic: now is the present error, last the most
// recent one, and at its time.
func (a *Applier) Health() (at time.Time, now, last error) {
	if now = a.health.Current(); now == nil {
		now = a.topic.Current()
	}
	at, last = a.health.Last()
	if later, topic := a.topic.Last(); later.After(at) {
		at, last = later, topic
	}
	return at, now, last
}

// Run applies effects until ctx ends. It retries after failures of the network, Redis and Pulsar.
// At a message that cannot be applied it waits until the message can be, or is skipped. It returns
// an error only for a wrong configuration.
func (a *Applier) Run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer stop()
	consumer, err := a.client.Consumer(a.cfg.consumer())
	if err != nil {
		return err
	}
	a.mu.Lock()
	a.status.Began = time.Now()
	a.mu.Unlock()
	watching.Go(func() { a.watch(ctx, consumer.Unhealthy) })
	return consumer.Run(ctx, func(handling context.Context, d *messaging.Delivery) error { return a.handle(handling, ctx, d) })
}

// handle applies one message. It returns nil when this message and all before it are applied.
func (a *Applier) handle(ctx, running context.Context, d *messaging.Delivery) error {
	var pause backoff.Backoff
	for {
		err := a.apply(ctx, d)
		a.health.Set(err)
		if err == nil || running.Err() != nil {
			return err // with an error the process stops; the message will be delivered again
		}
		pause.Wait(running)
	}
}

// apply tries to apply a message once.
func (a *Applier) apply(ctx context.Context, d *messaging.Delivery) error {
	h, err := a.header(ctx, d)
	if h == nil {
		return err
	}
	result, err := a.call(ctx, d, h)
	if err != nil {
		return err
	}
	if result.Status == redislib.Gap {
		if err := a.fillGap(ctx, d, h, result); err != nil {
			return err
		}
		if result, err = a.call(ctx, d, h); err != nil {
			return err
		}
		if result.Status == redislib.Gap {
			return a.reportGap(h, result)
		}
	}
	a.recordApplied(d, h)
	return nil
}

// header reads the header of a message. Without an error it is nil for a message to skip: one that
// the origin's Sonic has not written, and one that cannot be read and that the cursor has passed.
func (a *Applier) header(ctx context.Context, d *messaging.Delivery) (*message.Header, error) {
	h, err := topic.Header(d, a.cfg.Origin, a.cfg.Shard)
	if err == nil {
		return h, nil
	}
	if errors.Is(err, message.ErrForeign) {
		a.metrics.foreign.WithLabelValues(a.cfg.Origin).Inc()
		a.log.Error("skipped a foreign message", zap.Stringer("message", d.ID), zap.String("topic", d.Topic), zap.Error(err))
		return nil, nil //nolint:nilnil // see the comment
	}
	if state, stateErr := a.library.ReadState(ctx); stateErr != nil {
		return nil, stateErr
	} else if !h.Last.IsZero() && state.Cursors[a.cfg.Origin].ID.Compare(h.Last) >= 0 {
		return nil, nil //nolint:nilnil // see the comment
	}
	return nil, cannotApply(d, h, err)
}

// cannotApply returns the error for a message that cannot be applied.
func cannotApply(d *messaging.Delivery, h *message.Header, err error) error {
	return fmt.Errorf("message %s of %s, with effects of zone %s up to %s, cannot be applied, and nothing behind it is: %w: see docs/sonic-replication.md, A message that cannot be applied",
		d.ID, d.Topic, h.Origin, h.Last, err)
}

// call passes a message to the library.
func (a *Applier) call(ctx context.Context, d *messaging.Delivery, h *message.Header) (redislib.Result, error) {
	result, err := a.library.Apply(ctx, h, d.Payload, string(d.ID.Bytes()))
	if err != nil {
		if redislib.Refused(err) {
			err = cannotApply(d, h, err)
		}
		return result, err
	}
	a.metrics.countOutcomes(a.cfg.Origin, result)
	return result, nil
}

// fillGap applies the effects that are missing before h. They are missing because this Redis came
// back with older data: the subscription is already past them.
func (a *Applier) fillGap(ctx context.Context, d *messaging.Delivery, h *message.Header, at redislib.Result) error {
	a.mu.Lock()
	again := a.gapAt != nil && *a.gapAt == at.Cursor
	a.gapAt = &at.Cursor
	a.mu.Unlock()
	if !again { // a repeated attempt is not logged again
		a.metrics.gaps.WithLabelValues(a.cfg.Origin).Inc()
		a.log.Warn("effects are missing, reading them again", zap.Stringer("cursor", at.Cursor), zap.Stringer("next", h.First), zap.Stringer("prev", h.Prev))
	}
	r, err := a.reader(ctx, d.Topic, at.CursorMessage)
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
		if _, _, err := a.applyAgain(ctx, missing); err != nil {
			return err
		}
	}
}

// applyAgain applies a message that is read again, unless it is to be skipped. It returns the error
// of reportGap if effects are missing before it.
func (a *Applier) applyAgain(ctx context.Context, d *messaging.Delivery) (*message.Header, redislib.Result, error) {
	h, err := a.header(ctx, d)
	if h == nil {
		return nil, redislib.Result{}, err
	}
	result, err := a.call(ctx, d, h)
	if err == nil && result.Status == redislib.Gap {
		err = a.reportGap(h, result)
	}
	return h, result, err
}

// reportGap sets Status.Gap and returns the error for missing effects that the topic does not have
// any more.
func (a *Applier) reportGap(h *message.Header, at redislib.Result) error {
	a.mu.Lock()
	a.status.Gap = true
	a.mu.Unlock()
	return fmt.Errorf("effects of zone %s after %s, up to %s, are missing, and the topic no longer has them: see docs/sonic-replication.md, A gap", a.cfg.Origin, at.Cursor, h.Prev)
}

// recordApplied updates the status after a message was applied.
func (a *Applier) recordApplied(d *messaging.Delivery, h *message.Header) {
	now := time.Now()
	delay := now.Sub(time.UnixMilli(int64(h.Last.Ms)))
	// What counts is the clock of effects, not Sonic's: it is the clock of that zone's Redis, or
	// that of another zone that is further ahead and whose effects that Redis has applied.
	ahead := max(d.PublishTime.Sub(now), -delay)
	a.mu.Lock()
	st := &a.status
	var differs []string
	changed := false
	if h.Config != "" && h.Config != a.otherConfig {
		a.otherConfig, differs = h.Config, message.Differing(a.cfg.Config, h.Config)
		changed = !slices.Equal(differs, st.Differs)
		st.Differs = differs
	}
	st.Cursor, st.Count, st.Delay, st.At, st.MaxSilence, st.Gap, a.gapAt = h.Last, h.Count, delay, now, maxSilence, false, nil
	if h.Last.Compare(a.lastInTopic) >= 0 {
		a.lastInTopic, st.Known = h.Last, h.Count
	}
	a.lags.add(now, delay)
	a.mu.Unlock()
	a.logDiffering(changed, differs)
	a.metrics.delay.WithLabelValues(a.cfg.Origin).Observe(max(delay, 0).Seconds())
	a.metrics.ahead.WithLabelValues(a.cfg.Origin).Set(max(ahead, 0).Seconds())
	if most := time.Duration(a.maxSkew.Load()); ahead > most {
		a.clockSkew.Set(fmt.Errorf("the clock of zone %s, or of a zone whose effects it applies, is ahead of this zone's by more than %s: the later write may not win, and keys expire at the wrong time",
			a.cfg.Origin, most))
	} else {
		a.clockSkew.Set(nil)
	}
}

// logDiffering logs once which settings differ, and once when none differ any more.
func (a *Applier) logDiffering(changed bool, differs []string) {
	switch {
	case !changed:
	case len(differs) == 0:
		a.log.Info("the configuration of the other zone is equal again")
	default:
		a.log.Error("the configuration of the other zone differs in keys that must be equal in all zones: the zones do not become equal", zap.Strings("keys", differs))
	}
}

// watchEvery is how often watch reads the end of the topic.
const watchEvery = 5 * time.Second

// watch finds out how many effects the topic has, and how far the zone is if another process
// applies. It also finds a Redis that came back with older data while the other zone sends nothing.
// Then no message arrives that would show the missing effects, for the subscription has already
// delivered all of them. subscribing returns why there is no subscription.
func (a *Applier) watch(ctx context.Context, subscribing func() error) {
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	var before message.ID // the cursor at the last check
	behind := false       // whether that cursor was before the end of the topic
	failed := false       // whether reading the topic again has failed
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		end, err := a.readEnd(ctx)
		if ctx.Err() != nil {
			return
		}
		state, lookErr := a.library.ReadState(ctx)
		cursor := state.Cursors[a.cfg.Origin]
		if lookErr == nil {
			a.updateCursor(cursor.ID)
		}
		a.recordTopicError(subscribing(), err)
		if lookErr != nil || !state.Opened || end == nil {
			continue // the shipper logs the error
		}
		switch {
		case cursor.ID.Compare(end.Last) >= 0:
			behind = false
		case !behind || cursor.ID.Compare(before) != 0: // the missing messages may still be on their way
			behind, before = true, cursor.ID
		case a.health.Current() == nil || a.Status().Gap || failed: // otherwise handle is trying already
			err := a.applyFromCursor(ctx, cursor)
			failed = err != nil
			if ctx.Err() == nil {
				a.health.Set(err)
			}
		}
	}
}

// readEnd reads the last message of the topic. It returns nil if the topic has no message that can
// be read.
func (a *Applier) readEnd(ctx context.Context) (*message.Header, error) {
	ctx, cancel := context.WithTimeout(ctx, watchEvery)
	defer cancel()
	last, err := a.client.Last(ctx, a.cfg.Topic)
	if err != nil || last == nil {
		return nil, err
	}
	h, err := topic.Header(last, a.cfg.Origin, a.cfg.Shard)
	if err != nil {
		return nil, nil //nolint:nilnil // handle logs the error
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.recordEnd(h)
	return h, nil
}

// endOfTopic is the last effect of the topic at an earlier check, and the number of effects up to
// it.
type endOfTopic struct {
	last  message.ID
	count int64
}

// maxEnds is how many ends are kept at most.
const maxEnds = 1024

// recordEnd records the topic's end. The caller holds the lock.
func (a *Applier) recordEnd(h *message.Header) {
	if h.Last.Compare(a.lastInTopic) < 0 {
		return
	}
	// The count starts over if the topic has lost its messages: the latest count is right, not the
	// highest.
	a.lastInTopic, a.status.Known = h.Last, h.Count
	if n := len(a.ends); n > 0 && h.Last.Compare(a.ends[n-1].last) <= 0 {
		return
	}
	if len(a.ends) == maxEnds { // the zone is far behind: every second end is precise enough
		for i := range maxEnds / 2 {
			a.ends[i] = a.ends[2*i]
		}
		a.ends = a.ends[:maxEnds/2]
	}
	a.ends = append(a.ends, endOfTopic{h.Last, h.Count})
}

// takeCountUpTo returns the count of the last end that a cursor has reached, and removes this end
// and those before it. ok is false if the cursor has reached none. The caller holds the lock.
func (a *Applier) takeCountUpTo(cursor message.ID) (count int64, ok bool) {
	n := 0
	for n < len(a.ends) && cursor.Compare(a.ends[n].last) >= 0 {
		count, ok = a.ends[n].count, true
		n++
	}
	a.ends = slices.Delete(a.ends, 0, n)
	return count, ok
}

// updateCursor updates the status with the cursor that was read from this zone's Redis. If it is
// later than this process' own cursor, another process applies the effects.
func (a *Applier) updateCursor(cursor message.ID) {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	st := &a.status
	count, ok := a.takeCountUpTo(cursor)
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
func (a *Applier) recordTopicError(subscribing, endErr error) {
	_, silent := a.Status().silence(time.Now())
	switch {
	case subscribing != nil:
		a.topic.Set(subscribing)
	case silent && endErr != nil:
		a.topic.Set(fmt.Errorf("no effects arrive from zone %s, and the end of its topic cannot be read: %w", a.cfg.Origin, endErr))
	default:
		a.topic.Set(nil)
	}
}

// applyFromCursor reads the topic from the cursor on and applies it. The consumer may apply the
// same messages at the same time: the library applies each effect once.
func (a *Applier) applyFromCursor(ctx context.Context, at redislib.Cursor) error {
	a.log.Info("this Redis lacks effects that were applied before, reading the topic again", zap.Stringer("cursor", at.ID))
	r, err := a.reader(ctx, a.cfg.Topic, at.Message)
	if err != nil {
		return err
	}
	defer func() { _ = r.Close(context.WithoutCancel(ctx)) }()
	if _, err = r.ReadToEnd(ctx, func(ctx context.Context, d *messaging.Delivery) error {
		h, result, err := a.applyAgain(ctx, d)
		if err == nil && result.Status == redislib.Applied {
			a.recordApplied(d, h)
		}
		return err
	}); err != nil {
		return fmt.Errorf("cannot apply what the topic has again: %w", err)
	}
	return nil
}

// reader returns a reader that begins after the message of a cursor, or at the beginning of the
// topic.
func (a *Applier) reader(ctx context.Context, topic, after string) (*messaging.Reader, error) {
	cfg := messaging.ReaderConfig{Topic: topic, Name: "sonic"}
	if id, err := messaging.ParseMessageID([]byte(after)); err == nil && !id.IsZero() {
		cfg.After = []messaging.MessageID{id}
	}
	r, err := a.client.Reader(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("cannot read the topic again: %w", err)
	}
	return r, nil
}
