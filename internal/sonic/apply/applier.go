// Package apply applies to this zone's Redis what another zone did: it consumes that zone's topic, one message at a time, and hands each to the
// library of functions, which knows what it has had already and applies the rest at once.
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

	"github.com/aviaryhq/aviary/internal/sonic/lane"
	"github.com/aviaryhq/aviary/internal/sonic/message"
	"github.com/aviaryhq/aviary/internal/sonic/retry"
	"github.com/aviaryhq/aviary/internal/trouble"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Config says what to apply.
type Config struct {
	Zone   string // this one
	Origin string // the other
	Topic  string // of the other
	// MaxClockSkew is how far the other zone's clock may be ahead before it is alarmed. See [Applier.SetMaxClockSkew].
	MaxClockSkew time.Duration
	// Config is what this zone tells the others of its configuration: see [message.Config].
	Config string
}

// Applier applies one zone's effects. Of several, in one process or in many, one works at a time: the one that the broker delivers the topic
// to. All methods are safe for concurrent use.
type Applier struct {
	cfg     Config
	lane    *lane.Lane
	client  *messaging.Client
	log     *zap.Logger
	metrics *Metrics
	trouble *trouble.State
	skewed  *trouble.State
	topic   *trouble.State // with the topic: the library logs it

	maxSkew atomic.Int64 // of the clock, ns

	mu     sync.Mutex
	status Status
	told   string      // of the configuration of the other zone
	known  message.ID  // the last effect that the topic is known to have
	ends   []end       // of the topic, as it was looked at, that are not known to be applied
	gapAt  *message.ID // behind which effects are missing, once that was said; nil: none are
	lags   lags
}

// Status is how far a zone is with the effects of another one.
type Status struct {
	// Cursor is the last effect that is known to be applied, zero for none. It is some seconds old where another process applies.
	Cursor message.ID
	// Count is how many effects the topic had then, Known how many it is known to have. Where another process applies Count is that of the last end of the topic
	// that was looked at and is applied now: some seconds of effects too low at most.
	Count, Known int64
	// Delay is how old the last effect was when it was applied, at most, and At when that was; zero before the first.
	Delay time.Duration
	At    time.Time
	// Patience is how long nothing may come without the zone being behind. Began is when that began to count before the first effect.
	Patience time.Duration
	Began    time.Time
	// Gap says that effects are missing that the topic does not have any more.
	Gap bool
	// Differs names what the other zone has otherwise in its configuration and must have equal. It is that of its last message.
	Differs []string
	// Lags are those of the last minute.
	Lags Lags
}

// Behind is how far the zone is behind the other one: in time, and in effects that the topic has. known is false right after the start.
func (s Status) Behind(now time.Time) (lag time.Duration, effects int64, known bool) {
	effects = max(s.Known-s.Count, 0)
	silence, silent := s.silence(now)
	if s.At.IsZero() {
		return silence, effects, silent
	}
	if lag = s.Delay; silent {
		// Its beats do not come, either.
		lag += silence
	}
	return max(lag, 0), effects, true
}

// silence is how long nothing has come of the other zone. silent says that this is too long.
func (s Status) silence(now time.Time) (silence time.Duration, silent bool) {
	since, most := s.At, s.Patience
	if since.IsZero() {
		since, most = s.Began, patience
	}
	if since.IsZero() {
		return 0, false
	}
	silence = now.Sub(since)
	return silence, silence > most
}

const (
	// beatEvery is how often a zone says something, whatever it writes.
	beatEvery = time.Second
	// patience is how long it may take a zone to say something.
	patience = 3 * beatEvery
)

// New makes an applier.
func New(cfg Config, l *lane.Lane, client *messaging.Client, log *zap.Logger, m *Metrics) *Applier {
	log = log.Named("apply").With(zap.String("origin", cfg.Origin))
	m.from(cfg.Origin)
	a := &Applier{
		cfg: cfg, lane: l, client: client, log: log, metrics: m,
		trouble: trouble.New(log), skewed: trouble.New(log.Named("clock")), topic: trouble.New(zap.NewNop()),
	}
	a.SetMaxClockSkew(cfg.MaxClockSkew)
	return a
}

// SetMaxClockSkew changes how far the other zone's clock may be ahead before it is alarmed.
func (a *Applier) SetMaxClockSkew(d time.Duration) { a.maxSkew.Store(int64(d)) }

// Status returns how far the zone is.
func (a *Applier) Status() Status {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.status
	s.Lags = a.lags.last(time.Now())
	return s
}

// Trouble is what is the matter now, last what was the matter last, with applying or with the topic, and at when that was noted.
func (a *Applier) Trouble() (at time.Time, now, last error) {
	if now = a.trouble.Current(); now == nil {
		now = a.topic.Current()
	}
	at, last = a.trouble.Last()
	if later, topic := a.topic.Last(); later.After(at) {
		at, last = later, topic
	}
	return at, now, last
}

// errPoison says that a message can never be applied.
var errPoison = errors.New("a message cannot be applied")

// Run applies until ctx ends. What the network, Redis and Pulsar do is no error: it tries again. An error says that trying does not help.
func (a *Applier) Run(ctx context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer stop(nil)
	consumer, err := a.client.Consumer(a.cfg.consumer())
	if err != nil {
		return err
	}
	a.mu.Lock()
	a.status.Began = time.Now()
	a.mu.Unlock()
	watching.Go(func() { a.watch(ctx, consumer.Trouble) })
	err = consumer.Run(ctx, func(handling context.Context, d *messaging.Delivery) error {
		err := a.handle(handling, ctx, d)
		if final(err) {
			stop(err)
		}
		return err
	})
	if cause := context.Cause(ctx); err == nil && final(cause) {
		return fmt.Errorf("the effects of zone %s: %w", a.cfg.Origin, cause)
	}
	return err
}

func final(err error) bool {
	return errors.Is(err, message.ErrNewer) || errors.Is(err, message.ErrForeign) || errors.Is(err, errPoison)
}

// handle applies one message, and returns nil when all up to it is applied.
func (a *Applier) handle(ctx, running context.Context, d *messaging.Delivery) error {
	h, err := message.ParseHeader(d.Properties)
	if err == nil && h.Origin != a.cfg.Origin {
		err = fmt.Errorf("%w: it is of zone %s", message.ErrForeign, h.Origin)
	}
	if err != nil {
		return fmt.Errorf("message %s of %s: %w", d.ID, d.Topic, err)
	}
	var pause retry.Pause
	for {
		done, err := a.apply(ctx, d, h)
		if done || final(err) {
			return err
		}
		a.trouble.Note(err)
		if running.Err() != nil {
			return err // the process stops: the message comes again
		}
		pause.Wait(running)
	}
}

// apply tries once. done is false when it is to be tried again.
func (a *Applier) apply(ctx context.Context, d *messaging.Delivery, h *message.Header) (done bool, err error) {
	result, err := a.call(ctx, d, h)
	if err != nil {
		return false, err
	}
	if result.Status == lane.Gap {
		if err := a.fill(ctx, d, h, result); err != nil {
			return false, err
		}
		if result, err = a.call(ctx, d, h); err != nil {
			return false, err
		}
		if result.Status == lane.Gap {
			return false, a.gap(h, result)
		}
	}
	a.note(d, h)
	a.trouble.Note(nil)
	return true, nil
}

// call hands a message to the library.
func (a *Applier) call(ctx context.Context, d *messaging.Delivery, h *message.Header) (lane.Result, error) {
	result, err := a.lane.Apply(ctx, h, d.Payload, string(d.ID.Bytes()))
	if err != nil {
		if lane.Refused(err) {
			err = fmt.Errorf("%w: message %s of %s: %w", errPoison, d.ID, d.Topic, err)
		}
		return result, err
	}
	a.metrics.applied(a.cfg.Origin, result)
	return result, nil
}

// fill applies what is missing before h: the subscription is behind where this Redis is, which came back older than it was.
func (a *Applier) fill(ctx context.Context, d *messaging.Delivery, h *message.Header, at lane.Result) error {
	a.mu.Lock()
	again := a.gapAt != nil && *a.gapAt == at.Cursor
	a.gapAt = &at.Cursor
	a.mu.Unlock()
	if !again { // it was tried before, and said
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
		if _, _, err := a.read(ctx, missing); err != nil {
			return err
		}
	}
}

// read applies a message that is read again. It has the error of gap where effects are missing before that.
func (a *Applier) read(ctx context.Context, d *messaging.Delivery) (*message.Header, lane.Result, error) {
	h, err := message.ParseHeader(d.Properties)
	if err != nil {
		return nil, lane.Result{}, fmt.Errorf("message %s of %s: %w", d.ID, d.Topic, err)
	}
	result, err := a.call(ctx, d, h)
	if err == nil && result.Status == lane.Gap {
		err = a.gap(h, result)
	}
	return h, result, err
}

// gap says that what is missing is not to be had.
func (a *Applier) gap(h *message.Header, at lane.Result) error {
	a.mu.Lock()
	a.status.Gap = true
	a.mu.Unlock()
	return fmt.Errorf("effects of zone %s behind %s, up to %s, are missing, and the topic does not have them any more: see docs/sonic.md, A gap", a.cfg.Origin, at.Cursor, h.Prev)
}

// note keeps how far the applier is.
func (a *Applier) note(d *messaging.Delivery, h *message.Header) {
	now := time.Now()
	delay := now.Sub(time.UnixMilli(int64(h.Last.Ms)))
	// The clock of effects decides, which is Redis' own, or that of the furthest that it has heard. Sonic's may be another.
	ahead := max(d.PublishTime.Sub(now), -delay)
	a.mu.Lock()
	st := &a.status
	var differs []string
	changed := false
	if h.Config != "" && h.Config != a.told {
		a.told, differs = h.Config, message.Differing(a.cfg.Config, h.Config)
		changed = !slices.Equal(differs, st.Differs)
		st.Differs = differs
	}
	st.Cursor, st.Count, st.Delay, st.At, st.Patience, st.Gap, a.gapAt = h.Last, h.Count, delay, now, patience, false, nil
	if h.Last.Compare(a.known) >= 0 {
		a.known, st.Known = h.Last, h.Count
	}
	a.lags.add(now, delay)
	a.mu.Unlock()
	a.sayDiffering(changed, differs)
	a.metrics.delay.WithLabelValues(a.cfg.Origin).Observe(max(delay, 0).Seconds())
	a.metrics.ahead.WithLabelValues(a.cfg.Origin).Set(max(ahead, 0).Seconds())
	if most := time.Duration(a.maxSkew.Load()); ahead > most {
		a.skewed.Note(fmt.Errorf("the clock of zone %s, or of one that it hears, is ahead of this zone's by more than %s: the later write may not win, and keys expire at the wrong time",
			a.cfg.Origin, most))
	} else {
		a.skewed.Note(nil)
	}
}

// sayDiffering says once what differs, and that it does no more.
func (a *Applier) sayDiffering(changed bool, differs []string) {
	switch {
	case !changed:
	case len(differs) == 0:
		a.log.Info("the configuration of the other zone is equal again")
	default:
		a.log.Error("the configuration of the other zone differs where all have to be equal: the zones do not end up equal", zap.Strings("keys", differs))
	}
}

// watchEvery is how often the end of the topic is looked at.
const watchEvery = 5 * time.Second

// watch finds out how many effects the topic has, and how far the zone is where another process applies. It also finds a Redis that came back older than it
// was while the other zone says nothing: no message comes before which effects are missing, for the subscription has had all of them. subscribing says why
// there is no subscription.
func (a *Applier) watch(ctx context.Context, subscribing func() error) {
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	var before message.ID // the cursor at the last look
	behind := false       // it was behind the topic's end then
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		end, err := a.end(ctx)
		if ctx.Err() != nil {
			return
		}
		state, lookErr := a.lane.Look(ctx)
		cursor := state.Cursors[a.cfg.Origin]
		if lookErr == nil {
			a.found(cursor.ID)
		}
		a.noteTopic(subscribing(), err)
		if lookErr != nil || !state.Opened || end == nil {
			continue // the shipper says what is the matter
		}
		switch {
		case cursor.ID.Compare(end.Last) >= 0:
			behind = false
		case !behind || cursor.ID.Compare(before) != 0: // what the topic has may be under way
			behind, before = true, cursor.ID
		case a.trouble.Current() == nil || a.Status().Gap: // otherwise it tries
			err := a.again(ctx, cursor)
			if ctx.Err() == nil {
				a.trouble.Note(err)
			}
		}
	}
}

// end reads the topic's end; nil: it has no message that can be read.
func (a *Applier) end(ctx context.Context) (*message.Header, error) {
	ctx, cancel := context.WithTimeout(ctx, watchEvery)
	defer cancel()
	last, err := a.client.Last(ctx, a.cfg.Topic)
	if err != nil || last == nil {
		return nil, err
	}
	h, err := message.ParseHeader(last.Properties)
	if err != nil {
		return nil, nil //nolint:nilnil // who applies it says what is the matter
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ended(h)
	return h, nil
}

// end is what the topic ended with once.
type end struct {
	last  message.ID
	count int64
}

// endsMost bounds how many ends are kept.
const endsMost = 1024

// ended notes the topic's end. Its caller holds the lock.
func (a *Applier) ended(h *message.Header) {
	if h.Last.Compare(a.known) < 0 {
		return
	}
	// The count begins anew where the topic lost its messages: the latest is right, not the highest.
	a.known, a.status.Known = h.Last, h.Count
	if n := len(a.ends); n > 0 && h.Last.Compare(a.ends[n-1].last) <= 0 {
		return
	}
	if len(a.ends) == endsMost { // the zone is far behind: every second one says enough
		for i := range endsMost / 2 {
			a.ends[i] = a.ends[2*i]
		}
		a.ends = a.ends[:endsMost/2]
	}
	a.ends = append(a.ends, end{h.Last, h.Count})
}

// passed returns the count of the last end that a cursor has reached, and forgets it with those before. ok is false when it has reached none. Its caller
// holds the lock.
func (a *Applier) passed(cursor message.ID) (count int64, ok bool) {
	n := 0
	for n < len(a.ends) && cursor.Compare(a.ends[n].last) >= 0 {
		count, ok = a.ends[n].count, true
		n++
	}
	a.ends = slices.Delete(a.ends, 0, n)
	return count, ok
}

// found notes how far this zone's Redis was found to be. Where it is further than this process knows another one applies.
func (a *Applier) found(cursor message.ID) {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	st := &a.status
	count, ok := a.passed(cursor)
	if cursor.Compare(st.Cursor) <= 0 {
		return
	}
	// The last effect is as old as a beat even where nothing is behind.
	st.Cursor, st.Delay, st.At, st.Gap = cursor, max(now.Sub(time.UnixMilli(int64(cursor.Ms)))-beatEvery, 0), now, false
	st.Patience = patience + watchEvery
	if ok {
		st.Count = count
	}
}

// noteTopic notes what is the matter with the topic: it cannot be subscribed to, or nothing comes and its end cannot be read, with endErr.
func (a *Applier) noteTopic(subscribing, endErr error) {
	_, silent := a.Status().silence(time.Now())
	switch {
	case subscribing != nil:
		a.topic.Note(subscribing)
	case silent && endErr != nil:
		a.topic.Note(fmt.Errorf("nothing comes from zone %s, and the end of its topic cannot be read: %w", a.cfg.Origin, endErr))
	default:
		a.topic.Note(nil)
	}
}

// again applies what the topic has behind the cursor. The consumer may apply the same: the library takes each effect once.
func (a *Applier) again(ctx context.Context, at lane.Cursor) error {
	a.log.Info("this Redis is behind what was applied before, reading the topic again", zap.Stringer("cursor", at.ID))
	r, err := a.reader(ctx, a.cfg.Topic, at.Message)
	if err != nil {
		return err
	}
	defer func() { _ = r.Close(context.WithoutCancel(ctx)) }()
	if _, err = r.ReadToEnd(ctx, func(ctx context.Context, d *messaging.Delivery) error {
		h, result, err := a.read(ctx, d)
		if err == nil && result.Status == lane.Applied {
			a.note(d, h)
		}
		return err
	}); err != nil {
		return fmt.Errorf("cannot apply what the topic has again: %w", err)
	}
	return nil
}

// reader reads the topic behind the message of a cursor, or from its beginning.
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
