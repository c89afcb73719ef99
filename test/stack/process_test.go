package stack

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// longRunning is a child that stays for ever and costs nothing.
func longRunning(t *testing.T, script string) command {
	t.Helper()
	sh, err := exec.LookPath("sh")
	require.NoError(t, err)
	return command{path: sh, args: []string{"-c", script}, log: filepath.Join(t.TempDir(), "log")}
}

func TestProcessIdentityGuardsAgainstReuse(t *testing.T) {
	self, err := identify(os.Getpid())
	require.NoError(t, err)
	assert.True(t, self.alive())
	// The same id with another start time is another process: it must not be signalled.
	other := process{PID: self.PID, Start: self.Start + 1}
	assert.False(t, other.alive())
	require.NoError(t, other.stop(t.Context()))
	require.NoError(t, other.kill())
}

func TestStopOfDetachedProcess(t *testing.T) {
	p, err := spawnDetached(longRunning(t, "exec sleep 1000"))
	require.NoError(t, err)
	assert.True(t, p.alive())
	require.NoError(t, stopAll([]process{p, p}))
	assert.False(t, p.alive())
}

func TestStopReachesPausedProcess(t *testing.T) {
	p, done, err := spawnOwned(longRunning(t, "exec sleep 1000"))
	require.NoError(t, err)
	require.NoError(t, p.signal(syscall.SIGSTOP))
	eventually(t, "paused", func() bool { return p.state() == 'T' })
	require.NoError(t, p.stop(t.Context()))
	<-done
}

// The parent-death signal fires when the forking thread ends, so threads that come and go must not be that one.
func TestOwnedProcessSurvivesThreads(t *testing.T) {
	p, done, err := spawnOwned(longRunning(t, "exec sleep 1000"))
	require.NoError(t, err)
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() { runtime.LockOSThread() }) // ends its thread with the goroutine
	}
	wg.Wait()
	assert.True(t, p.alive())
	require.NoError(t, p.kill())
	<-done
}

const ownerVar = "AVIARY_STACK_TEST_OWNER"

func TestOwnedProcessDiesWithItsOwner(t *testing.T) {
	if os.Getenv(ownerVar) != "" {
		p, done, err := spawnOwned(longRunning(t, "exec sleep 1000"))
		require.NoError(t, err)
		fmt.Printf("%d %d\n", p.PID, p.Start)
		<-done
		return
	}
	owner := exec.Command(os.Args[0], "-test.run=^TestOwnedProcessDiesWithItsOwner$")
	owner.Env = append(os.Environ(), ownerVar+"=1")
	out, err := owner.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, owner.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	var child process
	_, err = fmt.Sscan(line, &child.PID, &child.Start)
	require.NoError(t, err)
	require.True(t, child.alive())
	require.NoError(t, owner.Process.Kill())
	require.Error(t, owner.Wait())
	eventually(t, "child ended", func() bool { return !child.alive() })
}

func TestSweepDeletesOnlyWhatNobodyOwns(t *testing.T) {
	s := testStack(t, Config{CacheDir: t.TempDir()})
	mine, err := s.privateDir()
	require.NoError(t, err)
	orphan := filepath.Join(s.dir, "private", "1-1-x")
	require.NoError(t, os.MkdirAll(orphan, 0o755))
	s.sweepPrivate()
	assert.DirExists(t, mine)
	assert.NoDirExists(t, orphan)
}

// startFake runs a process as if Up had started it.
func startFake(t *testing.T, s *Stack) process {
	t.Helper()
	rec := &record{Service: "kafka", Dir: filepath.Join(s.dir, "kafka"), path: s.recordPath("kafka")}
	p, err := s.spawnRecorded(rec, longRunning(t, "exec sleep 1000"))
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, p.kill()) })
	return p
}

// TestDownStopsWhatDemoAndTestsStarted: they cannot when they are killed.
func TestDownStopsWhatDemoAndTestsStarted(t *testing.T) {
	cfg := Config{CacheDir: t.TempDir(), Checkout: t.TempDir()}
	var running []process
	for _, name := range []string{"", Demo, Smoke, Test} {
		cfg.Name = name
		s, err := New(cfg)
		require.NoError(t, err)
		running = append(running, startFake(t, s))
	}
	other, err := New(Config{CacheDir: cfg.CacheDir, Checkout: t.TempDir()})
	require.NoError(t, err)
	another := startFake(t, other)
	cfg.Name = ""
	require.NoError(t, DownAll(t.Context(), cfg))
	for _, p := range running {
		assert.False(t, p.alive())
	}
	assert.True(t, another.alive(), "another checkout's")
}

// TestTestsHaveAStackOfTheirOwn: make test neither uses nor stops the one of stack-up.
func TestTestsHaveAStackOfTheirOwn(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("AVIARY_STACK", "")
	users, err := New(Config{CacheDir: cache})
	require.NoError(t, err)
	p := startFake(t, users)
	t.Setenv("AVIARY_STACK", Test)
	tests, err := New(Config{CacheDir: cache})
	require.NoError(t, err)
	rec, err := tests.loadRecord("kafka")
	require.NoError(t, err)
	assert.Nil(t, rec)
	require.NoError(t, tests.Down(t.Context()))
	assert.True(t, p.alive())

	script, err := os.ReadFile("../../.ci/test")
	require.NoError(t, err)
	assert.Contains(t, string(script), "\nexport AVIARY_STACK="+Test+"\n")
}

// TestContainersThatShareACache: process ids of one mean nothing in another, whose servers must be let alone; what is left of one that is gone is
// deleted.
func TestContainersThatShareACache(t *testing.T) {
	cfg := Config{CacheDir: t.TempDir(), Checkout: t.TempDir()}
	here, err := newStack(cfg, "")
	require.NoError(t, err)
	there, err := newStack(cfg, "4026532201")
	require.NoError(t, err)
	p := startFake(t, there)
	rec, err := here.loadRecord("kafka")
	require.NoError(t, err)
	assert.Nil(t, rec)
	require.NoError(t, here.Down(t.Context()))
	assert.True(t, p.alive())
	assert.FileExists(t, there.recordPath("kafka"))

	require.NoError(t, p.kill())
	alive, err := there.markAlive() // a test with a private server
	require.NoError(t, err)
	require.NoError(t, here.Down(t.Context()))
	assert.DirExists(t, there.dir)
	require.NoError(t, alive.Close())
	require.NoError(t, here.Down(t.Context()))
	assert.NoDirExists(t, there.dir)
	assert.DirExists(t, here.dir)
	assert.NotEqual(t, here.Dir(), there.Dir())
}

// TestTestsEndAtASignal: SIGTERM to make test ends the tests under way, and then the stack is stopped. A shell alone would wait for them.
func TestTestsEndAtASignal(t *testing.T) {
	dir := t.TempDir()
	note := filepath.Join(dir, "noted")
	require.NoError(t, syscall.Mkfifo(note, 0o600))
	// go run and go list end at once, go test has a child, which go does not end with itself.
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go"), []byte(`#!/bin/sh
case "$1" in
list) echo github.com/aviaryhq/aviary/internal/x ;;
run) [ "$3" != down ] || echo down >"`+note+`" ;;
test) sleep 1000 & echo $! >"`+note+`"; wait ;;
esac
`), 0o755))
	cmd := exec.CommandContext(t.Context(), "../../.ci/test")
	cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "AVIARY_TEST_PULSAR_URL=", "TEST_FLAGS=")
	require.NoError(t, cmd.Start())
	noted, err := os.ReadFile(note)
	require.NoError(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(noted)))
	require.NoError(t, err)
	test, err := identify(pid)
	require.NoError(t, err)
	t.Cleanup(func() { _ = test.kill() })
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	noted, err = os.ReadFile(note)
	require.NoError(t, err)
	assert.Equal(t, "down\n", string(noted))
	require.Error(t, cmd.Wait())
	assert.Equal(t, 130, cmd.ProcessState.ExitCode())
	eventually(t, "the test to end", func() bool { return !test.alive() })
}
