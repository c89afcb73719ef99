package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/demo/display"
)

// output is what a screen has written.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer // not embedded: io.WriteString would call its WriteString without the lock
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) text() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// launchFake starts a service that reports what it was started with.
func launchFake(t *testing.T, restarts bool) (*service, *environment, *output) {
	t.Helper()
	admin, err := new(ports).listen("fake", 0)
	require.NoError(t, err)
	out := new(output)
	env := &environment{dir: t.TempDir(), screen: display.New(out), restarts: restarts}
	s, err := startService(env, "fake", admin, os.Args[0], []string{
		fakeVariable + "=service", "FAKE_ADMIN=" + admin, "FAKE_GREETING=hello", "FAKE_HOLD=" + hold(env), "FAKE_FAIL=" + fail(env),
	}, "-an", "argument")
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.stop(context.Background()) })
	return s, env, out
}

// hold is the file that keeps a fake service from being ready.
func hold(env *environment) string { return filepath.Join(env.dir, "hold") }

// fail is the file that has a byte for each start of a fake service that fails.
func fail(env *environment) string { return filepath.Join(env.dir, "fail") }

// reported is what a fake service says of itself.
type reported struct {
	PID      int
	Args     []string
	Greeting string
}

func ask(t *testing.T, s *service) (answer reported) {
	t.Helper()
	resp, err := http.Get("http://" + s.admin + "/-/ready")
	require.NoError(t, err)
	defer resp.Body.Close()
	require.NoError(t, json.NewDecoder(resp.Body).Decode(&answer))
	return answer
}

// TestAServiceThatEndsStartsAgain at the same address, with the same environment and arguments, and
// appends to its log. The screen says so.
func TestAServiceThatEndsStartsAgain(t *testing.T) {
	s, env, out := launchFake(t, true)
	require.NoError(t, s.ready(t.Context()))
	before := ask(t, s)
	pids := []int{before.PID}
	assert.Equal(t, "hello", before.Greeting)
	assert.Equal(t, []string{"-an", "argument"}, before.Args)

	for run := 2; run <= 3; run++ {
		require.NoError(t, s.current().kill())
		require.Eventually(t, func() bool { return s.run() == run }, patience, 10*time.Millisecond, "run %d", run)
		after := ask(t, s)
		assert.NotContains(t, pids, after.PID)
		pids = append(pids, after.PID)
		after.PID = before.PID
		assert.Equal(t, before, after)
	}
	log, err := os.ReadFile(filepath.Join(env.dir, "fake.log"))
	require.NoError(t, err)
	for _, pid := range pids {
		assert.Contains(t, string(log), fmt.Sprintf("started %d\n", pid))
	}
	require.Error(t, s.stop(t.Context()), "this program does not end in order at SIGTERM")
	assert.Equal(t, 2, bytes.Count([]byte(out.text()), []byte("== fake runs again, process ")))
	assert.Contains(t, out.text(), "== fake ended (signal: killed); starting it again\n")
	assert.NotContains(t, out.text(), "does not start again", "the demo ended it")
}

// TestAServiceThatIsKilledAgain before it is ready starts a third time.
func TestAServiceThatIsKilledAgain(t *testing.T) {
	s, env, out := launchFake(t, true)
	require.NoError(t, s.ready(t.Context()))
	require.NoError(t, os.WriteFile(hold(env), nil, 0o600))
	first := s.current()
	require.NoError(t, first.kill())
	require.Eventually(t, func() bool { return s.current() != first }, patience, 10*time.Millisecond)
	require.NoError(t, s.current().kill())
	require.NoError(t, os.Remove(hold(env)))
	assert.True(t, s.excused(t.Context(), 1), out.text())
	assert.Equal(t, 2, s.run())
	assert.NotContains(t, out.text(), "does not start again")
}

// TestAStartThatFailsIsTriedAgain a bounded number of times in a row. Then the screen names the
// service, and no request to it ends the demo.
func TestAStartThatFailsIsTriedAgain(t *testing.T) {
	s, env, out := launchFake(t, true)
	require.NoError(t, s.ready(t.Context()))
	crash := func(starts int) {
		require.NoError(t, os.WriteFile(fail(env), make([]byte, starts), 0o600))
		require.NoError(t, s.current().kill())
	}
	const failed = "== fake ended (exit status 1); starting it again\n"
	crash(1)
	require.Eventually(t, func() bool { return s.run() == 2 }, patience, 10*time.Millisecond)
	before := strings.Count(out.text(), failed)
	require.Equal(t, 1, before)

	crash(maxFailedStarts)
	const givenUp = "== fake does not start again, the other services go on: fake ended with exit status 1: cannot start\n"
	require.Eventually(t, func() bool { return strings.Contains(out.text(), givenUp) }, patience, 10*time.Millisecond)
	assert.Equal(t, maxFailedStarts-1, strings.Count(out.text(), failed)-before, out.text())
	ended, end := context.WithCancel(t.Context())
	end()
	assert.True(t, s.excused(ended, 2), "it waits for the end of the demo")
	require.ErrorContains(t, s.stop(t.Context()), "cannot start", "the end of the demo names it, too")
}

// TestACallIsMadeAgainAfterARestart: Eventbridge may be killed while its bus is made.
func TestACallIsMadeAgainAfterARestart(t *testing.T) {
	s, _, _ := launchFake(t, true)
	require.NoError(t, s.ready(t.Context()))
	killed := ask(t, s).PID
	e := &eventbridge{service: s, url: "http://" + s.admin}
	require.NoError(t, s.current().kill())
	var answer reported
	require.NoError(t, e.call(t.Context(), http.MethodPut, "/-/ready", map[string]any{}, &answer))
	assert.NotEqual(t, killed, answer.PID)
}

// TestAwaitContinuesAfterARestart, and the screen names the status of a service that ended in order.
func TestAwaitContinuesAfterARestart(t *testing.T) {
	s, _, out := launchFake(t, true)
	require.NoError(t, s.ready(t.Context()))
	ended := false
	require.NoError(t, s.await(t.Context(), "does not run again", func(ctx context.Context) error {
		if !ended {
			ended = true
			resp, err := http.Get("http://" + s.admin + "/end")
			if err == nil {
				_ = resp.Body.Close()
			}
		}
		if s.run() == 1 {
			return errors.New("the first run")
		}
		return ready(ctx, s.admin)
	}))
	assert.Contains(t, out.text(), "== fake ended (exit status 0); starting it again\n")
}

// TestOnlyTheEndOfTheServiceExcusesAFailure of a request.
func TestOnlyTheEndOfTheServiceExcusesAFailure(t *testing.T) {
	s, _, _ := launchFake(t, true)
	require.NoError(t, s.ready(t.Context()))
	assert.False(t, s.excused(t.Context(), s.run()), "it has run all the time")
	first := s.current()
	require.NoError(t, first.kill())
	assert.True(t, s.excused(t.Context(), 1))
	assert.NotSame(t, first, s.current(), "it has waited for the new process")
	assert.Equal(t, 2, s.run())
	assert.True(t, s.excused(t.Context(), 1), "what began before the kill")
	assert.False(t, s.excused(t.Context(), 2))
}

// TestASmokeRunStartsNothingAgain: a service that ends has failed.
func TestASmokeRunStartsNothingAgain(t *testing.T) {
	s, _, out := launchFake(t, false)
	require.NoError(t, s.ready(t.Context()))
	require.NoError(t, s.current().kill())
	assert.False(t, s.excused(t.Context(), 1))
	e := &eventbridge{service: s, url: "http://" + s.admin}
	require.ErrorContains(t, e.call(t.Context(), http.MethodPut, "/-/ready", nil, nil), "connection refused")
	require.ErrorContains(t, s.stop(t.Context()), "fake ended with signal: killed")
	assert.NotContains(t, out.text(), "again")
}
