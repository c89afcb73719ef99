package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"runtime/debug"
	"runtime/pprof"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
)

// Runtime runs the parts of a service. It stops actors and closing functions in the reverse order
// of their registration, each completely before the next, as defer does: register first what others
// depend on. A service that dials, then opens a publisher, then serves, stops taking requests,
// finishes those it has, flushes the publisher and closes the connection.
//
// The methods are safe for concurrent use.
type Runtime struct {
	Name    string               // of the binary
	Log     *zap.Logger          // not named: use Named for each part
	Metrics *prometheus.Registry // served on /metrics

	shutdownTimeout time.Duration
	health          *checkSet
	cancel          context.CancelFunc // asks for the ordered stop
	admin           *http.ServeMux
	config          atomic.Value  // the configuration in force
	built           chan struct{} // closed when the start has ended
	reloading       chan struct{} // holds one element while a configuration is taken over; the stop keeps it

	mu       sync.Mutex
	pages    []adminPage // the service's own
	stages   []*stage
	stopped  bool // every stage was stopped: further stages are refused
	reload   func(ctx context.Context, cfg any) error
	failures []error // the first is the reason of the stop
	logged   int     // how many of failures were logged when the stop began

	memoryLimit int64 // set by TuneMemory, 0 before
	usualMemory int64 // set by SpareMemory; 0: the limit alone counts
}

// A stage is one step of the ordered stop.
type stage struct {
	name   string
	stop   func(ctx context.Context) // returns when the stage has stopped
	cancel context.CancelFunc        // makes it stop
}

// PanicError is the failure of an actor or a closing function that panicked.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// Unwrap returns the panic's value if it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// errEarly is the failure of an actor that ended before the stop: a process must not continue
// without one of its parts.
var errEarly = errors.New("ended unexpectedly")

func newRuntime(name string, log *zap.Logger, shutdownTimeout time.Duration) *Runtime {
	r := &Runtime{
		Name: name, Log: log, Metrics: newRegistry(name), shutdownTimeout: shutdownTimeout, health: &checkSet{phase: starting}, admin: http.NewServeMux(),
		built: make(chan struct{}), reloading: make(chan struct{}, 1),
	}
	r.Metrics.MustRegister(readyGauge(r.health))
	return r
}

// Go starts an actor. run works until its ctx is cancelled, when it is the actor's turn to stop.
// Then run finishes what it has begun, and returns nil (or the ctx's error). If run returns
// earlier, or returns another error or panics at any time, the process stops with a failure. An
// actor that has done all the work of the process calls [Runtime.Shutdown] and waits for its ctx.
func (r *Runtime) Go(name string, run func(ctx context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	if !r.add(&stage{name: name, cancel: cancel, stop: func(context.Context) { cancel(); <-done }}) {
		cancel()
		return
	}
	go func() {
		defer close(done)
		result := errEarly // also what remains when the actor ends its goroutine by runtime.Goexit
		defer func() {
			if stopping := ctx.Err(); result != nil && (stopping == nil || !errors.Is(result, stopping)) {
				r.fail(fmt.Errorf("actor %s: %w", name, result))
			}
		}()
		pprof.Do(ctx, pprof.Labels("actor", name), func(ctx context.Context) {
			result = Protect(func() error { return run(ctx) })
		})
		if result == nil && ctx.Err() == nil {
			result = errEarly
		}
	}()
}

// OnStop registers a closing function, such as the Close of a client. Its ctx ends when the time
// for the whole stop is over. It is called once, even after a start that failed half-way.
func (r *Runtime) OnStop(name string, stop func(ctx context.Context) error) {
	r.add(&stage{name: name, cancel: func() {}, stop: func(ctx context.Context) {
		if err := Protect(func() error { return stop(ctx) }); err != nil {
			r.fail(fmt.Errorf("stopping %s: %w", name, err))
		}
	}})
}

// Check registers a readiness check, shown by its name on /-/ready. It is called on each request,
// bounded by two seconds, never twice at once.
func (r *Runtime) Check(name string, check func(ctx context.Context) error) {
	r.health.add(name, check)
}

// Handle adds pages to the admin server. The path is a pattern of http.ServeMux without a method.
// what describes the pages in one line of the index. The index does not list pages whose what is
// empty.
func (r *Runtime) Handle(path, what string, handler http.Handler) {
	r.admin.Handle(path, handler)
	if what == "" {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pages = append(r.pages, adminPage{path, what})
}

// Serve starts an actor that serves HTTP on ln; see [Serve]. Requests in flight at the stop have
// half of the shutdown timeout to finish.
func (r *Runtime) Serve(name string, ln net.Listener, server *http.Server) {
	r.ServeWith(name, ln, server, server.Serve)
}

// ServeWith is Serve with the caller's own function to serve; see [ServeWith].
func (r *Runtime) ServeWith(name string, ln net.Listener, server *http.Server, serve func(net.Listener) error) {
	if server.ErrorLog == nil {
		server.ErrorLog = errorLog(r.Log.Named(name))
	}
	r.Go(name, func(ctx context.Context) error { return ServeWith(ctx, ln, server, r.shutdownTimeout/2, serve) })
}

// Listen opens a listener for one of the service's servers; see [Listen].
func (r *Runtime) Listen(ctx context.Context, server, key, address string) (net.Listener, error) {
	return Listen(ctx, r.Log, server, key, address)
}

// Shutdown asks for the ordered stop, with success, and returns at once. It may be called any
// number of times.
func (r *Runtime) Shutdown() { r.cancel() }

func (r *Runtime) add(s *stage) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.stopped {
		r.stages = append(r.stages, s)
	}
	return !r.stopped
}

func (r *Runtime) fail(err error) {
	r.mu.Lock()
	r.failures = append(r.failures, err)
	r.mu.Unlock()
	r.cancel()
}

// run builds the service, waits for the end of ctx, Shutdown or a failure, and stops everything in
// order. It returns every failure.
func (r *Runtime) run(ctx context.Context, build func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r.cancel = cancel
	go func() {
		defer close(r.built)
		err := Protect(func() error { return build(ctx) })
		switch {
		case err == nil:
			r.health.set(ready)
			go r.health.watch(ctx, r.Log.Named("readiness"))
		case ctx.Err() == nil || !errors.Is(err, ctx.Err()): // not only stopped while starting
			r.fail(fmt.Errorf("cannot start: %w", err))
		}
	}()
	<-ctx.Done()
	r.health.set(draining)
	r.logStop()

	bounded, cancelStop := context.WithTimeout(context.WithoutCancel(ctx), r.shutdownTimeout)
	defer cancelStop()
	r.stop(bounded,
		&stage{name: "start", stop: func(context.Context) { <-r.built }},
		&stage{name: "the change of the configuration", stop: r.awaitReload})
	r.mu.Lock()
	defer r.mu.Unlock()
	return errors.Join(r.failures...)
}

// awaitReload waits until a change of the configuration has ended, for at most half of the time of
// the whole stop: a change that hangs must not keep the parts from their own stop, in which they
// write their remaining records.
func (r *Runtime) awaitReload(ctx context.Context) {
	timer := time.NewTimer(r.shutdownTimeout / 2)
	defer timer.Stop()
	select {
	case r.reloading <- struct{}{}:
	case <-timer.C:
		r.fail(fmt.Errorf("the change of the configuration has not ended within %s", r.shutdownTimeout/2))
	case <-ctx.Done():
	}
}

func (r *Runtime) logStop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	reason := errors.Join(r.failures...)
	r.logged = len(r.failures)
	if reason != nil {
		r.Log.Error("stopping after a failure", zap.Error(reason), Stack(reason))
		return
	}
	r.Log.Info("stopping", zap.Duration("timeout", r.shutdownTimeout))
}

// unlogged returns the failures during the stop. The failures that made the process stop were logged
// when the stop began.
func (r *Runtime) unlogged() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return errors.Join(r.failures[r.logged:]...)
}

// stop waits for the stages in first, then stops the registered stages, the last one first, until
// ctx ends. A stage that has not stopped by then is a failure. The failure names it, and the stages
// that were not reached: these are cancelled, but not waited for.
func (r *Runtime) stop(ctx context.Context, first ...*stage) {
	next := func() *stage {
		if len(first) == 0 {
			return r.pop()
		}
		s := first[0]
		first = first[1:]
		return s
	}
	for s := next(); s != nil; s = next() {
		began := time.Now()
		if done := s.stopped(ctx); !done {
			r.abandon(s)
			return
		}
		r.Log.Debug("stopped", zap.String("stage", s.name), zap.Duration("took", time.Since(began)))
	}
}

// stopped reports whether the stage has stopped before the end of ctx.
func (s *stage) stopped(ctx context.Context) bool {
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.stop(ctx)
	}()
	select {
	case <-done:
		return true
	case <-ctx.Done():
		return false
	}
}

func (r *Runtime) pop() *stage {
	r.mu.Lock()
	defer r.mu.Unlock()
	last := len(r.stages) - 1
	if last < 0 {
		r.stopped = true
		return nil
	}
	s := r.stages[last]
	r.stages = r.stages[:last]
	return s
}

func (r *Runtime) abandon(hung *stage) {
	text := fmt.Sprintf("%s has not stopped within %s", hung.name, r.shutdownTimeout)
	var names []string
	for s := r.pop(); s != nil; s = r.pop() {
		names = append(names, s.name)
		s.cancel()
	}
	if len(names) > 0 {
		text += "; not stopped either: " + strings.Join(names, ", ")
	}
	r.fail(errors.New(text))
}

// Stack returns the field "stack" for a log line about an error that is or wraps a [PanicError], and
// no field for another error.
func Stack(err error) zap.Field {
	if panicked := (*PanicError)(nil); errors.As(err, &panicked) {
		return zap.ByteString("stack", panicked.Stack)
	}
	return zap.Skip()
}

// Protect calls f and turns a panic into a [PanicError]. It is for goroutines of a service that are
// not actors.
func Protect(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{Value: v, Stack: debug.Stack()}
		}
	}()
	return f()
}
