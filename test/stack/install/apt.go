package install

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/aviaryhq/aviary/test/stack/process"
)

// apt installs a Debian package and reports whether this call did it. Callers look first whether the
// program is there.
func (i Installer) apt(ctx context.Context, pkg string) (did bool, err error) {
	if _, err := exec.LookPath("apt-get"); err != nil {
		return false, fmt.Errorf("%s is missing and this system has no apt-get: install %s yourself and put it in PATH", pkg, pkg)
	}
	var prefix []string
	if os.Geteuid() != 0 {
		if exec.CommandContext(ctx, "sudo", "-n", "true").Run() != nil {
			return false, fmt.Errorf("%s is missing and only root may install it: run `sudo apt-get install --no-install-recommends %s`", pkg, pkg)
		}
		prefix = []string{"sudo", "-n"}
	}
	unlock, err := process.Lock(ctx, filepath.Join(i.Cache, "apt.lock"), i.Log)
	if err != nil {
		return false, err
	}
	defer unlock()
	if _, err := exec.LookPath(pkg); err == nil { // by the process that held the lock
		return false, nil
	}
	run := func(args ...string) (string, error) {
		// RUNLEVEL=1 has Debian's init scripts leave the service alone. This program reads what apt-get
		// writes: LC_ALL=C has it in English.
		argv := append(append([]string{}, prefix...), "env", "DEBIAN_FRONTEND=noninteractive", "RUNLEVEL=1", "LC_ALL=C",
			"apt-get", "-o", "DPkg::Lock::Timeout=120")
		argv = append(argv, args...)
		cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
		out := aptOutput{log: i.Log}
		cmd.Stdout, cmd.Stderr = &out, &out // one writer, one goroutine
		err := cmd.Run()
		return out.all.String(), err
	}
	install := []string{"install", "-y", "-q", "--no-install-recommends", pkg}
	i.Log.Printf("installing %s with apt-get", pkg)
	err = Try(ctx, i.Log, func(context.Context) error {
		out, err := run(install...)
		if err != nil {
			// The package list may be missing, as in a fresh container, or too old.
			i.Log.Printf("updating the package list")
			if out, err = run("update", "-q"); err == nil {
				out, err = run(install...)
			}
		}
		if err != nil {
			return errors.New(aptError(out, err))
		}
		return nil
	})
	if err != nil {
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		return false, fmt.Errorf("apt-get cannot install %s (no network?): %w", pkg, err)
	}
	return true, nil
}

// aptOutput keeps what apt-get writes, and logs the size of the download and each package of it.
type aptOutput struct {
	log    *process.Progress
	all    bytes.Buffer
	logged int // how many bytes of all were looked at
}

func (o *aptOutput) Write(p []byte) (int, error) {
	n, err := o.all.Write(p)
	for {
		line, _, whole := bytes.Cut(o.all.Bytes()[o.logged:], []byte("\n"))
		if !whole {
			return n, err
		}
		o.logged += len(line) + 1
		if bytes.HasPrefix(line, []byte("Need to get ")) || bytes.HasPrefix(line, []byte("Get:")) {
			o.log.Printf("  %s", line)
		}
	}
}

func aptError(out string, err error) string {
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, "E: ") || strings.HasPrefix(line, "Err:") {
			return process.FirstLine(line)
		}
	}
	return err.Error()
}

// Named returns the processes of a program.
func Named(name string) []process.ID {
	var found []process.ID
	files, _ := filepath.Glob("/proc/[0-9]*/comm")
	for _, file := range files {
		comm, err := os.ReadFile(file)
		if err != nil || strings.TrimSpace(string(comm)) != name {
			continue
		}
		pid, _ := strconv.Atoi(strings.Split(file, "/")[2])
		if p, err := process.Identify(pid); err == nil {
			found = append(found, p)
		}
	}
	return found
}
