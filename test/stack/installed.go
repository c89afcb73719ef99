package stack

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
)

// installed is a service that the installation of a package may start: the program is all that was wanted.
type installed struct {
	process string   // its name in /proc
	units   []string // of systemd
}

// initSystem is what starts the machine's services.
type initSystem struct {
	systemd bool
	root    []string // what makes a command root's
}

func findInit() initSystem {
	_, err := os.Stat("/run/systemd/system")
	i := initSystem{systemd: err == nil}
	if os.Geteuid() != 0 {
		i.root = []string{"sudo", "-n"}
	}
	return i
}

// installQuietly installs a Debian package and leaves none of its services running, now or after the next boot. Those that were there before
// stay as they were.
func (s *Stack) installQuietly(ctx context.Context, pkg string, services ...installed) error {
	machine := findInit()
	here := machine.look(ctx, services)
	did, err := s.aptInstall(ctx, pkg)
	if err != nil || !did { // what another process installed, and has perhaps started since, is not ours to stop
		return err
	}
	return machine.stopOthers(ctx, services, here, s.log)
}

// present is what was there before an installation.
type present struct {
	units     map[string]bool
	processes []process
}

func (i initSystem) look(ctx context.Context, services []installed) present {
	p := present{units: map[string]bool{}}
	for _, svc := range services {
		p.processes = append(p.processes, named(svc.process)...)
		for _, unit := range svc.units {
			p.units[unit] = i.knows(ctx, unit)
		}
	}
	return p
}

// knows reports whether systemd has the unit.
func (i initSystem) knows(ctx context.Context, unit string) bool {
	return i.systemd && exec.CommandContext(ctx, "systemctl", "cat", unit).Run() == nil
}

// stopOthers stops and disables what was not there before.
func (i initSystem) stopOthers(ctx context.Context, services []installed, before present, log *progress) error {
	for _, svc := range services {
		for _, unit := range svc.units {
			if before.units[unit] || !i.knows(ctx, unit) {
				continue
			}
			log.printf("stopping and disabling %s, which was installed", unit)
			if err := i.asRoot(ctx, "systemctl", "disable", "--now", unit); err != nil {
				return fmt.Errorf("cannot stop and disable %s: %w", unit, err)
			}
		}
		if i.systemd {
			continue // its processes belong to units; others of that name are none of ours
		}
		for _, p := range named(svc.process) {
			if slices.Contains(before.processes, p) {
				continue
			}
			log.printf("stopping %s, which its installation started", svc.process)
			if err := i.end(ctx, p); err != nil {
				return err
			}
		}
	}
	return nil
}

// end stops a process that may be another user's.
func (i initSystem) end(ctx context.Context, p process) error {
	if len(i.root) == 0 {
		return p.stop(ctx)
	}
	if err := i.asRoot(ctx, "kill", strconv.Itoa(p.PID)); err != nil && p.alive() {
		return fmt.Errorf("cannot stop process %d: %w", p.PID, err)
	}
	patient, cancel := context.WithTimeout(ctx, stopPatience)
	defer cancel()
	return p.waitGone(patient)
}

func (i initSystem) asRoot(ctx context.Context, command ...string) error {
	argv := append(slices.Clone(i.root), command...)
	if out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, firstLine(string(out)))
	}
	return nil
}
