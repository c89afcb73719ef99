package stack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aviaryhq/aviary/test/stack/process"
)

// startTimeout is generous: a start takes 3 to 10 seconds on two quiet cores, and more than a minute
// on busy ones.
const startTimeout = 5 * time.Minute

var errEnded = errors.New("it ended while starting")

func startContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("not healthy after %v", startTimeout))
}

// startError adds to the reason why a start failed what the log, or the server's last answer, has
// to say of it.
func startError(d process.Daemon, err, last error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errEnded):
		return fmt.Errorf("%s: %w: %s, see %s", d.Title(), err, lastError(d.LogPath()), d.LogPath())
	default:
		return fmt.Errorf("%s: %w (last answer: %w), see %s", d.Title(), err, last, d.LogPath())
	}
}

// waitAnswers polls a server until ask, which gets a few seconds each time, finds nothing wrong.
func waitAnswers(ctx context.Context, d process.Daemon, p process.ID, ask func(context.Context) error) error {
	ctx, cancel := startContext(ctx)
	defer cancel()
	last := errors.New("none")
	err := process.Poll(ctx, 50*time.Millisecond, func() (bool, error) {
		if !p.Alive() {
			return false, errEnded
		}
		last = ask(ctx)
		return last == nil, nil
	})
	return startError(d, err, last)
}

// checkWithRetries asks the servers of a record until they answer. A server that is
// declared unhealthy is replaced, and under a full test run on two cores a slow answer is no reason
// to take it from everybody else.
func checkWithRetries(ctx context.Context, rec *record, ask func(context.Context, serverRecord) error) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for _, srv := range rec.Servers {
		var last error
		if err := process.Poll(ctx, 100*time.Millisecond, func() (bool, error) {
			last = ask(ctx, srv)
			return last == nil || !rec.alive(), nil
		}); err != nil || last != nil {
			return errors.Join(err, last)
		}
	}
	return nil
}

// startRecorded starts servers of Up and returns when all are healthy.
func (s *Stack) startRecorded(ctx context.Context, rec *record, daemons ...process.Daemon) error {
	began := time.Now()
	mains := make([]process.ID, len(daemons))
	for i, d := range daemons {
		s.log.Printf("%s: starting %s, log %s", rec.Service, d.Title(), d.LogPath())
		p, err := d.Start(ctx, func(c process.Command) (process.ID, error) { return s.spawnRecorded(rec, c) })
		if err != nil {
			return err
		}
		mains[i] = p
	}
	for i, d := range daemons {
		if err := d.WaitHealthy(ctx, mains[i]); err != nil {
			return err
		}
	}
	s.log.Printf("%s: healthy after %v", rec.Service, time.Since(began).Round(10*time.Millisecond))
	return nil
}

// spawnRecorded starts a process of a service, which outlives this one unless the stack is Owned.
func (s *Stack) spawnRecorded(rec *record, c process.Command) (process.ID, error) {
	alive, err := s.markAlive()
	if err != nil {
		return process.ID{}, err
	}
	defer alive.Close() // here; the process keeps its own
	c.Keep = append(slices.Clone(c.Keep), alive)
	spawn := process.StartDetached
	if s.cfg.Owned {
		spawn = func(c process.Command) (process.ID, error) { p, _, err := process.StartOwned(c); return p, err }
	}
	p, err := spawn(c)
	if err != nil {
		return p, err
	}
	rec.Processes = append(rec.Processes, p)
	return p, rec.save()
}

// lastError returns the latest error line of a log, the best one-line reason for a failed start.
func lastError(path string) string {
	last := "its log names no error"
	exception := regexp.MustCompile(`^[a-z]\w*(\.\w+)+: `) // with its class, below the line that reports it
	for _, line := range tail(path, 1000) {
		if strings.Contains(line, " ERROR ") || strings.Contains(line, " [error] ") ||
			strings.HasPrefix(line, "Caused by:") || exception.MatchString(line) || strings.HasPrefix(line, "Error") ||
			strings.HasPrefix(line, ">>> ") || strings.Contains(line, " # Fatal") { // of Redis: the line of redis.conf
			last = process.FirstLine(line)
		}
	}
	return last
}

// tail returns the last n lines of a log.
func tail(path string, n int) []string {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	return lines[max(0, len(lines)-n):]
}

// privateStack returns the stack of this checkout with what a service needs installed.
func privateStack(ctx context.Context, t testing.TB, service string) *Stack {
	t.Helper()
	skipIfShort(t)
	s, err := New(Config{Log: os.Stderr})
	if err == nil {
		s.sweep()
		err = s.checkSpace()
	}
	if err == nil {
		err = s.Fetch(ctx, service)
	}
	if err != nil {
		Unavailable(t, service, err)
	}
	return s
}

// privateFolder returns a folder for a private server's data that goes with the test.
func (s *Stack) privateFolder(t testing.TB, service string) string {
	t.Helper()
	alive, err := s.markAlive()
	if err != nil {
		Unavailable(t, service, err)
	}
	t.Cleanup(func() { alive.Close() })
	dir, err := s.privateDir()
	if err != nil {
		Unavailable(t, service, err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("cannot delete the server's data: %v", err)
		}
	})
	return dir
}

// own makes d the test's, as the server srv: the test's end stops it and lets go of its ports.
func own(t testing.TB, srv *process.Server, d process.Daemon) {
	t.Helper()
	srv.Daemon = d
	t.Cleanup(d.ReleasePorts)
	t.Cleanup(func() {
		if err := srv.Stop(context.Background()); err != nil {
			t.Errorf("cannot stop the server: %v", err)
		}
		if t.Failed() {
			t.Logf("last lines of the log of %s:\n%s", d.Title(), strings.Join(tail(d.LogPath(), 30), "\n"))
		}
	})
}

// private starts a daemon that prepare makes, as the server that srv will be.
func private[D process.Daemon](t testing.TB, service string, srv *process.Server, prepare func(ctx context.Context, s *Stack, dir string) (D, error)) D {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), setupTimeout)
	defer cancel()
	s := privateStack(ctx, t, service)
	d, err := prepare(ctx, s, s.privateFolder(t, service))
	if err != nil {
		Unavailable(t, service, err)
	}
	own(t, srv, d)
	if err := srv.Start(ctx); err != nil {
		t.Fatalf("cannot start a private %s: %v", service, err)
	}
	return d
}
