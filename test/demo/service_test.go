package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/demo/display"
)

// launchFake starts a service that tells what it was started with.
func launchFake(t *testing.T) (*service, *environment) {
	t.Helper()
	admin, err := new(ports).listen(0)
	require.NoError(t, err)
	env := &environment{dir: t.TempDir()}
	s, err := startService(env, "fake", admin, os.Args[0], []string{fakeVariable + "=service", "FAKE_ADMIN=" + admin, "FAKE_GREETING=hello"}, "-an", "argument")
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.stop(context.Background()) })
	return s, env
}

// told is what a fake service says of itself.
type told struct {
	PID      int
	Args     []string
	Greeting string
}

func ask(t *testing.T, s *service) (answer told) {
	t.Helper()
	resp, err := http.Get("http://" + s.admin + "/-/ready")
	require.NoError(t, err)
	defer resp.Body.Close()
	require.NoError(t, json.NewDecoder(resp.Body).Decode(&answer))
	return answer
}

func awaitPhase(t *testing.T, s *service, want display.Phase) {
	t.Helper()
	require.Eventually(t, func() bool { return s.State().Phase == want }, patience, 10*time.Millisecond, "%s", want)
}

// TestAKilledServiceStartsAgain at the same address, with the same environment and arguments, and
// its log goes on.
func TestAKilledServiceStartsAgain(t *testing.T) {
	s, env := launchFake(t)
	assert.Equal(t, display.Starting, s.State().Phase)
	require.Error(t, s.Kill(), "it is not ready")
	require.NoError(t, s.ready(t.Context()))
	before := ask(t, s)
	pids := []int{before.PID}
	assert.Equal(t, "hello", before.Greeting)
	assert.Equal(t, []string{"-an", "argument"}, before.Args)
	require.Error(t, s.Again(), "it runs")

	for kills := 1; kills <= 2; kills++ {
		require.NoError(t, s.Kill())
		assert.Equal(t, display.State{Phase: display.Killed, Kills: kills}, s.State())
		require.Error(t, ready(t.Context(), s.admin))
		require.Error(t, s.Kill(), "it is killed")
		require.NoError(t, s.Again())
		awaitPhase(t, s, display.Up)
		after := ask(t, s)
		assert.NotContains(t, pids, after.PID)
		pids = append(pids, after.PID)
		after.PID = before.PID
		assert.Equal(t, before, after)
	}
	require.NoError(t, s.Kill())
	log, err := os.ReadFile(filepath.Join(env.dir, "fake.log"))
	require.NoError(t, err)
	for _, pid := range pids {
		assert.Contains(t, string(log), fmt.Sprintf("started %d\n", pid))
	}
	require.NoError(t, s.stop(t.Context()), "it was killed on purpose")
	require.Error(t, s.Again(), "the demo ends")
}

// TestWhatFailsWhileAServiceIsKilledIsExcused, and nothing else is.
func TestWhatFailsWhileAServiceIsKilledIsExcused(t *testing.T) {
	s, _ := launchFake(t)
	require.NoError(t, s.ready(t.Context()))
	turn := s.turnNow()
	assert.False(t, s.excused(t.Context(), turn), "it has run all the time")
	require.NoError(t, s.Kill())
	excused := make(chan bool, 1)
	go func() { excused <- s.excused(t.Context(), s.turnNow()) }()
	ended, end := context.WithCancel(t.Context())
	end()
	assert.True(t, s.excused(ended, turn), "the demo ends meanwhile")
	assert.Empty(t, excused, "it does not run again")
	require.NoError(t, s.Again())
	assert.True(t, <-excused)
	assert.Equal(t, display.Up, s.State().Phase)
	assert.True(t, s.excused(t.Context(), turn), "what began before the kill")
	assert.False(t, s.excused(t.Context(), s.turnNow()))
}

// TestAServiceThatEndsByItself is seen, has no excuse, and can be started again.
func TestAServiceThatEndsByItself(t *testing.T) {
	s, _ := launchFake(t)
	require.NoError(t, s.ready(t.Context()))
	require.NoError(t, s.current().process.Kill())
	awaitPhase(t, s, display.Down)
	require.ErrorContains(t, s.State().Err, "fake ended with signal: killed")
	assert.False(t, s.excused(t.Context(), s.turnNow()))
	require.NoError(t, s.Again())
	awaitPhase(t, s, display.Up)
	require.ErrorContains(t, s.stop(t.Context()), "fake ended", "this program does not end in order at SIGTERM")
}
