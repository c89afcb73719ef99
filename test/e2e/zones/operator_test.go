package zones

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/stack"
)

// admin runs commands of pulsar-admin in the cluster of a zone, all in one process: pulsar-shell takes
// the same commands.
func (w *fixture) admin(z *zone, commands ...string) {
	w.t.Helper()
	home, err := stack.PulsarHome(w.t.Context(), os.Stderr)
	require.NoError(w.t, err)
	dir := w.t.TempDir()
	conf, script := filepath.Join(dir, "client.conf"), filepath.Join(dir, "commands")
	require.NoError(w.t, os.WriteFile(conf, fmt.Appendf(nil, "webServiceUrl=%s/\nbrokerServiceUrl=%s\n", z.pulsar.AdminURL(), z.pulsar.URL()), 0o600))
	var text strings.Builder
	for _, c := range commands {
		w.say("zone %s: pulsar-admin %s", z.name, c)
		text.WriteString("admin " + c + "\n")
	}
	require.NoError(w.t, os.WriteFile(script, []byte(text.String()), 0o600))
	cmd := exec.CommandContext(w.t.Context(), filepath.Join(home, "bin", "pulsar-shell"), "-c", conf, "-f", script, "-np")
	cmd.Env = append(os.Environ(), "PULSAR_LOG_DIR="+dir, "PULSAR_EXTRA_OPTS=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Duser.home="+dir)
	out, err := cmd.CombinedOutput()
	require.NoError(w.t, err, "%s", out)
	// Its exit status is 0 when commands fail.
	require.NotRegexp(w.t, `(?m)^(Reason:|Usage:)`, string(out))
	require.Contains(w.t, string(out), fmt.Sprintf("[%d/%d]", len(commands), len(commands)))
}

// runSonic runs a command of Sonic with the configuration of zone i, and returns what it has written.
func (w *fixture) runSonic(i int, peers string, args ...string) (string, error) {
	w.say("zone %s: sonic %s", w.zones[i].name, strings.Join(args, " "))
	cmd := exec.CommandContext(context.Background(), w.binary("sonic"), args...)
	cmd.Env = append(append(os.Environ(), w.sonicEnv(i)...), peers)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// lastLines are the end of what a command has written, and how it ended.
func lastLines(out string, err error) string {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	return fmt.Sprintf("%s (%v)", strings.Join(lines[max(0, len(lines)-4):], "\n        "), err)
}

// replicate runs commands in a zone, and has it replicate to those clusters: Sonic's namespace and,
// where Pigeonhole and Eventbridge are now, theirs.
func (w *fixture) replicate(i int, commands []string, to string) {
	w.t.Helper()
	namespaces := []string{sonicNamespace}
	if i == second {
		namespaces = append(namespaces, ordersNamespace, eventsNamespace)
	}
	for _, ns := range namespaces {
		commands = append(commands, "namespaces set-clusters "+ns+" --clusters "+to)
	}
	w.admin(w.zones[i], commands...)
}
