// Package deployments checks what is below the folder deployments, but for the images, which
// test/deployments/containers builds. It has tests only.
package deployments

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/app"
	"github.com/aviaryhq/aviary/test/stack"
)

const (
	root        = "../.."
	waitTimeout = 5 * time.Minute
	installed   = "/usr/local/bin/" // where units look for the services
	configured  = "/etc/aviary/"
)

var services = []string{"nightingale", "pigeonhole", "sonic", "eventbridge"}

// built is the folder for the services, which goes with the tests.
var built string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "aviary-deployments-")
	if err != nil {
		panic(err)
	}
	built = dir
	status := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(status)
}

var build = sync.OnceValues(func() ([]byte, error) {
	return exec.Command("make", "-C", root, "build", "BIN="+built).CombinedOutput()
})

// binaries returns a folder with the services as `make build` makes them.
func binaries(t *testing.T) string {
	t.Helper()
	out, err := build()
	require.NoError(t, err, "%s", out)
	return built
}

// run returns what a program writes, and how it ended.
func run(t *testing.T, env []string, argv ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// systemd returns the path of one of its programs. It is an error where it cannot be had: the units
// have no other test.
func systemd(t *testing.T, program string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	path, err := stack.Program(ctx, program, "systemd")
	require.NoError(t, err)
	return path
}

// unit returns the text of a service's unit, and its keys with their values, in order.
func unit(t *testing.T, service string) (text string, keys map[string][]string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, "deployments/systemd/aviary-"+service+".service"))
	require.NoError(t, err)
	keys = map[string][]string{}
	for line := range strings.Lines(string(data)) {
		if key, value, found := strings.Cut(strings.TrimSpace(line), "="); found && !strings.HasPrefix(key, "#") {
			keys[key] = append(keys[key], value)
		}
	}
	return string(data), keys
}

func TestUnitsAreValid(t *testing.T) {
	t.Parallel()
	analyze, bin := systemd(t, "systemd-analyze"), binaries(t)
	verify := func(change func(string) string) string {
		argv, dir := []string{analyze, "verify", "--man=no", "--recursive-errors=no"}, t.TempDir()
		for _, service := range services {
			text, _ := unit(t, service)
			file := filepath.Join(dir, "aviary-"+service+".service")
			require.NoError(t, os.WriteFile(file, []byte(change(strings.ReplaceAll(text, installed, bin+"/"))), 0o644))
			argv = append(argv, file)
		}
		said, err := run(t, nil, argv...)
		if err != nil {
			said += err.Error()
		}
		return said
	}
	assert.Empty(t, verify(func(text string) string { return text }))
	// It does look: a key that is none, and a program that is not there.
	assert.Contains(t, verify(func(text string) string { return strings.ReplaceAll(text, "RestartSec=", "RestartSeconds=") }), "RestartSeconds")
	assert.Contains(t, verify(func(text string) string { return strings.ReplaceAll(text, bin, bin+"/none") }), "none")

	for _, service := range services {
		text, _ := unit(t, service)
		file := filepath.Join(t.TempDir(), "aviary-"+service+".service")
		require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
		said, err := run(t, nil, analyze, "security", "--offline=yes", "--no-pager", "--threshold=20", file)
		assert.NoError(t, err, "exposed by more than 2.0: %s", said)
	}
}

func TestUnitsRunTheServices(t *testing.T) {
	t.Parallel()
	bin := binaries(t)
	for _, service := range services {
		_, keys := unit(t, service)
		var commands []string
		for _, key := range []string{"ExecStartPre", "ExecStart", "ExecReload"} {
			commands = append(commands, keys[key]...)
		}
		require.Len(t, commands, 4)
		assert.Contains(t, commands[0], " -config.check ")
		assert.Equal(t, commands[0], commands[2], "a reload checks what a start does")
		assert.Equal(t, "/bin/kill -HUP $MAINPID", commands[3])
		assert.Equal(t, commands[0], strings.Replace(commands[1], " -config.file", " -config.check -config.file", 1), "what is checked is what is started")
		for _, command := range commands[:3] {
			// The file of the unit is the example of configs, and the program is asked to check:
			// also with the arguments of ExecStart.
			assert.Contains(t, command, configured+service+".yaml")
			fields := strings.Fields(strings.NewReplacer(installed, bin+"/", configured, root+"/configs/").Replace(command))
			if !slices.Contains(fields, "-config.check") {
				fields = append(fields, "-config.check")
			}
			said, err := run(t, nil, fields...)
			require.NoError(t, err, said)
			assert.Contains(t, said, "the configuration is valid")
		}

		seconds, err := strconv.Atoi(keys["TimeoutStopSec"][0])
		require.NoError(t, err)
		assert.Greater(t, time.Duration(seconds)*time.Second, app.DefaultCommon("").ShutdownTimeout)
		assert.Equal(t, []string{"aviary-" + service}, keys["User"])
	}
}

func TestUsersOfUnits(t *testing.T) {
	t.Parallel()
	file, err := filepath.Abs(filepath.Join(root, "deployments/systemd/aviary.sysusers.conf"))
	require.NoError(t, err)
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	said, err := run(t, nil, systemd(t, "systemd-sysusers"), "--dry-run", file)
	require.NoError(t, err, said)
	for _, service := range services {
		assert.Contains(t, string(text), "\nu aviary-"+service+" ")
	}
}
