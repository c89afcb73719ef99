package zones

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// services are the binaries that zones run.
const services = "sonic pigeonhole eventbridge"

// These are what the two versions of an upgrade say that they are.
const (
	formerVersion = "former"
	newVersion    = "new"
)

// command runs a program in a folder, and returns what it has written to its standard output.
func command(t testing.TB, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, "%s %s:\n%s%s", name, strings.Join(args, " "), out, &stderr)
	return strings.TrimSpace(string(out))
}

// build builds the services from the sources in root. They say that they are of that version.
func build(t testing.TB, root, version string) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), version)
	require.NoError(t, os.MkdirAll(dir, 0o750))
	args := []string{"build", "-trimpath", "-ldflags", "-s -w -X github.com/aviaryhq/aviary/internal/app.version=" + version, "-o", dir + "/"}
	for _, name := range strings.Fields(services) {
		args = append(args, "./cmd/"+name)
	}
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return dir
}

// versions builds the two versions of an upgrade.
func versions(t testing.TB) (former, current string) {
	t.Helper()
	root := command(t, ".", "go", "list", "-m", "-f", "{{.Dir}}")
	from := root
	if revision := os.Getenv(fromVariable); revision != "" {
		from = filepath.Join(t.TempDir(), "from")
		command(t, root, "git", "worktree", "add", "--detach", from, revision)
		t.Cleanup(func() {
			_ = exec.CommandContext(context.Background(), "git", "-C", root, "worktree", "remove", "--force", from).Run()
		})
	}
	return build(t, from, formerVersion), build(t, root, newVersion)
}
