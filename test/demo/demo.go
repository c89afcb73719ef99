package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/aviaryhq/aviary/test/stack"
)

// stopTimeout bounds the stop of everything, after Ctrl-C too.
const stopTimeout = time.Minute

// demo is one run.
type demo struct {
	smoke  bool
	period time.Duration
	screen *screen
}

// run starts servers and flows, shows them, and stops all of it in reverse order,
// however it ends. When hurry ends services are killed that have not stopped; the
// servers are stopped all the same, which would outlive this process otherwise.
func (d *demo) run(ctx, hurry context.Context) (err error) {
	root, err := moduleRoot(ctx)
	if err != nil {
		return err
	}
	servers, err := d.servers(root)
	if err != nil {
		return err
	}
	unlock, err := lockRun(servers.stack.Dir() + ".run")
	if err != nil {
		return err
	}
	defer unlock()

	dir, err := os.MkdirTemp("", "aviary-demo-")
	if err != nil {
		return err
	}
	defer func() {
		if err == nil || d.smoke && errors.Is(err, context.Canceled) {
			err = errors.Join(err, os.RemoveAll(dir))
		} else if os.Remove(dir) != nil { // which it would be, had nothing been logged
			err = fmt.Errorf("%w (logs are in %s)", err, dir)
		}
	}()

	defer func() { // after a start that failed half-way, too
		d.screen.note("stopping servers")
		err = errors.Join(err, bounded(context.Background(), servers.stack.Down))
	}()
	lines, err := servers.stack.Up(ctx, servers.needed...)
	if err != nil {
		return d.unasked(ctx, err)
	}
	env := &environment{root: root, dir: dir, servers: keyValues(lines), run: strconv.FormatInt(time.Now().Unix(), 36), screen: d.screen}

	if !d.smoke {
		if env.curves, err = newCurves(dir); err != nil {
			return err
		}
	}

	var started []running
	defer func() {
		for i := len(started) - 1; i >= 0; i-- {
			err = errors.Join(err, bounded(hurry, started[i].stop))
		}
	}()
	for _, f := range flows() {
		d.screen.note("starting %s", f.service)
		r, startErr := f.start(ctx, env)
		if r != nil {
			started = append(started, r)
		}
		if startErr != nil {
			return d.unasked(ctx, fmt.Errorf("%s: %w", f.service, startErr))
		}
	}
	if env.curves != nil {
		d.screen.note("curves  %s", env.curves.page())
	}
	return d.unasked(ctx, d.show(ctx, started))
}

// unasked is err unless it is the end that a signal asked for. What fails in the stop that
// follows is told all the same: a server may have been left behind.
func (d *demo) unasked(ctx context.Context, err error) error {
	if !d.smoke && ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// show watches the flows until ctx ends or, in a smoke, until they are verified.
func (d *demo) show(ctx context.Context, started []running) error {
	watching, stop := context.WithCancel(ctx)
	group, watching := errgroup.WithContext(watching)
	for _, r := range started {
		group.Go(func() error { return r.watch(watching) })
	}
	group.Go(func() error { return d.screen.refresh(watching) })
	group.Go(func() error {
		if !d.smoke {
			d.screen.note("running until Ctrl-C")
			<-watching.Done()
			return watching.Err()
		}
		defer stop()
		return d.verify(watching, started)
	})
	err := group.Wait()
	d.screen.end()
	if d.smoke && ctx.Err() == nil && errors.Is(err, context.Canceled) {
		return nil // the watchers were told to stop after the verification
	}
	return err
}

// verify lets data flow for the period and compares.
func (d *demo) verify(ctx context.Context, started []running) error {
	d.screen.note("letting data flow for %s", d.period)
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d.period):
	}
	all := make([][]check, len(started))
	group, ctx := errgroup.WithContext(ctx)
	for i, r := range started {
		group.Go(func() (err error) {
			if all[i], err = r.verify(ctx); err != nil {
				return fmt.Errorf("%s: %w", flows()[i].service, err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	failed := 0
	for i, checks := range all {
		d.screen.table(flows()[i].service, checks)
		for _, c := range checks {
			if !c.ok() {
				failed++
			}
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d checks failed", failed)
	}
	return nil
}

// serverSet is the stack of this kind of run and what is needed of it.
type serverSet struct {
	stack  *stack.Stack
	needed []string
}

// servers returns a stack of its own for demo and smoke: neither shares servers
// with tests or stops theirs, and a run that was killed is cleaned up by the next.
func (d *demo) servers(root string) (serverSet, error) {
	name := stack.Demo
	if d.smoke {
		name = stack.Smoke
	}
	s, err := stack.New(stack.Config{Log: d.screen, Checkout: root, Name: name})
	if err != nil {
		return serverSet{}, err
	}
	set := serverSet{stack: s}
	seen := map[string]bool{}
	for _, f := range flows() {
		for _, server := range f.servers {
			if !seen[server] {
				set.needed = append(set.needed, server)
			}
			seen[server] = true
		}
	}
	return set, nil
}

// lockRun refuses a second run of the same kind from the same checkout, which
// would share its servers and take them down.
func lockRun(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, errors.New("already running from this checkout: stop the other one first")
		}
		return nil, err
	}
	return func() { _ = f.Close() }, nil
}

// bounded runs a stop with time of its own, at most until ctx ends.
func bounded(ctx context.Context, stop func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	return stop(ctx)
}

func moduleRoot(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/aviaryhq/aviary").Output()
	if err != nil {
		return "", errors.New("run this inside a checkout of Aviary, with go in PATH")
	}
	return strings.TrimSpace(string(out)), nil
}

func keyValues(lines []string) map[string]string {
	m := make(map[string]string)
	for _, line := range lines {
		key, value, _ := strings.Cut(line, "=")
		m[key] = value
	}
	return m
}
