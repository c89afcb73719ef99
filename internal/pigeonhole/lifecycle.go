package pigeonhole

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/app"
	"github.com/aviaryhq/aviary/internal/connector/pipeline"
	"github.com/aviaryhq/aviary/internal/health"
)

type phase string

const (
	running  phase = "running"
	failed   phase = "failed" // stopped until it is changed or resumed
	stopping phase = "stopping"
)

const (
	stopTimeout = 30 * time.Second // of a route while the process runs
	lagInterval = 10 * time.Second // between two questions for the source's lag
)

// The time for a stop is divided. Until drainShare of it the source waits for messages in flight:
// the sinks store them and the source commits. Then the source disconnects, and the sinks may wait
// until closeShare. In the rest they disconnect. By default, with 30s in all, the source has 20s.
const (
	drainShare = 2. / 3
	closeShare = 9. / 10
)

// start runs the route until stop.
func (r *route) start() {
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	go r.run(ctx)
}

// run runs the source, and the sinks until it has ended: they still store what is in flight.
func (r *route) run(ctx context.Context) {
	defer close(r.done)
	sinks, closeSinks := context.WithCancel(context.Background())
	var others sync.WaitGroup
	others.Go(func() { r.runPart(sinks, roleSink, r.sink.Run) })
	if r.deadLetterSink != nil && r.deadLetterSink != r.sink {
		others.Go(func() { r.runPart(sinks, roleDeadLetter, r.deadLetterSink.Run) })
	}
	others.Go(func() { r.watch(sinks) })
	r.runPart(ctx, roleSource, func(ctx context.Context) error { return r.source.Run(ctx, r.pipelines) })
	closeSinks()
	others.Wait()
	r.endSourceLimit()
	r.endSinkLimit()
}

// runPart runs a source or sink until ctx ends. Its error stops the route.
func (r *route) runPart(ctx context.Context, role string, run func(context.Context) error) {
	if err := app.Protect(func() error { return run(ctx) }); err != nil && ctx.Err() == nil {
		r.fail(fmt.Errorf("%s: %w", role, err))
	}
}

// watch asks the source for its lag, and logs lasting errors with it, until ctx ends.
func (r *route) watch(ctx context.Context) {
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

// stop ends the route and waits for it until ctx ends. drainShare and closeShare divide the time.
func (r *route) stop(ctx context.Context) error {
	r.mu.Lock()
	if r.phase == running {
		r.phase, r.phaseSince = stopping, time.Now()
	}
	r.mu.Unlock()
	if deadline, bounded := ctx.Deadline(); bounded {
		left := float64(time.Until(deadline))
		defer time.AfterFunc(time.Duration(left*drainShare), r.endSourceLimit).Stop()
		defer time.AfterFunc(time.Duration(left*closeShare), r.endSinkLimit).Stop()
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

// report sets the health of a part of the route; nil: healthy. pipeline.ErrClosed ends an error
// without a log line: it is not known whether the cause is gone.
func (r *route) report(part string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	state := r.health[part]
	if state == nil {
		state = health.New(r.log.With(zap.String("part", part)))
		r.health[part] = state
	}
	if errors.Is(err, pipeline.ErrClosed) {
		state.Forget()
		return
	}
	state.Set(err)
	if err != nil {
		r.lastErr, r.lastErrAt = err, time.Now()
	}
}

// unhealthyParts returns one text per unhealthy part. r.mu is held.
func (r *route) unhealthyParts() (texts []string) {
	for _, part := range slices.Sorted(maps.Keys(r.health)) {
		if err := r.health[part].Current(); err != nil {
			texts = append(texts, part+": "+err.Error())
		}
	}
	return texts
}
