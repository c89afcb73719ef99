package pulsar

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/stack"
)

// memory is a folder that Linux always has in memory.
const memory = "/dev/shm"

// onDisk returns a folder where the servers of tests have their data: t.TempDir may be in memory,
// which fio cannot open for direct input and output.
func onDisk(t *testing.T) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	require.NoError(t, err)
	dir, err := os.MkdirTemp(cache, "aviary-fio-") //nolint:usetesting // TempDir may be in memory
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(dir)) })
	return dir
}

func TestDiskIsJudged(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	for _, program := range []string{"fio", "jq"} {
		if _, err := stack.Program(ctx, program, program); err != nil {
			stack.Unavailable(t, program, err)
		}
	}
	easy := []string{"SYNC_P99_MS=1e9", "SYNC_P999_MS=1e9", "JOURNAL_MBS=0", "WRITE_MBS=0", "READ_P99_MS=1e9"}
	impossible := func(limit string) []string { return append(append([]string(nil), easy...), limit) }
	tests := []struct {
		name   string
		args   []string
		limits []string
		status int
		says   string
	}{
		{"fit", []string{"business"}, easy, 0, "is fit for business (both)"},
		{"sync", []string{"-j", "business"}, impossible("SYNC_P999_MS=0"), 1, "is not fit for business (journal)"},
		{"journal", []string{"-j", "ops"}, impossible("JOURNAL_MBS=1e9"), 1, "is not fit for ops (journal)"},
		{"written", []string{"-l", "ops"}, impossible("WRITE_MBS=1e9"), 1, "is not fit for ops (ledgers)"},
		{"read", []string{"-l", "business"}, impossible("READ_P99_MS=0"), 1, "is not fit for business (ledgers)"},
		{"kind", []string{"other"}, easy, 2, "usage"},
		{"number", []string{"-j", "ops"}, impossible("SYNC_P99_MS=two"), 2, "SYNC_P99_MS=two is not a number"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := onDisk(t)
			out, status := check(ctx, t, test.limits, append(test.args, dir)...)
			assert.Equal(t, test.status, status, "%s", out)
			assert.Contains(t, out, test.says)
			left, err := os.ReadDir(dir)
			require.NoError(t, err)
			assert.Empty(t, left, "files that are left")
		})
	}

	out, status := check(ctx, t, easy, "-j", "business", memory)
	assert.Equal(t, 1, status, "%s", out)
	assert.Contains(t, out, "it is memory")
}

// check runs check.sh with small files, and returns what it prints and its exit status.
func check(ctx context.Context, t *testing.T, limits []string, args ...string) (string, int) {
	t.Helper()
	cmd := exec.CommandContext(ctx, filepath.Join(root, "deployments", "pulsar", "fio", "check.sh"), args...)
	cmd.Env = append(append(os.Environ(), "SIZE=8m", "RUNTIME=200ms"), limits...)
	out, err := cmd.CombinedOutput()
	if failed := (*exec.ExitError)(nil); !errors.As(err, &failed) {
		require.NoError(t, err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}
