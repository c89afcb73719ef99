package stack

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/stack/install"
	"github.com/aviaryhq/aviary/test/stack/process"
)

// fakeSystemd puts a systemctl, and a sudo that runs what it is told, in front of the machine's. It
// knows the units that are files of a folder, and notes what it is asked for.
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
	put := func(unit string) { require.NoError(t, os.WriteFile(filepath.Join(units, unit), nil, 0o600)) }
	services := []install.Service{{Process: "no-such-program", Units: []string{"old.service", "new.service", "new.socket", "other.service"}}}
	log := process.NewProgress(io.Discard)
	for _, test := range []struct {
		root []string
		user string
	}{{nil, "user"}, {[]string{"sudo", "-n"}, "root"}} {
		machine := install.InitSystem{Systemd: true, Root: test.root}
		require.NoError(t, os.RemoveAll(filepath.Join(units, "new.service")))
		require.NoError(t, os.RemoveAll(filepath.Join(units, "new.socket")))
		require.NoError(t, os.RemoveAll(calls))
		put("old.service")
		before := machine.Look(t.Context(), services)
		put("new.service")
		put("new.socket")
		require.NoError(t, machine.StopOthers(t.Context(), services, before, log))
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
	start := func() process.ID {
		p, done, err := process.StartOwned(process.Command{Path: program, Args: []string{"1000"}, Log: filepath.Join(t.TempDir(), "log")})
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, p.Kill()); <-done })
		eventually(t, "its name", func() bool { return len(install.Named("aviary-sleeper")) > 0 })
		return p
	}
	services := []install.Service{{Process: "aviary-sleeper", Units: []string{"new.service"}}}
	for _, root := range [][]string{nil, {"sudo", "-n"}} {
		machine := install.InitSystem{Root: root}
		old := start()
		before := machine.Look(t.Context(), services)
		started := start()
		eventually(t, "both", func() bool { return len(install.Named("aviary-sleeper")) == len(before.Processes)+1 })
		require.NoError(t, machine.StopOthers(t.Context(), services, before, process.NewProgress(io.Discard)))
		assert.True(t, old.Alive())
		assert.False(t, started.Alive())
	}
}
