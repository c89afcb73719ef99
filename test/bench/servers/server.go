package servers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/aviaryhq/aviary/test/bench/measure"
	"github.com/aviaryhq/aviary/test/systems/owned"
)

// Turn is one measured run of a server under the load.
type Turn struct {
	Stored    float64 // bytes that the broker has of a sample; 0 where nothing was asked for
	Load      measure.Outcome
	CPU, Peak float64 // seconds; MiB
	Check     measure.Outcome
	Checked   bool
}

// PerCPU is the number of messages for each second of CPU.
func (t Turn) PerCPU() float64 { return float64(t.Load.Messages) / t.CPU }

// Rate is the number of messages per second.
func (t Turn) Rate() float64 { return t.Load.Rate() }

// StoredBytes is how many bytes the broker has of a sample.
func (t Turn) StoredBytes() float64 { return t.Stored }

// Server is a measured process.
type Server struct {
	Name, Write, Admin string

	process *owned.Process
	stopped bool
}

// Start starts a program. It writes to the file log, and has environ besides our environment.
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

// stopTimeout is how long a process may take to end in order.
const stopTimeout = 40 * time.Second

// Stop asks the process to end and waits. Twice is fine.
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

// Await polls url until it answers 200.
func (s *Server) Await(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(req)
		if err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		measure.Wait(ctx, 20*time.Millisecond)
		if ctx.Err() != nil {
			return errors.Join(fmt.Errorf("%s is not ready", s.Name), s.Stop())
		}
	}
}

// Load measures the process while it is sent the load that p says, remote write where it says none,
// and while rest lasts.
func (s *Server) Load(ctx context.Context, p measure.Piece, rest func()) (t Turn, err error) {
	before, err := s.CPU()
	if err != nil {
		return t, err
	}
	p.Kind, p.URL = cmp.Or(p.Kind, "remote-write"), cmp.Or(p.URL, s.Write)
	if t.Load, err = measure.Run(ctx, p); err != nil {
		return t, err
	}
	if rest != nil {
		rest()
	}
	after, err := s.CPU()
	if err != nil {
		return t, err
	}
	t.CPU = after - before
	t.Peak, err = s.Peak()
	return t, err
}

// Profiles writes five seconds' CPU profile, which includes the generator's making of
// its requests, and what has been allocated by then.
func (s *Server) Profiles(ctx context.Context, prefix string) error {
	for _, p := range [][2]string{{"profile?seconds=5", ".cpu.prof"}, {"allocs", ".allocs.prof"}} {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.Admin+"/debug/pprof/"+p[0], nil)
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		f, err := os.Create(filepath.Clean(prefix + p[1]))
		if err == nil {
			_, err = io.Copy(f, resp.Body)
			err = errors.Join(err, f.Close())
		}
		if err = errors.Join(err, resp.Body.Close()); err != nil {
			return err
		}
	}
	return nil
}

// ticks is in how many a second the kernel counts time of processes.
const ticks = 100

// CPU is the process' user and system time so far, in seconds.
func (s *Server) CPU() (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.process.PID()))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0, errors.New("unexpected /proc/<pid>/stat")
	}
	user, err1 := strconv.ParseFloat(fields[11], 64)
	system, err2 := strconv.ParseFloat(fields[12], 64)
	return (user + system) / ticks, errors.Join(err1, err2)
}

// Peak is the largest resident size of the process so far, in MiB.
func (s *Server) Peak() (float64, error) { return measure.ResidentMiB(s.process.PID(), "VmHWM") }

// TwoPorts finds free addresses.
func TwoPorts() (a, b string, err error) {
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

// P50 is the median latency, in milliseconds.
func (t Turn) P50() float64 { return t.Load.P50 }

// P99 is the latency that one message in a hundred exceeds, in milliseconds.
func (t Turn) P99() float64 { return t.Load.P99 }

// Resident is the process' resident size, in MiB.
func (s *Server) Resident() (float64, error) { return measure.ResidentMiB(s.process.PID(), "VmRSS") }
