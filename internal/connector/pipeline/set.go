package pipeline

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/connector/message"
	"github.com/aviaryhq/aviary/pkg/backoff"
)

// Config bounds a route's pipelines.
type Config struct {
	// Messages and Bytes bound what a route has in flight: taken from its source and not complete.
	// One half of each is divided among the pipelines. From the other half a pipeline borrows at most
	// as much as it leaves free, so that a stuck pipeline leaves some for others. A pipeline alone
	// may hold all. An empty pipeline may always take one message, however large.
	Messages int
	Bytes    int64
	// CommitEvery is the interval at which a pipeline commits its watermark.
	CommitEvery time.Duration
	// MinBackoff and MaxBackoff bound the wait before a resend. The wait doubles from one failure
	// to the next. Jitter adds up to 20 %.
	MinBackoff, MaxBackoff time.Duration
}

// backoff returns the waits between the attempts of one pipeline.
func (c *Config) backoff() backoff.Backoff {
	return backoff.Backoff{Min: c.MinBackoff, Max: c.MaxBackoff}
}

// Route is what pipelines need of their route. All functions are safe for concurrent use.
type Route struct {
	Sink Sink
	// Prepare returns two functions for a new pipeline: prepare, which the pipeline calls for each
	// message in order, and closed, which it calls when it is closed (nil: none).
	Prepare func() (prepare Prepare, closed func())
	// DeadLetter stores a refused message as a dead letter. nil: the first refusal stops the route.
	// It calls done as Sink.Send does. Calls may overlap, and their order does not matter.
	DeadLetter func(ctx context.Context, to string, m *message.Message, reason error, done func(error))
	// Stop stops the route for good, because of err.
	Stop func(err error)
	// Report is called with each error of the sink, and when no pipeline has an error any more: with
	// nil when the last of them has recovered, with ErrClosed when it was closed before.
	Report func(err error)
	// ReportDeadLetters is the same for dead letters. nil: no reports.
	ReportDeadLetters func(err error)

	Log     *zap.Logger
	Metrics *RouteMetrics
}

// Prepare changes m and returns its destination. keep is false for a message to drop. The error is
// ctx's, or ErrLoop; any other error refuses the message.
type Prepare func(ctx context.Context, m *message.Message) (to string, keep bool, err error)

// Set holds the pipelines of one route. It is safe for concurrent use.
type Set struct {
	cfg   Config
	route Route

	mu        sync.Mutex
	pipelines map[*Pipeline]struct{}
	paused    atomic.Bool

	pool pool // bounds what all pipelines hold

	sinkFailures, deadLetterFailures failures

	stored, filtered, refused, resent atomic.Int64
}

// NewSet makes a set without pipelines.
func NewSet(cfg Config, route Route) *Set {
	s := &Set{
		cfg: cfg, route: route, pipelines: map[*Pipeline]struct{}{}, pool: pool{waiting: map[*Pipeline]struct{}{}},
		sinkFailures:       failures{report: route.Report, pipelines: map[*Pipeline]struct{}{}},
		deadLetterFailures: failures{report: route.ReportDeadLetters, pipelines: map[*Pipeline]struct{}{}},
	}
	s.SetBounds(cfg.Messages, cfg.Bytes)
	return s
}

// SetBounds replaces Messages and Bytes of Config, also for open pipelines. Pipelines that hold
// more than smaller bounds allow keep it until it is complete.
func (s *Set) SetBounds(messages int, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pool.divide(amount{int64(messages), bytes}, s.pipelines)
}

// Bounds returns how many messages and bytes the pipelines may hold together.
func (s *Set) Bounds() (messages int, bytes int64) {
	s.pool.mu.Lock()
	defer s.pool.mu.Unlock()
	return int(s.pool.bounds.messages), s.pool.bounds.bytes
}

// Open starts a pipeline for one partition of the source, or for one consumer of a queue. The pipeline
// calls commit with the position, as given to Offer, up to which every message is complete. Positions
// ascend. Calls come one at a time, about once in a commit interval, and never after Close or Abandon
// has returned. An error of commit is logged and commit is called again.
func (s *Set) Open(name string, commit func(position int64) error) *Pipeline {
	l := &Pipeline{
		set: s, name: name, commit: commit, log: s.route.Log.With(zap.String("pipeline", name)),
		wakeRun: make(chan struct{}, 1), wakeOffer: make(chan struct{}, 1), ended: make(chan struct{}), watermark: -1, committed: -1,
	}
	l.prepare, l.onClose = s.route.Prepare()
	l.ctx, l.cancel = context.WithCancelCause(context.Background())
	s.mu.Lock()
	s.pipelines[l] = struct{}{}
	s.pool.divide(s.pool.bounds, s.pipelines)
	s.mu.Unlock()
	go l.run()
	return l
}

// remove removes a closed pipeline, which holds nothing.
func (s *Set) remove(l *Pipeline) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pipelines, l)
	s.pool.divide(s.pool.bounds, s.pipelines)
}

// Pause makes Offer of every pipeline wait for Resume.
func (s *Set) Pause() { s.paused.Store(true) }

// Paused reports whether Offer waits for Resume.
func (s *Set) Paused() bool { return s.paused.Load() }

// Resume ends Pause.
func (s *Set) Resume() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paused.Store(false)
	for l := range s.pipelines {
		signal(l.wakeOffer)
	}
}

// State is what the pipelines of a route hold, and what they have done.
type State struct {
	Pipelines int
	InFlight  int   // messages taken and not complete
	Bytes     int64 // of the messages in flight

	MaxInFlight int
	MaxBytes    int64
	// Oldest is how long ago the source's broker stored the oldest message in flight; if the broker
	// does not say when, how long ago this process received it.
	Oldest                            time.Duration
	Stored, Filtered, Refused, Resent int64
	Paused                            bool
}

// State returns the state of all pipelines together.
func (s *Set) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := State{
		Pipelines: len(s.pipelines), Paused: s.Paused(),
		Stored: s.stored.Load(), Filtered: s.filtered.Load(), Refused: s.refused.Load(), Resent: s.resent.Load(),
	}
	st.MaxInFlight, st.MaxBytes = s.Bounds()
	held := s.pool.all()
	st.InFlight, st.Bytes = int(held.messages), held.bytes
	now := time.Now()
	for l := range s.pipelines {
		if since := l.oldest(); !since.IsZero() {
			st.Oldest = max(st.Oldest, now.Sub(since))
		}
	}
	return st
}

// failures are the pipelines of a route to which one sink gives errors.
type failures struct {
	report func(error) // see Route.Report; nil: no reports

	mu        sync.Mutex // held while reporting: the last report is the current state
	pipelines map[*Pipeline]struct{}
}

// add reports an error of pipeline l, unless l is closed.
func (f *failures) add(l *Pipeline, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.report == nil || l.ctx.Err() != nil { // remove is called after the end of l.ctx
		return
	}
	f.pipelines[l] = struct{}{}
	f.report(err)
}

// remove ends the failure of pipeline l: result is nil when l has recovered, and ErrClosed when it was
// closed. The last pipeline's result is reported.
func (f *failures) remove(l *Pipeline, result error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, failing := f.pipelines[l]; !failing {
		return
	}
	if delete(f.pipelines, l); len(f.pipelines) == 0 {
		f.report(result)
	}
}
