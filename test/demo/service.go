package main

import (
	"context"
	"sync"
	"time"

	"github.com/aviaryhq/aviary/pkg/backoff"
	"github.com/aviaryhq/aviary/test/demo/display"
)

// service is a program of this run. A demo starts it again when its process has ended, with the same
// ports, configuration and data: people may kill it. A smoke run does not.
type service struct {
	name     string
	admin    string // address of its admin server
	start    func() (*child, error)
	restarts bool // false: the end of its process is a failure
	screen   *display.Screen

	ctx    context.Context // of the restarts
	cancel context.CancelFunc
	wait   sync.WaitGroup

	mu      sync.Mutex
	child   *child
	runs    int           // how many times it has become ready
	up      bool          // it was ready, and its process has not ended
	changed chan struct{} // closed and replaced when one of these fields changes
}

// startService starts one whose admin server has the address.
func startService(env *environment, name, admin, program string, environ []string, args ...string) (*service, error) {
	s := &service{name: name, admin: admin, restarts: env.restarts, screen: env.screen, changed: make(chan struct{})}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.start = func() (*child, error) { return spawn(env.dir, name, program, environ, args...) }
	var err error
	s.child, err = s.start()
	if err != nil {
		s.cancel()
		return nil, err
	}
	return s, nil
}

// change changes fields and wakes those who wait for a change.
func (s *service) change(do func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do()
	close(s.changed)
	s.changed = make(chan struct{})
}

// current is the process that runs now or ran last.
func (s *service) current() *child {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.child
}

// run is the number of the current run, for [service.excused].
func (s *service) run() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.runs
}

// ready waits until a service that was just started can be used.
func (s *service) ready(ctx context.Context) error {
	if err := s.awaitReady(ctx); err != nil {
		return err
	}
	s.change(func() { s.up, s.runs = true, 1 })
	s.screen.Note("%s runs, process %d", s.name, s.current().process.PID())
	if s.restarts {
		s.wait.Go(s.keep)
	}
	return nil
}

func (s *service) awaitReady(ctx context.Context) error {
	return s.current().await(ctx, "not ready", func(ctx context.Context) error { return ready(ctx, s.admin) })
}

// await is [child.await] of a service that is ready. It continues after a restart.
func (s *service) await(ctx context.Context, what string, ready func(context.Context) error) error {
	for {
		run := s.run()
		err := s.current().await(ctx, what, ready)
		if err == nil || ctx.Err() != nil || !s.excused(ctx, run) {
			return err
		}
	}
}

const (
	// maxFailedStarts is how many starts in a row may end before the service is ready.
	maxFailedStarts = 5
	// failedStartPause is the pause after the first of them. It grows with each.
	failedStartPause = 200 * time.Millisecond
)

// keep starts the service again whenever its process has ended, until stop or too many failed starts.
func (s *service) keep() {
	for failed := 0; ; {
		c := s.current()
		select {
		case <-c.process.Ended():
		case <-s.ctx.Done():
			return
		}
		s.change(func() { s.up = false })
		s.screen.Note("%s ended (%s); starting it again", s.name, c.status())
		if !backoff.Sleep(s.ctx, time.Duration(failed)*failedStartPause) {
			return
		}
		c, err := s.start()
		if err == nil {
			s.change(func() { s.child = c })
			err = s.awaitReady(s.ctx)
		}
		switch {
		case err == nil:
			failed = 0
			s.change(func() { s.up, s.runs = true, s.runs+1 })
			s.screen.Note("%s runs again, process %d", s.name, s.current().process.PID())
		case s.ctx.Err() != nil:
			return
		case c == nil || c.process.Running() || failed+1 == maxFailedStarts:
			s.screen.Note("%s does not start again, the other services go on: %v", s.name, err)
			return
		default:
			failed++
		}
	}
}

// reaped bounds the time between the end of a process's connections and the end of the process.
const reaped = time.Second

// excused reports whether a request failed because the service's process ended, and waits until the
// service runs again or ctx ends. The request began in the run of that number.
func (s *service) excused(ctx context.Context, run int) bool {
	if !s.restarts {
		return false
	}
	for {
		s.mu.Lock()
		c, up, again, changed := s.child, s.up, s.runs != run, s.changed
		s.mu.Unlock()
		switch {
		case up && again:
			return true
		case up:
			select {
			case <-c.process.Ended():
			case <-time.After(reaped):
				return false
			case <-ctx.Done():
				return true
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return true
		}
	}
}

// stop ends the service in order.
func (s *service) stop(ctx context.Context) error {
	if s == nil {
		return nil
	}
	s.cancel()
	s.wait.Wait()
	return s.current().stop(ctx)
}
