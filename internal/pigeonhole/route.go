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
	"github.com/aviaryhq/aviary/internal/connector"
	"github.com/aviaryhq/aviary/internal/connector/message"
	"github.com/aviaryhq/aviary/internal/connector/pipeline"
	"github.com/aviaryhq/aviary/internal/health"
	"github.com/aviaryhq/aviary/internal/pigeonhole/transform"
)

// The roles of a route's parts.
const (
	roleSource     = "source"
	roleSink       = "sink"
	roleDeadLetter = "dead_letter"
)

// route is a running route. The path of a message: source -> pipeline -> prepare (hops, filter,
// changes, destination) -> sink or dead-letter sink.
//
// Routes are independent: each has its own connections, memory bounds and errors.
type route struct {
	cfg               RouteConfig
	log               *zap.Logger
	transform         *transform.Transform
	pipelines         *pipeline.Set
	source            connector.Source
	sink              connector.Sink
	deadLetterSink    connector.Sink // nil: a refused message stops the route
	ownDeadLetterSink bool           // deadLetterSink is not sink
	resumableSink     resumableSink
	memory            atomic.Int64 // bytes that the route may hold

	cancel     context.CancelFunc
	done       chan struct{}
	sourceStop stopLimit // ends when the source must not wait any longer for messages in flight
	sinkStop   stopLimit // ends when the sinks must not wait any longer

	mu         sync.Mutex
	phase      phase
	health     map[string]*health.State // by part
	phaseSince time.Time                // when the phase began
	lastErr    error
	lastErrAt  time.Time
	lag        int64 // -1 when not known
	rate       rate
}

// phase is a phase of a route's life cycle.
type phase string

const (
	running  phase = "running"
	failed   phase = "failed" // stopped until it is changed or resumed
	stopping phase = "stopping"
)

// stopTimeout bounds the stop of a route while the process goes on.
const stopTimeout = 30 * time.Second

// The time for a stop is divided. Until drainShare of it the source waits for messages in flight:
// the sinks store them and the source commits. Then the source disconnects, and the sinks may wait
// until closeShare. In the rest they disconnect. By default, with 30s in all, the source has 20s.
const (
	drainShare = 2. / 3
	closeShare = 9. / 10
)

// stopLimit is a context that ends when a part of the route must not wait any longer.
type stopLimit struct {
	ctx context.Context
	end context.CancelFunc
}

func newStopLimit() (p stopLimit) {
	p.ctx, p.end = context.WithCancel(context.Background())
	return p
}

// lagInterval is the interval at which the route asks the source for its lag.
const lagInterval = 10 * time.Second

// newRoute makes a route that does not run yet.
func newRoute(cfg Config, rc RouteConfig, log *zap.Logger, m *metrics) (*route, error) {
	r := &route{
		cfg: rc, log: log.Named("route").With(zap.String("route", rc.Name)),
		done: make(chan struct{}), sourceStop: newStopLimit(), sinkStop: newStopLimit(), phase: running, phaseSince: time.Now(), health: map[string]*health.State{}, lag: -1,
	}
	bounds := cfg.bounds(rc)
	r.memory.Store(rc.memory(bounds))
	var err error
	if r.transform, err = rc.newTransform(); err != nil {
		return nil, err
	}
	system, source := rc.Source.section()
	r.source = source.NewSource(r.options(roleSource, "source.", system, m))
	system, sink := rc.sink()
	r.sink = sink.NewSink(r.options(roleSink, "sink.", system, m))
	if rc.deadLetters() {
		r.deadLetterSink = r.sink
	}
	if system, deadLetters := rc.deadLetterSink(); deadLetters != nil {
		r.ownDeadLetterSink = true
		section := "dead_letter.sink."
		if rc.DeadLetter.Sink == nil {
			section = "dead letters to sink."
		}
		r.deadLetterSink = deadLetters.NewSink(r.options(roleDeadLetter, section, system, m))
	}
	if rc.Guarantee == EffectivelyOnce {
		r.resumableSink, _ = r.sink.(resumableSink)
	}
	r.pipelines = r.newPipelines(bounds, m)
	return r, nil
}

// newPipelines makes the pipelines between the route's source and its sinks.
func (r *route) newPipelines(bounds InFlight, m *metrics) *pipeline.Set {
	pipelineRoute := pipeline.Route{
		Sink: r.sink, Prepare: r.newPrepare, Stop: r.fail, Report: r.reporter(partSending), ReportDeadLetters: r.reporter(partDeadLetters),
		Log: r.log, Metrics: m.pipelines.Route(r.cfg.Name),
	}
	if r.deadLetterSink != nil {
		pipelineRoute.DeadLetter = r.storeDeadLetter
	}
	return pipeline.NewSet(pipeline.Config{
		Messages: bounds.Messages, Bytes: int64(bounds.Bytes),
		CommitEvery: r.cfg.CommitEvery, MinBackoff: r.cfg.MinBackoff, MaxBackoff: r.cfg.MaxBackoff,
	}, pipelineRoute)
}

// reporter returns the function with which pipelines report the health of a part.
func (r *route) reporter(part string) func(error) {
	return func(err error) {
		if errors.Is(err, pipeline.ErrClosed) {
			r.clearHealth(part)
			return
		}
		r.report(part, err)
	}
}

// options returns the options of a source or sink. Its name in logs and reports is prefix and
// system: the path of its section below the route's. A second sink for dead letters that is made
// from the route's sink has no section.
func (r *route) options(role, prefix, system string, m *metrics) connector.Options {
	name := prefix + system
	drain := r.sinkStop.ctx
	if role == roleSource {
		drain = r.sourceStop.ctx
	}
	return connector.Options{
		Log: r.log.Named(name), Report: func(err error) { r.report(name, err) },
		Metrics: m.parts.Part(r.cfg.Name, role, system), Registerer: m.reg,
		DrainContext: drain,
	}
}

// setBounds sets the bounds that the route has among the routes of cfg.
func (r *route) setBounds(cfg Config) {
	bounds := cfg.bounds(r.cfg)
	r.pipelines.SetBounds(bounds.Messages, int64(bounds.Bytes))
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

// run runs the source and the sinks. The sinks end after the source: they still store the messages
// in flight.
func (r *route) run(ctx context.Context) {
	sinks, closeSinks := context.WithCancel(context.Background())
	var sinkRuns, watchers sync.WaitGroup
	sinkRuns.Go(func() { r.runSink(sinks, "sink", r.sink) })
	if r.ownDeadLetterSink {
		sinkRuns.Go(func() { r.runSink(sinks, "dead_letter", r.deadLetterSink) })
	}
	watching, unwatch := context.WithCancel(ctx)
	watchers.Go(func() { r.watchLag(watching) })
	if err := app.Protect(func() error { return r.source.Run(ctx, r.pipelines) }); err != nil && ctx.Err() == nil {
		r.fail(fmt.Errorf("source: %w", err))
	}
	unwatch()
	closeSinks()
	sinkRuns.Wait()
	watchers.Wait()
}

// runSink runs a sink until ctx ends. Its error stops the route.
func (r *route) runSink(ctx context.Context, name string, s connector.Sink) {
	if err := app.Protect(func() error { return s.Run(ctx) }); err != nil && ctx.Err() == nil {
		r.fail(fmt.Errorf("%s: %w", name, err))
	}
}

// stop ends the route and waits for it until ctx ends. drainShare and closeShare divide the time.
func (r *route) stop(ctx context.Context) error {
	r.mu.Lock()
	if r.phase == running {
		r.phase, r.phaseSince = stopping, time.Now()
	}
	r.mu.Unlock()
	if deadline, bounded := ctx.Deadline(); bounded {
		left := float64(time.Until(deadline))
		defer time.AfterFunc(time.Duration(left*drainShare), r.sourceStop.end).Stop()
		defer time.AfterFunc(time.Duration(left*closeShare), r.sinkStop.end).Stop()
	}
	r.cancel()
	select {
	case <-r.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("route %s has not stopped: %w", r.cfg.Name, ctx.Err())
	}
}

// fail stops the route until it is changed or resumed.
func (r *route) fail(err error) {
	r.mu.Lock()
	first := r.phase == running
	if first {
		r.phase, r.phaseSince = failed, time.Now()
		r.lastErr, r.lastErrAt = err, r.phaseSince
	}
	r.mu.Unlock()
	if first {
		r.log.Error("route stopped", zap.Error(err), app.Stack(err))
		r.cancel()
	}
}

// report sets the health of a part of the route; nil: healthy.
func (r *route) report(part string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	state := r.health[part]
	if state == nil {
		state = health.New(r.log.With(zap.String("part", part)))
		r.health[part] = state
	}
	state.Set(err)
	if err != nil {
		r.lastErr, r.lastErrAt = err, time.Now()
	}
}

// The parts that report errors about messages.
const (
	partSending     = "sending"
	partDeadLetters = "dead letters"
	partResuming    = "resuming"
)

// clearHealth sets a part to healthy without a log line: the operation is not retried any more, as
// when another process has taken the partition.
func (r *route) clearHealth(part string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if state := r.health[part]; state != nil {
		state.Forget()
	}
}

// unhealthyParts returns the current errors, one text per unhealthy part. r.mu is held.
func (r *route) unhealthyParts() (texts []string) {
	for _, part := range slices.Sorted(maps.Keys(r.health)) {
		if err := r.health[part].Current(); err != nil {
			texts = append(texts, part+": "+err.Error())
		}
	}
	return texts
}

// unhealthyReason returns why the route is unhealthy; "" if it is healthy, paused or stopping.
func (r *route) unhealthyReason() string {
	paused := r.pipelines.State().Paused
	r.mu.Lock()
	defer r.mu.Unlock()
	switch unhealthyParts := r.unhealthyParts(); {
	case r.phase == failed:
		return "failed: " + r.lastErr.Error()
	case r.phase != running, paused, len(unhealthyParts) == 0:
		return ""
	default:
		return strings.Join(unhealthyParts, ", ")
	}
}

// newPrepare returns the function prepare of one pipeline, and one that is called when the pipeline is
// closed.
func (r *route) newPrepare() (prepare pipeline.Prepare, closed func()) {
	skip, release := r.newSkip()
	hops := &hopCheck{placeName: r.sink.PlaceName, maxHops: r.cfg.MaxHops}
	only, one := r.transform.Destination()
	prepare = func(ctx context.Context, m *message.Message) (string, bool, error) {
		// First: a loop is dropped even at max_hops, and even if an expression fails on it.
		if one && hops.loops(m, only) {
			return "", false, pipeline.ErrLoop
		}
		if err := hops.checkCount(m); err != nil {
			return "", false, err
		}
		to, keep, err := r.transform.Apply(m)
		if err != nil || !keep {
			return "", false, err
		}
		if !one && hops.loops(m, to) {
			return "", false, pipeline.ErrLoop
		}
		hops.setHop(m)
		m.OmitOrigin = r.cfg.Provenance == provenanceHops
		if skip == nil {
			return to, true, nil
		}
		stored, err := skip(ctx, to, m)
		return to, !stored, err
	}
	return prepare, release
}

// watchLag asks the source for its lag, and logs lasting errors with it, until ctx ends.
func (r *route) watchLag(ctx context.Context) {
	ticker := time.NewTicker(lagInterval)
	defer ticker.Stop()
	for {
		asking, cancel := context.WithTimeout(ctx, lagInterval)
		n, err := r.source.Lag(asking)
		cancel()
		if err != nil {
			n = -1
		}
		held := r.pipelines.State()
		r.mu.Lock()
		r.lag = n
		for _, state := range r.health {
			state.Remind(zap.Int64("lag_messages", n), zap.Int("in_flight", held.InFlight))
		}
		r.mu.Unlock()
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// errStopped is the error of requests for a route that is stopping.
var errStopped = errors.New("the route is stopping")
