package install

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"

	"github.com/aviaryhq/aviary/test/stack/process"
)

// Service is a service that the installation of a package may start: the program is all that was
// wanted.
type Service struct {
	Process string   // its name in /proc
	Units   []string // of systemd
}

// InitSystem is what starts the machine's services.
type InitSystem struct {
	Systemd bool
	Root    []string // what makes a command root's
}

func findInit() InitSystem {
	_, err := os.Stat("/run/systemd/system")
	i := InitSystem{Systemd: err == nil}
	if os.Geteuid() != 0 {
		i.Root = []string{"sudo", "-n"}
	}
	return i
}

// Debian installs a Debian package and leaves none of its services running, now or after
// the next boot. Those that were there before stay as they were.
func (i Installer) Debian(ctx context.Context, pkg string, services ...Service) error {
	machine := findInit()
	here := machine.Look(ctx, services)
	did, err := i.apt(ctx, pkg)
	if err != nil || !did { // what another process installed, and has perhaps started since, is not ours to stop
		return err
	}
	return machine.StopOthers(ctx, services, here, i.Log)
}

// Present is what was there before an installation.
type Present struct {
	units     map[string]bool
	Processes []process.ID
}

// Look lists the units and processes of services that are there.
func (i InitSystem) Look(ctx context.Context, services []Service) Present {
	p := Present{units: map[string]bool{}}
	for _, svc := range services {
		p.Processes = append(p.Processes, Named(svc.Process)...)
		for _, unit := range svc.Units {
			p.units[unit] = i.knows(ctx, unit)
		}
	}
	return p
}

// knows reports whether systemd has the unit.
func (i InitSystem) knows(ctx context.Context, unit string) bool {
	return i.Systemd && exec.CommandContext(ctx, "systemctl", "cat", unit).Run() == nil
}

// StopOthers stops and disables what was not there before.
func (i InitSystem) StopOthers(ctx context.Context, services []Service, before Present, log *process.Progress) error {
	for _, svc := range services {
		for _, unit := range svc.Units {
			if before.units[unit] || !i.knows(ctx, unit) {
				continue
			}
			log.Printf("stopping and disabling %s, which was installed", unit)
			if err := i.asRoot(ctx, "systemctl", "disable", "--now", unit); err != nil {
				return fmt.Errorf("cannot stop and disable %s: %w", unit, err)
			}
		}
		if i.Systemd {
			continue // its processes belong to units; others of that name are none of ours
		}
		for _, p := range Named(svc.Process) {
			if slices.Contains(before.Processes, p) {
				continue
			}
			log.Printf("stopping %s, which its installation started", svc.Process)
			if err := i.end(ctx, p); err != nil {
				return err
			}
		}
	}
	return nil
}

// end stops a process that may be another user's.
func (i InitSystem) end(ctx context.Context, p process.ID) error {
	if len(i.Root) == 0 {
		return p.Stop(ctx)
	}
	if err := i.asRoot(ctx, "kill", strconv.Itoa(p.PID)); err != nil && p.Alive() {
		return fmt.Errorf("cannot stop process %d: %w", p.PID, err)
	}
	ending, cancel := context.WithTimeout(ctx, process.StopTimeout)
	defer cancel()
	return p.WaitGone(ending)
}

func (i InitSystem) asRoot(ctx context.Context, command ...string) error {
	argv := append(slices.Clone(i.Root), command...)
	if out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, process.FirstLine(string(out)))
	}
	return nil
}
