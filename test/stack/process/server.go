package process

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"time"
)

// ErrNotOwned keeps tests from killing the server that other packages share.
var ErrNotOwned = errors.New("this server is shared: use the function whose name begins with Private to stop, kill or pause one")

// A Daemon is how to run one server: the same folder, settings and ports on each start.
type Daemon interface {
	// Start spawns the server's processes and returns the server's own. Those it spawned before are
	// its helpers: they end with it, but signals are not for them.
	Start(ctx context.Context, spawn func(Command) (ID, error)) (ID, error)
	WaitHealthy(ctx context.Context, p ID) error
	// Title is what progress and failures call it.
	Title() string
	LogPath() string
	ReleasePorts()
}

// A Server is what the servers of all kinds have in common: a private one starts, stops and breaks
// at will. The zero value is a server that is not ours to stop. Its methods may be called from
// several goroutines.
type Server struct {
	Daemon Daemon // nil when shared

	mu       sync.Mutex
	children []child // the server's own process is the last; empty when none was started
}

// A child is a process of ours; done is closed when it has ended.
type child struct {
	process ID
	done    <-chan struct{}
}

// PID returns the process id of a private server, or 0.
func (s *Server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.runningLocked() {
		return 0
	}
	return s.mainLocked().process.PID
}

// Start starts a private server that was killed or stopped, on the same data and ports, and returns
// when it is healthy. It does nothing when the server runs.
func (s *Server) Start(ctx context.Context) error {
	if s.Daemon == nil {
		return ErrNotOwned
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.runningLocked() {
		return nil
	}
	// A server that ended by itself has left its helpers.
	if err := s.endLocked(ID.Kill); err != nil {
		return err
	}
	p, err := s.Daemon.Start(ctx, func(c Command) (ID, error) {
		p, done, err := StartOwned(c)
		if err == nil {
			s.children = append(s.children, child{p, done})
		}
		return p, err
	})
	if err == nil {
		err = s.Daemon.WaitHealthy(ctx, p)
	}
	if err != nil {
		return errors.Join(err, s.endLocked(ID.Kill))
	}
	return nil
}

// Stop ends a private server in an orderly way, or with SIGKILL if it does not end. Stopping twice
// is fine.
func (s *Server) Stop(ctx context.Context) error {
	return s.end(func(p ID) error { return p.Stop(ctx) })
}

// Kill ends a private server with SIGKILL and returns when it is gone. Data and ports stay for
// Start.
func (s *Server) Kill() error { return s.end(ID.Kill) }

func (s *Server) end(how func(ID) error) error {
	if s.Daemon == nil {
		return ErrNotOwned
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.endLocked(how)
}

// endLocked ends the server and then its helpers, which it may need for an orderly end.
func (s *Server) endLocked(how func(ID) error) error {
	for _, c := range slices.Backward(s.children) {
		if err := how(c.process); err != nil {
			return err
		}
		<-c.done
	}
	s.children = nil
	return nil
}

// Pause stops a private server's process with SIGSTOP: its connections stay open and answer
// nothing.
func (s *Server) Pause() error {
	return s.signal(syscall.SIGSTOP, func(state byte) bool { return state == 'T' })
}

// Resume lets a paused server go on.
func (s *Server) Resume() error {
	return s.signal(syscall.SIGCONT, func(state byte) bool { return state != 'T' })
}

func (s *Server) signal(sig syscall.Signal, reached func(state byte) bool) error {
	if s.Daemon == nil {
		return ErrNotOwned
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.runningLocked() {
		return fmt.Errorf("cannot send %v: the server does not run", sig)
	}
	p := s.mainLocked().process
	if err := p.Signal(sig); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), StopTimeout)
	defer cancel()
	return Poll(ctx, time.Millisecond, func() (bool, error) {
		state := p.State()
		if state == 0 {
			return false, fmt.Errorf("the server ended instead of taking %v", sig)
		}
		return reached(state), nil
	})
}

func (s *Server) mainLocked() child { return s.children[len(s.children)-1] }

func (s *Server) runningLocked() bool {
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

// Reachable tells whether asking the server to clean up has a point.
func (s *Server) Reachable() bool {
	if s.Daemon == nil {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.runningLocked() && s.mainLocked().process.State() != 'T'
}
