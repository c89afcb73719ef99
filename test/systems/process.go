// Package systems runs a service as a process of a test, which can kill it and start it again. The
// test binary itself is the program: see [Main].
package systems

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/systems/owned"

	"github.com/stretchr/testify/require"
)

// asService is the variable that makes the test binary run a service.
const asService = "AVIARY_TEST_AS_SERVICE"

// shownLog is how many bytes of the log of a failed test's service are shown.
const shownLog = 8000

// Main is all that a TestMain does: it runs the tests, or service in the processes that [Run] and
// [Command] start.
func Main(m *testing.M, service func() int) {
	if os.Getenv(asService) != "" {
		os.Exit(service())
	}
	os.Exit(m.Run())
}

// Command is the service with arguments and variables, such as SONIC_ZONE=a.
func Command(ctx context.Context, args, env []string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = append(append(os.Environ(), asService+"=1"), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C in the terminal reaches the test, which stops it in order
	return cmd
}

// A Process is a service that can be started again after it ended. Log, AddressNow and Running may
// be called from any goroutine, the other methods from that of the test.
type Process struct {
	t       testing.TB
	program string // empty: the test binary, as Command has it
	args    []string
	env     []string
	log     *text
	from    int // where this process began to write

	mu      sync.Mutex
	process *owned.Process // nil when none runs
}

// text keeps what processes have written.
type text struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (l *text) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(p)
}

func (l *text) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.String()
}

// Run starts a service, which is stopped with the test. When the test fails the end of its log is
// shown.
func Run(t testing.TB, args, env []string) *Process {
	t.Helper()
	return RunProgram(t, "", args, env)
}

// RunProgram is Run of a service's own binary, whose path is program.
func RunProgram(t testing.TB, program string, args, env []string) *Process {
	t.Helper()
	p := &Process{t: t, program: program, args: args, env: env, log: new(text)}
	p.Start()
	t.Cleanup(func() {
		defer func() {
			if t.Failed() {
				log := p.Log()
				t.Logf("the service %v %v wrote:\n%s", args, env, log[max(0, len(log)-shownLog):])
			}
		}()
		if p.running() != nil {
			p.Stop()
		}
	})
	return p
}

// Env is what Run was given.
func (p *Process) Env() []string { return p.env }

// Log is what the service has written so far, in all its processes.
func (p *Process) Log() string { return p.log.String() }

func (p *Process) running() *owned.Process {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.process
}

// take returns the process that runs, which then counts as ended.
func (p *Process) take() *owned.Process {
	p.mu.Lock()
	defer p.mu.Unlock()
	process := p.process
	p.process = nil
	return process
}

// Replace has the next Start run another binary.
func (p *Process) Replace(program string) { p.program = program }

// Start starts the service again, after Stop, Kill or Ended.
func (p *Process) Start() {
	p.t.Helper()
	cmd := Command(context.Background(), p.args, p.env)
	if p.program != "" {
		cmd = exec.Command(p.program, p.args...)
		cmd.Env = append(os.Environ(), p.env...)
	}
	cmd.Stderr, p.from = p.log, len(p.Log())
	process, err := owned.Start(cmd, nil)
	require.NoError(p.t, err)
	p.mu.Lock()
	p.process = process
	p.mu.Unlock()
}

// Stop asks the service to end and waits for it.
func (p *Process) Stop() {
	p.t.Helper()
	p.Address("admin") // before it has begun a signal just ends it
	p.Signal(syscall.SIGTERM)
	require.NoError(p.t, p.Ended(await.Patience), "%s", p.log)
}

// Ended waits for the end of the process, and returns how it ended.
func (p *Process) Ended(limit time.Duration) error {
	p.t.Helper()
	process := p.take()
	select {
	case <-process.Ended():
		return process.Wait()
	case <-time.After(limit):
		_ = process.Kill()
		p.t.Fatalf("did not end:\n%s", p.log)
		return nil
	}
}

// Kill ends the process at once.
func (p *Process) Kill() {
	p.t.Helper()
	require.NoError(p.t, p.take().Kill())
}

// Signal sends a signal to the process.
func (p *Process) Signal(s syscall.Signal) {
	p.t.Helper()
	require.NoError(p.t, p.running().Signal(s))
}

// Running reports whether the process has not ended.
func (p *Process) Running() bool {
	process := p.running()
	return process != nil && process.Running()
}

// PID is the process' id.
func (p *Process) PID() int { return p.running().PID() }

// Address is where the process listens for the server of that name, such as admin. It waits until
// it does, and fails when the process has ended before.
func (p *Process) Address(server string) string {
	p.t.Helper()
	pattern := listening(server)
	for deadline := time.Now().Add(await.Patience); ; time.Sleep(5 * time.Millisecond) { // polling a condition
		ended := !p.Running()
		if found := pattern.FindStringSubmatch(p.Log()[p.from:]); found != nil {
			return found[1]
		}
		if ended || time.Now().After(deadline) {
			p.t.Fatalf("no server %s listens:\n%s", server, p.log)
		}
	}
}

// AddressNow is where the process that runs listens, or else where the one before did; of the first
// before it listens it is an address without a server.
func (p *Process) AddressNow(server string) string {
	found := listening(server).FindAllStringSubmatch(p.Log(), -1)
	if len(found) == 0 {
		return "127.0.0.1:1"
	}
	return found[len(found)-1][1]
}

// Await waits until is holds.
func Await(t testing.TB, limit time.Duration, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(limit); !is(); time.Sleep(5 * time.Millisecond) { // polling a condition
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", limit, what)
		}
	}
}

func listening(server string) *regexp.Regexp {
	return regexp.MustCompile(`"msg":"listening"[^\n]*"server":"` + server + `"[^\n]*"address":"([^"]+)"`)
}

// Ask sends a request to the admin server. The status is 0 when there is no answer.
func (p *Process) Ask(method, path string) (status int, body []byte) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), await.Patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://"+p.Address("admin")+path, nil)
	require.NoError(p.t, err)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil
	}
	defer resp.Body.Close()
	body, err = io.ReadAll(resp.Body)
	require.NoError(p.t, err)
	return resp.StatusCode, body
}
