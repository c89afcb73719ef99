package stack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

func (s *Stack) prometheusService() service {
	return service{
		name:  "prometheus",
		fetch: s.fetchPrometheus,
		installed: func() ([]string, error) {
			bin, err := exec.LookPath("prometheus")
			if err != nil {
				return nil, err
			}
			return []string{"PROMETHEUS_BIN=" + bin}, nil
		},
	}
}

func (s *Stack) fetchPrometheus(ctx context.Context) error {
	if _, err := exec.LookPath("prometheus"); err == nil {
		return nil
	}
	if err := s.installQuietly(ctx, "prometheus", installed{"prometheus", []string{"prometheus.service"}}); err != nil {
		return err
	}
	if _, err := exec.LookPath("prometheus"); err != nil {
		return errors.New("installed, but not found in PATH")
	}
	return nil
}

// aptInstall installs a Debian package and reports whether it was this call that did. Only a missing program is worth that, so callers look for it
// first.
func (s *Stack) aptInstall(ctx context.Context, pkg string) (did bool, err error) {
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
	unlock, err := lockFile(ctx, filepath.Join(s.cache, "apt.lock"), s.log)
	if err != nil {
		return false, err
	}
	defer unlock()
	if _, err := exec.LookPath(pkg); err == nil { // by the process that held the lock
		return false, nil
	}
	apt := func(args ...string) (string, error) {
		// RUNLEVEL=1 has Debian's init scripts leave the service alone.
		argv := append(append([]string{}, prefix...), "env", "DEBIAN_FRONTEND=noninteractive", "RUNLEVEL=1",
			"apt-get", "-o", "DPkg::Lock::Timeout=120")
		argv = append(argv, args...)
		out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput()
		return string(out), err
	}
	install := []string{"install", "-y", "-q", "--no-install-recommends", pkg}
	s.log.printf("installing %s with apt-get", pkg)
	out, err := apt(install...)
	if err != nil {
		// The package list may be missing, as in a fresh container, or too old.
		s.log.printf("updating the package list")
		if out, err = apt("update", "-q"); err == nil {
			out, err = apt(install...)
		}
	}
	if err != nil {
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
		return false, fmt.Errorf("apt-get cannot install %s (no network?): %s", pkg, aptError(out, err))
	}
	return true, nil
}

func aptError(out string, err error) string {
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, "E: ") || strings.HasPrefix(line, "Err:") {
			return firstLine(line)
		}
	}
	return err.Error()
}

// named returns the processes of a program.
func named(name string) []process {
	var found []process
	files, _ := filepath.Glob("/proc/[0-9]*/comm")
	for _, file := range files {
		comm, err := os.ReadFile(file)
		if err != nil || strings.TrimSpace(string(comm)) != name {
			continue
		}
		pid, _ := strconv.Atoi(strings.Split(file, "/")[2])
		if p, err := identify(pid); err == nil {
			found = append(found, p)
		}
	}
	return found
}
