package stack

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// fakeSystemd puts a systemctl, and a sudo that runs what it is told, in front of the machine's. It knows the units that are files of a
// folder, and notes what it is asked for.
func fakeSystemd(t *testing.T) (units, calls string) {
	t.Helper()
	bin, units := t.TempDir(), t.TempDir()
	calls = filepath.Join(bin, "calls")
	for name, script := range map[string]string{
		"systemctl": "case $1 in cat) test -e " + units + "/$2 ;; *) echo \"$USER_IS $*\" >> " + calls + " ;; esac",
		"sudo":      "shift; USER_IS=root exec \"$@\"",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755))
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	t.Setenv("USER_IS", "user")
	return units, calls
}

// TestInstalledUnitsAreDisabled: by who may, for good, and none that was there before.
func TestInstalledUnitsAreDisabled(t *testing.T) {
	units, calls := fakeSystemd(t)
	install := func(unit string) { require.NoError(t, os.WriteFile(filepath.Join(units, unit), nil, 0o600)) }
	services := []installed{{process: "no-such-program", units: []string{"old.service", "new.service", "new.socket", "other.service"}}}
	log := newProgress(io.Discard)
	for _, test := range []struct {
		root []string
		user string
	}{{nil, "user"}, {[]string{"sudo", "-n"}, "root"}} {
		machine := initSystem{systemd: true, root: test.root}
		require.NoError(t, os.RemoveAll(filepath.Join(units, "new.service")))
		require.NoError(t, os.RemoveAll(filepath.Join(units, "new.socket")))
		require.NoError(t, os.RemoveAll(calls))
		install("old.service")
		before := machine.look(t.Context(), services)
		install("new.service")
		install("new.socket")
		require.NoError(t, machine.stopOthers(t.Context(), services, before, log))
		text, err := os.ReadFile(calls)
		require.NoError(t, err)
		assert.Equal(t, []string{test.user + " disable --now new.service", test.user + " disable --now new.socket"}, strings.Split(strings.TrimSpace(string(text)), "\n"))
	}
}

// TestInstalledProcessesWithoutSystemd: those that were there before stay.
func TestInstalledProcessesWithoutSystemd(t *testing.T) {
	fakeSystemd(t)
	program := filepath.Join(t.TempDir(), "aviary-sleeper")
	sleep, err := os.ReadFile("/bin/sleep")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(program, sleep, 0o755))
	start := func() process {
		p, done, err := spawnOwned(command{path: program, args: []string{"1000"}, log: filepath.Join(t.TempDir(), "log")})
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, p.kill()); <-done })
		eventually(t, "its name", func() bool { return len(named("aviary-sleeper")) > 0 })
		return p
	}
	services := []installed{{process: "aviary-sleeper", units: []string{"new.service"}}}
	for _, root := range [][]string{nil, {"sudo", "-n"}} {
		machine := initSystem{root: root}
		old := start()
		before := machine.look(t.Context(), services)
		started := start()
		eventually(t, "both", func() bool { return len(named("aviary-sleeper")) == len(before.processes)+1 })
		require.NoError(t, machine.stopOthers(t.Context(), services, before, newProgress(io.Discard)))
		assert.True(t, old.alive())
		assert.False(t, started.alive())
	}
}
