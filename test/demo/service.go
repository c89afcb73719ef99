package main

import (
	"context"
	"fmt"
	"sync"

	"github.com/aviaryhq/aviary/test/demo/display"
)

// service is a program of this run that can be killed and started again, with the same ports,
// configuration and data.
type service struct {
	start func() (*child, error)
	admin string // address

	ctx    context.Context // of what goes on after again
	cancel context.CancelFunc
	wait   sync.WaitGroup

	mu      sync.Mutex
	child   *child
	now     display.State
	turns   int           // of what it does
	changed chan struct{} // closed and replaced at each turn
}

// startService starts one whose admin server has the address.
func startService(env *environment, name, admin, program string, environ []string, args ...string) (*service, error) {
	s := &service{admin: admin, changed: make(chan struct{})}
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

// turn enters a phase. s.mu is held.
func (s *service) turn(to display.Phase, err error) {
	s.now.Phase, s.now.Err = to, err
	s.turns++
	close(s.changed)
	s.changed = make(chan struct{})
}

// current is the process that runs now or ran last.
func (s *service) current() *child {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.child
}

// ready waits until a service that was just started can be used.
func (s *service) ready(ctx context.Context) error {
	err := s.await(ctx, "not ready", func(ctx context.Context) error { return ready(ctx, s.admin) })
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.now.Phase == display.Starting {
		s.turn(display.Up, nil)
	}
	return nil
}

func (s *service) await(ctx context.Context, what string, ready func(context.Context) error) error {
	return s.current().await(ctx, what, ready)
}

func (s *service) State() display.State {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notice()
	return s.now
}

// notice sees that the process has ended by itself. s.mu is held.
func (s *service) notice() {
	if s.now.Phase == display.Starting || s.now.Phase == display.Up {
		select {
		case <-s.child.process.Ended():
			s.turn(display.Down, s.child.death())
		default:
		}
	}
}

// kill ends the service as a crash would, and returns when it has ended.
func (s *service) Kill() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notice()
	switch s.now.Phase {
	case display.Up, display.Restarting:
	default:
		return fmt.Errorf("it is %s", s.now.Phase)
	}
	if err := s.child.kill(); err != nil {
		return err
	}
	s.now.Kills++
	s.turn(display.Killed, nil)
	return nil
}

// again starts a service that was killed or ended by itself. What follows its start is seen in its
// state.
func (s *service) Again() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notice()
	if s.now.Phase != display.Killed && s.now.Phase != display.Down {
		return fmt.Errorf("it is %s", s.now.Phase)
	}
	c, err := s.start()
	if err != nil {
		s.turn(display.Down, err)
		return err
	}
	s.child = c
	s.turn(display.Restarting, nil)
	turn := s.turns
	s.wait.Go(func() {
		err := c.await(s.ctx, "not ready", func(ctx context.Context) error { return ready(ctx, s.admin) })
		s.mu.Lock()
		defer s.mu.Unlock()
		switch {
		case s.turns != turn: // killed again, or stopped
		case err != nil:
			s.turn(display.Down, err)
		default:
			s.turn(display.Up, nil)
		}
	})
	return nil
}

// turnNow tells turns apart, for excused.
func (s *service) turnNow() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.turns
}

// excused waits until the service runs again. It returns false at once if it has run all the time
// since the turn: what failed then has no excuse.
func (s *service) excused(ctx context.Context, turn int) bool {
	for waited := false; ; waited = true {
		s.mu.Lock()
		now, changed, same := s.now, s.changed, s.turns == turn
		s.mu.Unlock()
		switch {
		case now.Phase == display.Up:
			return waited || !same
		case now.Kills == 0:
			return false
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return true
		}
	}
}

// stop ends the service in order. That it was killed before is no failure.
func (s *service) stop(ctx context.Context) error {
	if s == nil {
		return nil
	}
	s.cancel()
	s.mu.Lock()
	was, c := s.now, s.child
	s.turn(display.Stopping, nil)
	s.mu.Unlock()
	s.wait.Wait()
	if was.Phase == display.Killed {
		return nil
	}
	return c.stop(ctx)
}
