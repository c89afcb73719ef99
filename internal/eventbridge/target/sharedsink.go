package target

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/connector"
	"github.com/aviaryhq/aviary/internal/connector/pipeline"
	"github.com/aviaryhq/aviary/internal/health"
	"github.com/aviaryhq/aviary/pkg/backoff"
)

// sinkKey identifies a sink: its system, its connection and its destination. The destination is
// empty if one sink serves all.
type sinkKey struct{ system, connection, destination string }

// runner is a sink of internal/connector.
type runner interface {
	pipeline.Sink
	Run(ctx context.Context) error
}

// sharedSink is a sink, and the number of targets that use it.
type sharedSink struct {
	factory *Factory
	key     sinkKey
	current atomic.Pointer[pipeline.Sink] // replaced after Run has failed
	users   int                           // guarded by the factory's lock
	health  *health.State

	end         context.CancelFunc // ends Run
	cancelDrain context.CancelFunc // makes Run stop waiting for events in flight
	finished    chan struct{}
}

// acquire returns the sink of key. If there is none, it starts one.
func (f *Factory) acquire(key sinkKey, start func(connector.Options) runner) (*sharedSink, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, errors.New("the targets are closed")
	}
	s := f.sinks[key]
	if s == nil {
		log := f.log.With(
			zap.String("system", key.system), zap.String("connection", key.connection), zap.String("destination", key.destination))
		s = &sharedSink{factory: f, key: key, finished: make(chan struct{}), health: health.New(log)}
		f.sinks[key] = s
		running, end := context.WithCancel(context.Background())
		drain, cancelDrain := context.WithCancel(context.Background())
		s.end, s.cancelDrain = end, cancelDrain
		s.run(running, func() runner {
			return start(connector.Options{Log: f.log, Report: s.health.Set, Registerer: f.registerer, DrainContext: drain})
		})
	}
	s.users++
	return s, nil
}

const (
	restartPause    = time.Second
	maxRestartPause = 30 * time.Second
)

// run starts a sink and runs it in the background until ctx ends. If the sink fails, for example
// because it cannot read a file, run starts another one after a pause.
func (s *sharedSink) run(ctx context.Context, start func() runner) {
	next := func() runner {
		sink := start()
		s.current.Store(new(pipeline.Sink(sink)))
		return sink
	}
	first := next()
	go func() {
		defer close(s.finished)
		pause := backoff.Backoff{Min: restartPause, Max: maxRestartPause}
		for sink := first; ; sink = next() {
			err := sink.Run(ctx)
			if err == nil || ctx.Err() != nil {
				return
			}
			s.health.Set(err)
			if !pause.Wait(ctx) {
				return
			}
		}
	}()
}

// release closes the sink when its last user releases it.
func (s *sharedSink) release(ctx context.Context) {
	f := s.factory
	f.mu.Lock()
	s.users--
	last := s.users == 0
	if last && f.sinks[s.key] == s {
		delete(f.sinks, s.key)
	}
	f.mu.Unlock()
	if last {
		s.stop(ctx)
	}
}

// stop ends the sink and waits for it. Until ctx ends, events in flight may finish.
func (s *sharedSink) stop(ctx context.Context) {
	s.end()
	select {
	case <-s.finished:
	case <-ctx.Done():
	}
	s.cancelDrain()
	<-s.finished
}
