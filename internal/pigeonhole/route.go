package pigeonhole

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/app"
	"github.com/aviaryhq/aviary/internal/connector/lane"
	"github.com/aviaryhq/aviary/internal/connector/message"
	"github.com/aviaryhq/aviary/internal/pigeonhole/transform"
	"github.com/aviaryhq/aviary/internal/trouble"
)

// source is where a route's messages come from.
type source interface {
	// Run reads until ctx ends, offers what it reads to lanes, and returns when they
	// are closed. An error is for good.
	Run(ctx context.Context, lanes *lane.Set) error
	// Lag is how many messages wait behind what was committed.
	Lag(ctx context.Context) (int64, error)
}

// sink is where they go.
type sink interface {
	lane.Sink
	// PlaceName names the destination to in the hops of messages.
	PlaceName(to string) string
	// Run keeps the connection until ctx ends, and returns when every message given to
	// Send has its outcome.
	Run(ctx context.Context) error
}

// route is one route at work. The way of a message through it: source -> lane ->
// prepare (hops, filter, changes, destination) -> sink, or -> dead letters.
//
// It is alone with its connections, its memory and its faults: what happens to it is
// seen in its state and nowhere else.
type route struct {
	cfg       RouteConfig
	log       *zap.Logger
	transform *transform.Transform
	lanes     *lane.Set
	source    source
	sink      sink
	dead      sink // nil: refused messages stop the route
	own       bool // dead is another sink than sink
	resume    resuming
	memory    atomic.Int64 // in bytes, what it may hold

	cancel  context.CancelFunc
	done    chan struct{}
	drains  patience // of the source: how long it waits at a stop for what is in flight
	closing patience // of the sinks

	mu      sync.Mutex
	phase   phase
	health  map[string]*trouble.State // by the part that reports it
	since   time.Time                 // of the phase
	lastErr error
	errAt   time.Time
	lag     int64 // -1 when not known
	rate    rate
}

// phase is where a route is in its life.
type phase string

const (
	running  phase = "running"
	failed   phase = "failed" // for good, until it is changed or resumed
	stopping phase = "stopping"
)

// stopPatience bounds how long a route has to stop when it leaves and the process goes on.
const stopPatience = 30 * time.Second

// What is left of the time for a stop is divided: the source has the first part, in which
// the sinks store what is in flight and the source is told of it. Then it takes its leave,
// and the sinks have until the second. What remains is for them to take theirs. By default,
// with 30s in all, that is the 20s of drain_timeout.
const (
	drainShare = 2. / 3
	closeShare = 9. / 10
)

// patience lasts until it is ended.
type patience struct {
	ctx context.Context
	end context.CancelFunc
}

func newPatience() (p patience) {
	p.ctx, p.end = context.WithCancel(context.Background())
	return p
}

// lagEvery is the interval of asking the source how much waits.
const lagEvery = 10 * time.Second

// newRoute makes a route that does not run yet.
func newRoute(cfg Config, rc RouteConfig, log *zap.Logger, m *metrics) (*route, error) {
	r := &route{
		cfg: rc, log: log.Named("route").With(zap.String("route", rc.Name)),
		done: make(chan struct{}), drains: newPatience(), closing: newPatience(), phase: running, since: time.Now(), health: map[string]*trouble.State{}, lag: -1,
	}
	bounds := cfg.share(rc)
	r.memory.Store(rc.memory(bounds))
	var err error
	if r.transform, err = transform.New(rc.Config); err != nil {
		return nil, err
	}
	if r.source, err = newSource(rc, r.part(roleSource, "source."+rc.Source.system(), bounds, m)); err != nil {
		return nil, fmt.Errorf("source: %w", err)
	}
	if r.sink, err = newSink(rc.Sink, rc.Guarantee, r.part(roleSink, "sink."+rc.Sink.system(), bounds, m)); err != nil {
		return nil, fmt.Errorf("sink: %w", err)
	}
	if rc.deadLetters() {
		r.dead = r.sink
		if into := rc.letters(); into != nil {
			r.own = true
			if r.dead, err = newSink(*into, AtLeastOnce, r.part(roleDeadLetter, "dead_letter.sink."+into.system(), bounds, m)); err != nil {
				return nil, fmt.Errorf("dead_letter.sink: %w", err)
			}
		}
	}
	if rc.Guarantee == EffectivelyOnce {
		r.resume, _ = r.sink.(resuming)
	}
	r.lanes = r.newLanes(bounds, m)
	return r, nil
}

// newLanes makes the way from the route's source to its sinks.
func (r *route) newLanes(bounds InFlight, m *metrics) *lane.Set {
	way := lane.Route{
		Sink: r.sink, Prepare: r.preparation, Stop: r.fail, Report: r.reporter(partSending), ReportDead: r.reporter(partDead),
		Log: r.log, Metrics: m.lanes.Route(r.cfg.Name),
	}
	if r.dead != nil {
		way.Dead = r.storeDeadLetter
	}
	return lane.NewSet(lane.Config{
		Messages: bounds.Messages, Bytes: int64(bounds.Bytes),
		CommitEvery: r.cfg.CommitEvery, MinBackoff: r.cfg.MinBackoff, MaxBackoff: r.cfg.MaxBackoff,
	}, way)
}

// reporter is what lanes report to.
func (r *route) reporter(part string) func(error) {
	return func(err error) {
		if errors.Is(err, lane.ErrClosed) {
			r.forget(part)
			return
		}
		r.report(part, err)
	}
}

// part is what a source or sink is made with. Its name is the path of its section
// below the route's: that is where to look when it reports trouble.
func (r *route) part(role, name string, bounds InFlight, m *metrics) options {
	patience := r.closing.ctx
	if role == roleSource {
		patience = r.drains.ctx
	}
	return options{
		route: r.cfg.Name, role: role, log: r.log.Named(name), report: func(err error) { r.report(name, err) }, metrics: m,
		patience: patience, inFlight: bounds.Messages,
	}
}

// share gives the route the bounds that it has among the routes of cfg.
func (r *route) share(cfg Config) {
	bounds := cfg.share(r.cfg)
	r.lanes.SetBounds(bounds.Messages, int64(bounds.Bytes))
	r.memory.Store(r.cfg.memory(bounds))
}

// start runs the route until stop.
func (r *route) start() {
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	go func() {
		defer close(r.done)
		r.run(ctx)
	}()
}

// run keeps the sinks until the source has ended: what is in flight then still has
// where to go.
func (r *route) run(ctx context.Context) {
	sinks, closeSinks := context.WithCancel(context.Background())
	var outlets, watchers sync.WaitGroup
	outlets.Go(func() { r.keep(sinks, "sink", r.sink) })
	if r.own {
		outlets.Go(func() { r.keep(sinks, "dead_letter", r.dead) })
	}
	watching, unwatch := context.WithCancel(ctx)
	watchers.Go(func() { r.watchLag(watching) })
	if err := app.Protect(func() error { return r.source.Run(ctx, r.lanes) }); err != nil && ctx.Err() == nil {
		r.fail(fmt.Errorf("source: %w", err))
	}
	unwatch()
	closeSinks()
	outlets.Wait()
	watchers.Wait()
}

func (r *route) keep(ctx context.Context, name string, s sink) {
	if err := app.Protect(func() error { return s.Run(ctx) }); err != nil && ctx.Err() == nil {
		r.fail(fmt.Errorf("%s: %w", name, err))
	}
}

// stop ends the route and waits for it, at most until ctx ends; of the time until then the
// source and the sinks have their parts.
func (r *route) stop(ctx context.Context) error {
	r.mu.Lock()
	if r.phase == running {
		r.phase, r.since = stopping, time.Now()
	}
	r.mu.Unlock()
	if deadline, bounded := ctx.Deadline(); bounded {
		left := float64(time.Until(deadline))
		defer time.AfterFunc(time.Duration(left*drainShare), r.drains.end).Stop()
		defer time.AfterFunc(time.Duration(left*closeShare), r.closing.end).Stop()
	}
	r.cancel()
	select {
	case <-r.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("route %s has not stopped: %w", r.cfg.Name, ctx.Err())
	}
}

// fail ends the route for good.
func (r *route) fail(err error) {
	r.mu.Lock()
	first := r.phase == running
	if first {
		r.phase, r.since = failed, time.Now()
		r.lastErr, r.errAt = err, r.since
	}
	r.mu.Unlock()
	if first {
		fields := []zap.Field{zap.Error(err)}
		var panicked *app.PanicError
		if errors.As(err, &panicked) {
			fields = append(fields, zap.ByteString("stack", panicked.Stack))
		}
		r.log.Error("route stopped", fields...)
		r.cancel()
	}
}

// report notes what is the matter with a part of the route; nil: nothing any more.
func (r *route) report(part string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	health := r.health[part]
	if health == nil {
		health = trouble.New(r.log.With(zap.String("part", part)))
		r.health[part] = health
	}
	health.Note(err)
	if err != nil {
		r.lastErr, r.errAt = err, time.Now()
	}
}

// The parts that report what is the matter with messages.
const (
	partSending  = "sending"
	partDead     = "dead letters"
	partResuming = "resuming"
)

// forget ends what is the matter with a part: nobody tries any more, as when another process has taken the partition.
func (r *route) forget(part string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if health := r.health[part]; health != nil {
		health.Forget()
	}
}

// troubles is what is the matter now, a text for each part. r.mu is held.
func (r *route) troubles() (texts []string) {
	for _, part := range slices.Sorted(maps.Keys(r.health)) {
		if err := r.health[part].Current(); err != nil {
			texts = append(texts, part+": "+err.Error())
		}
	}
	return texts
}

// unwell says why the route replicates nothing; "" where it does, or is not meant to.
func (r *route) unwell() string {
	paused := r.lanes.State().Paused
	r.mu.Lock()
	defer r.mu.Unlock()
	switch troubles := r.troubles(); {
	case r.phase == failed:
		return "failed: " + r.lastErr.Error()
	case r.phase != running, paused, len(troubles) == 0:
		return ""
	default:
		return strings.Join(troubles, ", ")
	}
}

// preparation returns the function that the messages of one lane pass.
func (r *route) preparation() (prepare lane.Prepare, closed func()) {
	skip, release := r.skipping()
	steps := &steps{placeName: r.sink.PlaceName, limit: r.cfg.MaxHops}
	only, one := r.transform.Destination()
	prepare = func(ctx context.Context, m *message.Message) (string, bool, error) {
		// A circle is one even at the limit, and where an expression would fail on the message.
		if one && steps.circles(m, only) {
			return "", false, lane.ErrLoop
		}
		if err := steps.check(m); err != nil {
			return "", false, err
		}
		to, keep, err := r.transform.Apply(m)
		if err != nil || !keep {
			return "", false, err
		}
		if !one && steps.circles(m, to) {
			return "", false, lane.ErrLoop
		}
		steps.leave(m)
		m.OmitOrigin = r.cfg.Provenance == provenanceHops
		if skip == nil {
			return to, true, nil
		}
		stored, err := skip(ctx, to, m)
		return to, !stored, err
	}
	return prepare, release
}

func (r *route) watchLag(ctx context.Context) {
	ticker := time.NewTicker(lagEvery)
	defer ticker.Stop()
	for {
		asking, cancel := context.WithTimeout(ctx, lagEvery)
		n, err := r.source.Lag(asking)
		cancel()
		if err != nil {
			n = -1
		}
		held := r.lanes.State()
		r.mu.Lock()
		r.lag = n
		for _, health := range r.health {
			health.Remind(zap.Int64("lag_messages", n), zap.Int("in_flight", held.InFlight))
		}
		r.mu.Unlock()
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// errStopped is returned for routes that are asked for something while they stop.
var errStopped = errors.New("the route is stopping")
