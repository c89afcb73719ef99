package stack

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"time"
)

// errNotOwned keeps tests from killing the server that other packages share.
var errNotOwned = errors.New("this server is shared: use the function whose name begins with Private to stop, kill or pause one")

// A daemon is how to run one server: the same folder, settings and ports on each start.
type daemon interface {
	// start spawns the server's processes and returns the server's own. Those it spawned before are its helpers:
	// they end with it, but signals are not for them.
	start(ctx context.Context, spawn func(command) (process, error)) (process, error)
	waitHealthy(ctx context.Context, p process) error
	// title is what progress and failures call it.
	title() string
	logPath() string
	releasePorts()
}

// A server is what the servers of all kinds have in common: a private one starts, stops and breaks at will. The zero
// value is a server that is not ours to stop. Its methods may be called from several goroutines.
type server struct {
	daemon daemon // nil when shared

	mu       sync.Mutex
	children []child // the server's own process is the last; empty when none was started
}

// A child is a process of ours; done is closed when it has ended.
type child struct {
	process process
	done    <-chan struct{}
}

// PID returns the process id of a private server, or 0.
func (s *server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.runningLocked() {
		return 0
	}
	return s.mainLocked().process.PID
}

// Start starts a private server that was killed or stopped, on the same data and ports, and returns when it is
// healthy. It does nothing when the server runs.
func (s *server) Start(ctx context.Context) error {
	if s.daemon == nil {
		return errNotOwned
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.runningLocked() {
		return nil
	}
	// A server that ended by itself has left its helpers.
	if err := s.endLocked(process.kill); err != nil {
		return err
	}
	p, err := s.daemon.start(ctx, func(c command) (process, error) {
		p, done, err := spawnOwned(c)
		if err == nil {
			s.children = append(s.children, child{p, done})
		}
		return p, err
	})
	if err == nil {
		err = s.daemon.waitHealthy(ctx, p)
	}
	if err != nil {
		return errors.Join(err, s.endLocked(process.kill))
	}
	return nil
}

// Stop ends a private server in an orderly way, or with SIGKILL if it does not end. Stopping twice is fine.
func (s *server) Stop(ctx context.Context) error {
	return s.end(func(p process) error { return p.stop(ctx) })
}

// Kill ends a private server with SIGKILL and returns when it is gone. Data and ports stay for Start.
func (s *server) Kill() error { return s.end(process.kill) }

func (s *server) end(how func(process) error) error {
	if s.daemon == nil {
		return errNotOwned
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.endLocked(how)
}

// endLocked ends the server and then its helpers, which it may need for an orderly end.
func (s *server) endLocked(how func(process) error) error {
	for _, c := range slices.Backward(s.children) {
		if err := how(c.process); err != nil {
			return err
		}
		<-c.done
	}
	s.children = nil
	return nil
}

// Pause stops a private server's process with SIGSTOP: its connections stay open and answer nothing.
func (s *server) Pause() error {
	return s.signal(syscall.SIGSTOP, func(state byte) bool { return state == 'T' })
}

// Resume lets a paused server go on.
func (s *server) Resume() error {
	return s.signal(syscall.SIGCONT, func(state byte) bool { return state != 'T' })
}

func (s *server) signal(sig syscall.Signal, reached func(state byte) bool) error {
	if s.daemon == nil {
		return errNotOwned
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.runningLocked() {
		return fmt.Errorf("cannot send %v: the server does not run", sig)
	}
	p := s.mainLocked().process
	if err := p.signal(sig); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return poll(ctx, time.Millisecond, func() (bool, error) {
		state := p.state()
		if state == 0 {
			return false, fmt.Errorf("the server ended instead of taking %v", sig)
		}
		return reached(state), nil
	})
}

func (s *server) mainLocked() child { return s.children[len(s.children)-1] }

func (s *server) runningLocked() bool {
	if len(s.children) == 0 {
		return false
	}
	select {
	case <-s.mainLocked().done:
		return false
	default:
		return true
	}
}

// reachable tells whether asking the server to clean up has a point.
func (s *server) reachable() bool {
	if s.daemon == nil {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.runningLocked() && s.mainLocked().process.state() != 'T'
}
