package stack

import (
	"bufio"
	"context"
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

	"github.com/aviaryhq/aviary/test/stack/install"
	"github.com/aviaryhq/aviary/test/stack/process"
)

// longRunning is a child that stays for ever and costs nothing.
func longRunning(t *testing.T, script string) process.Command {
	t.Helper()
	sh, err := exec.LookPath("sh")
	require.NoError(t, err)
	return process.Command{Path: sh, Args: []string{"-c", script}, Log: filepath.Join(t.TempDir(), "log")}
}

func TestProcessIdentityGuardsAgainstReuse(t *testing.T) {
	self, err := process.Identify(os.Getpid())
	require.NoError(t, err)
	assert.True(t, self.Alive())
	// The same id with another start time is another process: it must not be signalled.
	other := process.ID{PID: self.PID, Start: self.Start + 1}
	assert.False(t, other.Alive())
	require.NoError(t, other.Stop(t.Context()))
	require.NoError(t, other.Kill())
}

func TestStopOfDetachedProcess(t *testing.T) {
	p, err := process.StartDetached(longRunning(t, "exec sleep 1000"))
	require.NoError(t, err)
	assert.True(t, p.Alive())
	require.NoError(t, process.StopAll([]process.ID{p, p}))
	assert.False(t, p.Alive())
}

func TestStopReachesPausedProcess(t *testing.T) {
	p, done, err := process.StartOwned(longRunning(t, "exec sleep 1000"))
	require.NoError(t, err)
	require.NoError(t, p.Signal(syscall.SIGSTOP))
	eventually(t, "paused", func() bool { return p.State() == 'T' })
	require.NoError(t, p.Stop(t.Context()))
	<-done
}

// The parent-death signal fires when the forking thread ends, so threads that come and go must not
// be that one.
func TestOwnedProcessSurvivesThreads(t *testing.T) {
	p, done, err := process.StartOwned(longRunning(t, "exec sleep 1000"))
	require.NoError(t, err)
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() { runtime.LockOSThread() }) // ends its thread with the goroutine
	}
	wg.Wait()
	assert.True(t, p.Alive())
	require.NoError(t, p.Kill())
	<-done
}

const ownerVar = "AVIARY_STACK_TEST_OWNER"

func TestOwnedProcessDiesWithItsOwner(t *testing.T) {
	if os.Getenv(ownerVar) != "" {
		p, done, err := process.StartOwned(longRunning(t, "exec sleep 1000"))
		require.NoError(t, err)
		fmt.Printf("%d %d\n", p.PID, p.Start)
		<-done
		return
	}
	diesWithOwner(t, "1")
}

// diesWithOwner runs this test again as an owner, which prints what it has started, kills it, and
// waits until that has ended.
func diesWithOwner(t *testing.T, variable string) {
	t.Helper()
	owner := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	owner.Env = append(os.Environ(), ownerVar+"="+variable)
	out, err := owner.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, owner.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	var owned process.ID
	_, err = fmt.Sscan(line, &owned.PID, &owned.Start)
	require.NoError(t, err)
	require.True(t, owned.Alive())
	require.NoError(t, owner.Process.Kill())
	require.Error(t, owner.Wait())
	eventually(t, "it ended", func() bool { return !owned.Alive() })
}

// TestKilledRunsLeaveNothing: a test binary that was killed had a private server and was about to
// fetch something. The next start of a server deletes the data of the one and the unfinished folder
// of the other, but nothing of who lives.
func TestKilledRunsLeaveNothing(t *testing.T) {
	wanted := filepath.Join(t.TempDir(), "requirements.txt")
	require.NoError(t, os.WriteFile(wanted, nil, 0o600))
	half := func(s *Stack, name string, begun chan<- bool) {
		_, err := s.Folder(context.Background(), name, wanted, []string{"true"}, func(_ context.Context, dir string) error {
			err := os.WriteFile(filepath.Join(dir, "half"), nil, 0o600)
			begun <- true
			<-t.Context().Done()
			return err
		})
		assert.NoError(t, err)
	}
	if cache := os.Getenv(ownerVar); cache != "" {
		s, err := New(Config{CacheDir: cache, Checkout: "/checkout", Name: Test})
		require.NoError(t, err)
		begun := make(chan bool)
		go half(s, "clients/python", begun)
		<-begun
		server := longRunning(t, "echo data >data; exec sleep 1000")
		server.Dir = s.privateFolder(t, "kafka")
		p, done, err := process.StartOwned(server)
		require.NoError(t, err)
		eventually(t, "data", func() bool { _, err := os.Stat(filepath.Join(server.Dir, "data")); return err == nil })
		fmt.Printf("%d %d\n", p.PID, p.Start)
		<-done
		return
	}
	cache := t.TempDir()
	diesWithOwner(t, cache)

	s, err := New(Config{CacheDir: cache, Checkout: "/checkout", Name: Test})
	require.NoError(t, err)
	left := func() (data, folders []string) {
		data, err := filepath.Glob(filepath.Join(s.dir, "private", "*"))
		require.NoError(t, err)
		folders, err = filepath.Glob(filepath.Join(cache, "clients", "*.work"))
		require.NoError(t, err)
		return data, folders
	}
	data, folders := left()
	require.Len(t, data, 1)
	require.Len(t, folders, 1)
	require.FileExists(t, filepath.Join(data[0], "data"))
	require.FileExists(t, filepath.Join(folders[0], "half"))

	self, err := process.Identify(os.Getpid())
	require.NoError(t, err)
	reused := filepath.Join(s.dir, "private", fmt.Sprintf("%d-%d-x", self.PID, self.Start+1)) // this process id, of another process
	require.NoError(t, os.Mkdir(reused, 0o755))
	mine := s.privateFolder(t, "kafka")
	begun, ended := make(chan bool), make(chan bool)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		defer close(ended)
		_, _ = s.Folder(ctx, "clients/node", wanted, []string{"true"}, func(ctx context.Context, _ string) error {
			begun <- true
			<-ctx.Done()
			return ctx.Err()
		})
	}()
	<-begun
	// The start of any other server of any checkout; that it fails does not matter.
	other, err := New(Config{CacheDir: cache, Checkout: "/other"})
	require.NoError(t, err)
	t.Setenv("PATH", t.TempDir())
	_, err = other.Up(t.Context(), "redis")
	require.ErrorContains(t, err, "redis-server")
	data, folders = left()
	assert.Equal(t, []string{mine}, data)
	require.Len(t, folders, 1)
	assert.Contains(t, folders[0], "clients/node")
	cancel()
	<-ended
}

// TestSpaceIsCheckedBeforeStarts of servers for tests, not of those that run.
func TestSpaceIsCheckedBeforeStarts(t *testing.T) {
	s, err := New(Config{CacheDir: t.TempDir(), Checkout: "/checkout", Name: Test})
	require.NoError(t, err)
	var asked string
	s.space = func(dir string) (int64, error) { asked = dir; return 7 << 29, nil }
	_, err = s.Up(t.Context(), "redis")
	require.EqualError(t, err, "not enough disk for the servers of tests: "+s.cache+
		" has 3.5 GiB free, 5 GiB are needed; free some, or move the cache with XDG_CACHE_HOME")
	require.ErrorIs(t, err, errSpace)
	assert.Equal(t, s.cache, asked)
	lines, err := s.Up(t.Context(), "prometheus")
	if err == nil {
		assert.NotEmpty(t, lines, "a program starts nothing")
	}
	require.NotErrorIs(t, err, errSpace)

	s.space = install.Free
	free, err := install.Free(s.cache)
	require.NoError(t, err)
	require.Positive(t, free)
}

// startFake runs a process as if Up had started it.
func startFake(t *testing.T, s *Stack) process.ID {
	t.Helper()
	rec := &record{Service: "kafka", Dir: filepath.Join(s.dir, "kafka"), path: s.recordPath("kafka")}
	p, err := s.spawnRecorded(rec, longRunning(t, "exec sleep 1000"))
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, p.Kill()) })
	return p
}

// TestDownStopsWhatDemoAndTestsStarted: they cannot when they are killed.
func TestDownStopsWhatDemoAndTestsStarted(t *testing.T) {
	cfg := Config{CacheDir: t.TempDir(), Checkout: t.TempDir()}
	var running []process.ID
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
		assert.False(t, p.Alive())
	}
	assert.True(t, another.Alive(), "another checkout's")
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
	assert.True(t, p.Alive())

	script, err := os.ReadFile("../../.ci/test")
	require.NoError(t, err)
	assert.Contains(t, string(script), "\nexport AVIARY_STACK="+Test+"\n")
}

// TestContainersThatShareACache: process ids of one mean nothing in another, whose servers must be
// let alone; what is left of one that is gone is deleted.
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
	assert.True(t, p.Alive())
	assert.FileExists(t, there.recordPath("kafka"))

	require.NoError(t, p.Kill())
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

// TestStartDeletesWhatDeadStacksHaveLeft, of other names and checkouts, too; but what lives, and
// the log of a start that failed.
func TestStartDeletesWhatDeadStacksHaveLeft(t *testing.T) {
	cache := t.TempDir()
	open := func(checkout, name string) *Stack {
		s, err := New(Config{CacheDir: cache, Checkout: checkout, Name: name})
		require.NoError(t, err)
		return s
	}
	data := func(s *Stack, folder string) string {
		dir := filepath.Join(s.dir, folder)
		require.NoError(t, os.MkdirAll(dir, 0o755))
		return dir
	}
	smoke, elsewhere, failed, running, testing := open("/a", Smoke), open("/b", Demo), open("/c", ""), open("/d", ""), open("/e", Test)
	for _, s := range []*Stack{smoke, elsewhere} {
		require.NoError(t, startFake(t, s).Kill())
		data(s, "kafka")
	}
	startFake(t, running)
	mine, err := testing.privateDir()
	require.NoError(t, err)
	kept, killed := []string{data(failed, "pulsar/logs"), data(running, "kafka"), mine}, data(testing, "private/1-1-x")
	alive, err := testing.markAlive() // a test with a private server
	require.NoError(t, err)
	defer alive.Close()

	t.Setenv("PATH", t.TempDir())
	_, err = open("/a", Demo).Up(t.Context(), "redis")
	require.ErrorContains(t, err, "redis-server", "it goes no further")
	assert.NoDirExists(t, smoke.dir)
	assert.NoDirExists(t, elsewhere.dir)
	for _, dir := range kept {
		assert.DirExists(t, dir)
	}
	assert.NoDirExists(t, killed)
	require.NoError(t, alive.Close())
	_, err = open("/a", Demo).Up(t.Context(), "redis")
	require.Error(t, err)
	assert.NoDirExists(t, testing.dir)
}

// TestUpAndDownTakeTurns within a process, too, where nobody is told of another process.
func TestUpAndDownTakeTurns(t *testing.T) {
	var log strings.Builder
	s, err := New(Config{CacheDir: t.TempDir(), Checkout: t.TempDir(), Log: &log})
	require.NoError(t, err)
	unlock, err := s.lock(t.Context())
	require.NoError(t, err)
	ended := make(chan error)
	go func() { ended <- s.Down(t.Context()) }()
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = s.Up(gone, "redis")
	require.ErrorIs(t, err, context.Canceled)
	select {
	case <-ended:
		t.Fatal("Down has not waited")
	default:
	}
	unlock()
	require.NoError(t, <-ended)
	assert.Empty(t, log.String())
}

// TestTestsEndAtASignal: SIGTERM to make test ends the tests under way, and then the stack is
// stopped. A shell alone would wait for them.
func TestTestsEndAtASignal(t *testing.T) {
	dir := t.TempDir()
	note := filepath.Join(dir, "noted")
	require.NoError(t, syscall.Mkfifo(note, 0o600))
	client := filepath.Join(dir, "client")
	for _, folder := range []string{"pulsar", "oauth2"} { // what .ci/norace looks into
		require.NoError(t, os.MkdirAll(filepath.Join(client, folder), 0o755))
	}
	// go run and go list end at once; gotestsum has a child, which go does not end with itself.
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go"), []byte(`#!/bin/sh
case "$1 $2" in
"list -m") echo v0 "`+client+`" ;;
"list "*) echo github.com/aviaryhq/aviary/internal/x.test . fmt ;;
"run "*) [ "$3" != down ] || echo down >"`+note+`" ;;
"tool "*) sleep 1000 & echo $! >"`+note+`"; wait ;;
esac
`), 0o755))
	cmd := exec.CommandContext(t.Context(), "../../.ci/test")
	cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "XDG_CACHE_HOME="+dir,
		"AVIARY_TEST_PULSAR_URL=", "AVIARY_RESULTS=", "TEST_FLAGS=")
	require.NoError(t, cmd.Start())
	noted, err := os.ReadFile(note)
	require.NoError(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(noted)))
	require.NoError(t, err)
	test, err := process.Identify(pid)
	require.NoError(t, err)
	t.Cleanup(func() { _ = test.Kill() })
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	noted, err = os.ReadFile(note)
	require.NoError(t, err)
	assert.Equal(t, "down\n", string(noted))
	require.Error(t, cmd.Wait())
	assert.Equal(t, 130, cmd.ProcessState.ExitCode())
	eventually(t, "the test to end", func() bool { return !test.Alive() })
}
