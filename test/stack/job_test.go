package stack

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/stack/process"
)

// family is a script whose child writes its process id to a pipe and stays for ever.
func family(t *testing.T) (script, pipe string) {
	t.Helper()
	pipe = filepath.Join(t.TempDir(), "pid")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	return `sleep 1000 & echo $! >"` + pipe + `"; wait`, pipe
}

func readProcess(t *testing.T, pipe string) process.ID {
	t.Helper()
	text, err := os.ReadFile(pipe)
	require.NoError(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	require.NoError(t, err)
	p, err := process.Identify(pid)
	require.NoError(t, err)
	t.Cleanup(func() { _ = p.Kill() })
	return p
}

func TestJob(t *testing.T) {
	out, err := process.Job{Dir: "/", Env: []string{"A=1"}, Nice: 7}.Run(t.Context(), "sh", "-c", `pwd; echo "$A $1"; nice`, "x", "a b")
	require.NoError(t, err)
	before, err := process.Job{}.Run(t.Context(), "nice")
	require.NoError(t, err)
	nice, err := strconv.Atoi(strings.TrimSpace(before))
	require.NoError(t, err)
	assert.Equal(t, fmt.Sprintf("/\n1 a b\n%d\n", min(nice+7, 19)), out)

	out, err = process.Job{}.Run(t.Context(), "sh", "-c", "echo first; echo why >&2; exit 3")
	require.EqualError(t, err, "exit status 3")
	assert.Equal(t, "why", process.LastLine(out))
	_, err = process.Job{}.Run(t.Context(), "no-such-program")
	require.ErrorIs(t, err, exec.ErrNotFound)
}

// TestJobEndsWithItsContext, and what it has started with it.
func TestJobEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	script, pipe := family(t)
	ended := make(chan error)
	go func() { _, err := process.Job{}.Run(ctx, "sh", "-c", script); ended <- err }()
	child := readProcess(t, pipe)
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
	eventually(t, "child ended", func() bool { return !child.Alive() })
}

const jobVar = "AVIARY_STACK_TEST_JOB"

// TestJobDiesWithItsOwner, and what it has started with it: a compiler would go on otherwise.
func TestJobDiesWithItsOwner(t *testing.T) {
	if script := os.Getenv(jobVar); script != "" {
		_, err := process.Job{}.Run(t.Context(), "sh", "-c", script)
		require.NoError(t, err)
		return
	}
	script, pipe := family(t)
	owner := exec.Command(os.Args[0], "-test.run=^TestJobDiesWithItsOwner$")
	owner.Env = append(os.Environ(), jobVar+"="+script)
	require.NoError(t, owner.Start())
	child := readProcess(t, pipe)
	require.NoError(t, owner.Process.Kill())
	require.Error(t, owner.Wait())
	eventually(t, "child ended", func() bool { return !child.Alive() })
}

// TestOwnedServersDieWithTheirStack as those of a demo do that is killed, and the next start
// deletes their data.
func TestOwnedServersDieWithTheirStack(t *testing.T) {
	cfg := Config{CacheDir: os.Getenv(ownerVar), Checkout: "/checkout", Name: Demo, Owned: true}
	if cfg.CacheDir != "" {
		s, err := New(cfg)
		require.NoError(t, err)
		p := startFake(t, s)
		require.NoError(t, os.MkdirAll(filepath.Join(s.dir, "kafka", "data"), 0o755))
		fmt.Printf("%d %d\n", p.PID, p.Start)
		<-t.Context().Done()
		return
	}
	cfg.CacheDir = t.TempDir()
	diesWithOwner(t, cfg.CacheDir)

	killed, err := New(cfg)
	require.NoError(t, err)
	require.FileExists(t, killed.recordPath("kafka"))
	t.Setenv("PATH", t.TempDir()) // the start of any other server; that it fails does not matter
	_, err = killed.Up(t.Context(), "redis")
	require.ErrorContains(t, err, "redis-server")
	assert.NoFileExists(t, killed.recordPath("kafka"))
	assert.NoDirExists(t, filepath.Join(killed.dir, "kafka"))
}
