package stack

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"
)

// errNotOwned keeps tests from killing the server that other packages share.
var errNotOwned = errors.New("this server is shared: use PrivatePulsar or PrivateGeo to stop, kill or pause one")

// A PulsarServer is a running Pulsar: shared, given by the environment, or private to a test. Its methods may be
// called from several goroutines.
type PulsarServer struct {
	url   string
	admin *admin

	broker *broker // nil when shared

	mu      sync.Mutex
	process process
	done    <-chan struct{} // closed when process has ended; nil before the first start
}

// URL returns the service URL, pulsar://host:port.
func (s *PulsarServer) URL() string { return s.url }

// AdminURL returns the URL of the admin REST API, http://host:port.
func (s *PulsarServer) AdminURL() string { return s.admin.base }

// PID returns the process id of a private server's JVM, or 0.
func (s *PulsarServer) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.runningLocked() {
		return 0
	}
	return s.process.PID
}

// Start starts a private server that was killed or stopped, on the same data and ports, and returns when it is
// healthy. It does nothing when the server runs.
func (s *PulsarServer) Start(ctx context.Context) error {
	if s.broker == nil {
		return errNotOwned
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.runningLocked() {
		return nil
	}
	p, err := s.broker.start(func(c command) (process, error) {
		p, done, err := spawnOwned(c)
		s.done = done
		return p, err
	})
	if err != nil {
		s.done = nil
		return err
	}
	s.process = p
	if err := s.broker.waitHealthy(ctx, p); err != nil {
		return errors.Join(err, s.endLocked(p.kill))
	}
	return nil
}

// Stop ends a private server in an orderly way, or with SIGKILL if it does not end. Stopping twice is fine.
func (s *PulsarServer) Stop(ctx context.Context) error {
	return s.end(func(p process) error { return p.stop(ctx) })
}

// Kill ends a private server with SIGKILL and returns when it is gone. Data and ports stay for Start.
func (s *PulsarServer) Kill() error { return s.end(process.kill) }

func (s *PulsarServer) end(how func(process) error) error {
	if s.broker == nil {
		return errNotOwned
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done == nil {
		return nil
	}
	return s.endLocked(func() error { return how(s.process) })
}

func (s *PulsarServer) endLocked(how func() error) error {
	if err := how(); err != nil {
		return err
	}
	<-s.done
	return nil
}

// Pause stops a private server's process with SIGSTOP: its connections stay open and answer nothing.
func (s *PulsarServer) Pause() error {
	return s.signal(syscall.SIGSTOP, func(state byte) bool { return state == 'T' })
}

// Resume lets a paused server go on.
func (s *PulsarServer) Resume() error {
	return s.signal(syscall.SIGCONT, func(state byte) bool { return state != 'T' })
}

func (s *PulsarServer) signal(sig syscall.Signal, reached func(state byte) bool) error {
	if s.broker == nil {
		return errNotOwned
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.runningLocked() {
		return fmt.Errorf("cannot send %v: the server does not run", sig)
	}
	if err := s.process.signal(sig); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return poll(ctx, time.Millisecond, func() (bool, error) {
		state := s.process.state()
		if state == 0 {
			return false, fmt.Errorf("the server ended instead of taking %v", sig)
		}
		return reached(state), nil
	})
}

func (s *PulsarServer) runningLocked() bool {
	if s.done == nil {
		return false
	}
	select {
	case <-s.done:
		return false
	default:
		return true
	}
}

// reachable tells whether asking the server to clean up has a point.
func (s *PulsarServer) reachable() bool {
	if s.broker == nil {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.runningLocked() && s.process.state() != 'T'
}

// Admin sends a request to the admin REST API: path starts with /admin/v2, in is sent as JSON and the answer decoded
// into out, each unless nil; a *string takes the answer as it is.
func (s *PulsarServer) Admin(ctx context.Context, method, path string, in, out any) error {
	return s.admin.do(ctx, method, path, in, out)
}
