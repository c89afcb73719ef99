// Package servers runs the services and other programs that scenarios measure.
package servers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/prometheus/procfs"

	"github.com/aviaryhq/aviary/test/bench/measure"
	"github.com/aviaryhq/aviary/test/bench/senders"
	"github.com/aviaryhq/aviary/test/stack/process"
	"github.com/aviaryhq/aviary/test/systems/owned"
)

// Server is a measured process.
type Server struct {
	Name    string
	Admin   string // URL of the admin server
	Address string // host:port for clients

	process *owned.Process
	stopped bool
}

// Start starts a program with more environment variables. It appends its output to the file log.
func Start(program, log string, environ []string, args ...string) (*Server, error) {
	out, err := os.OpenFile(filepath.Clean(log), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = out.Close() }() // the process has its own
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr, cmd.Env = out, out, append(os.Environ(), environ...)
	process, err := owned.Start(cmd, nil)
	return &Server{Name: filepath.Base(program), process: process}, err
}

const (
	readyTimeout = 30 * time.Second // until a process is ready
	stopTimeout  = 40 * time.Second // until a process has ended
)

// Stop asks the process to end and waits. A second call does nothing.
func (s *Server) Stop() error {
	if s.stopped {
		return nil
	}
	s.stopped = true
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	if err := s.process.Stop(ctx); err != nil {
		return fmt.Errorf("%s: %w", s.Name, err)
	}
	return nil
}

// Await waits until a GET of the URL succeeds. Otherwise it stops the process.
func (s *Server) Await(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	var last error
	err := process.Poll(ctx, 20*time.Millisecond, func() (bool, error) {
		var body io.ReadCloser
		if body, last = request(ctx, http.MethodGet, url, nil); last != nil {
			return false, nil //nolint:nilerr // it is not ready yet
		}
		return true, body.Close()
	})
	if err != nil {
		return errors.Join(fmt.Errorf("%s is not ready: %w: %w", s.Name, err, last), s.Stop())
	}
	return nil
}

// Measure sends a load, and then calls rest if it is not nil. The outcome has the CPU time of the
// process meanwhile, and its peak memory.
func (s *Server) Measure(ctx context.Context, l senders.Load, rest func()) (measure.Outcome, error) {
	before, err := s.CPU()
	if err != nil {
		return measure.Outcome{}, err
	}
	var m measure.Meter
	if err := l.Send(ctx, l, &m); err != nil {
		return m.Outcome, err
	}
	if rest != nil {
		rest()
	}
	after, err := s.CPU()
	if err != nil {
		return m.Outcome, err
	}
	m.Outcome.CPU = after - before
	m.Outcome.PeakMiB, err = s.Peak()
	return m.Outcome, err
}

// Profiles writes a CPU profile of five seconds, and what the service has allocated by then. The
// names of the files begin with prefix.
func (s *Server) Profiles(ctx context.Context, prefix string) error {
	for _, p := range [][2]string{{"profile?seconds=5", ".cpu.prof"}, {"allocs", ".allocs.prof"}} {
		body, err := request(ctx, http.MethodGet, s.Admin+"/debug/pprof/"+p[0], nil)
		if err != nil {
			return err
		}
		f, err := os.Create(filepath.Clean(prefix + p[1]))
		if err == nil {
			_, err = io.Copy(f, body)
			err = errors.Join(err, f.Close())
		}
		if err = errors.Join(err, body.Close()); err != nil {
			return err
		}
	}
	return nil
}

// CPU returns the user and system time of the process so far, in seconds.
func (s *Server) CPU() (float64, error) {
	p, err := procfs.NewProc(s.process.PID())
	if err != nil {
		return 0, err
	}
	stat, err := p.Stat()
	return stat.CPUTime(), err
}

// Peak returns the largest resident size of the process so far, in MiB.
func (s *Server) Peak() (float64, error) {
	_, peak, err := measure.ResidentMiB(s.process.PID())
	return peak, err
}

// Resident returns the resident size of the process, in MiB.
func (s *Server) Resident() (float64, error) {
	now, _, err := measure.ResidentMiB(s.process.PID())
	return now, err
}

// TwoAddresses finds two free addresses.
func TwoAddresses() (a, b string, err error) {
	one, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", "", err
	}
	two, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", "", errors.Join(err, one.Close())
	}
	return one.Addr().String(), two.Addr().String(), errors.Join(one.Close(), two.Close())
}

// Build compiles a service as its users get it.
func Build(ctx context.Context, name, binary string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", binary, "github.com/aviaryhq/aviary/cmd/"+name)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("cannot build %s: %w\n%s", name, err, out)
	}
	return nil
}
