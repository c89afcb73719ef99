package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/aviaryhq/aviary/test/demo/display"
	"github.com/aviaryhq/aviary/test/stack"
	"github.com/aviaryhq/aviary/test/stack/install"
)

// demo is one run.
type demo struct {
	smoke  bool
	period time.Duration
	screen *display.Screen
}

// run starts servers and flows, shows them, and stops all of it in reverse order,
// however it ends. When hurry ends services are killed that have not stopped; the
// servers are stopped all the same, which would outlive this process otherwise.
func (d *demo) run(ctx, hurry context.Context) (err error) {
	root, err := moduleRoot(ctx)
	if err != nil {
		return err
	}
	servers, err := d.stack(root)
	if err != nil {
		return err
	}
	lock, err := openRun(servers.Dir() + ".run")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.close()) }()
	dir, err := os.MkdirTemp("", folderPrefix)
	if err != nil {
		return err
	}
	if err := lock.note(dir); err != nil {
		return errors.Join(err, os.Remove(dir))
	}
	defer func() {
		if err == nil || d.smoke && ctx.Err() != nil && errors.Is(err, context.Canceled) {
			err = errors.Join(err, os.RemoveAll(dir))
		} else if os.Remove(dir) != nil { // which it would be, had nothing been logged
			err = fmt.Errorf("%w (logs are in %s)", err, dir)
		}
	}()

	all := flows()
	env := environment{
		root: root, dir: dir, run: strconv.FormatInt(time.Now().Unix(), 36), screen: d.screen, restarts: !d.smoke,
		ports: &ports{screen: d.screen}, binaries: newBinaries(dir, all), first: newFirstData(d.screen),
	}
	if !d.smoke {
		if env.curves, err = newCurves(ctx, dir, env.ports); err != nil {
			return err
		}
		defer env.curves.close()
	}
	if err := d.announce(ctx, servers, all); err != nil {
		return d.unasked(ctx, err)
	}
	defer func() { // after a start that failed half-way, too
		d.screen.Note("stopping servers")
		err = errors.Join(err, bounded(context.Background(), servers.Down))
	}()
	l := &launch{servers: servers, flows: all, env: env, awaitsJoining: d.smoke, up: map[string]bool{}}
	defer func() { err = errors.Join(append([]error{err}, l.stop(hurry)...)...) }()
	return d.unasked(ctx, d.show(ctx, l))
}

// servers are those of test/stack.
type servers interface {
	Missing(ctx context.Context, names ...string) ([]install.Download, error)
	Fetch(ctx context.Context, names ...string) error
	Up(ctx context.Context, names ...string) ([]string, error)
	Down(ctx context.Context) error
}

// announce says what will be fetched, if anything.
func (d *demo) announce(ctx context.Context, s servers, flows []flow) error {
	var names []string
	for _, f := range flows {
		names = append(names, f.servers...)
	}
	missing, err := s.Missing(ctx, names...)
	if err != nil || len(missing) == 0 {
		return err
	}
	total := install.Download{}
	for _, m := range missing {
		total.Size += m.Size
	}
	d.screen.Note("this machine lacks some servers: fetching about %d MB", total.Megabytes())
	for _, m := range missing {
		d.screen.Note("  %s", m)
	}
	return nil
}

// unasked is err unless it is the end that a signal asked for. What fails in the stop that
// follows is told all the same: a server may have been left behind.
func (d *demo) unasked(ctx context.Context, err error) error {
	if !d.smoke && ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// show starts the flows and watches them until ctx ends or, in a smoke, until they are verified.
func (d *demo) show(ctx context.Context, l *launch) error {
	watching, stop := context.WithCancel(ctx)
	defer stop()
	group, watching := errgroup.WithContext(watching)
	l.group = group
	verified, verdict := false, error(nil)
	group.Go(func() error { return d.screen.Refresh(watching) })
	group.Go(func() error {
		if err := l.run(watching); err != nil {
			return err
		}
		if !d.smoke {
			d.screen.Note("running until Ctrl-C")
			<-watching.Done()
			return watching.Err()
		}
		verdict = d.verify(watching, l.all())
		verified = watching.Err() == nil
		stop()
		return verdict
	})
	err := group.Wait()
	if verified && errors.Is(err, context.Canceled) {
		return verdict // stop ends the watchers, whose error may come before the verdict
	}
	return err
}

// verify lets data flow for the period and compares.
func (d *demo) verify(ctx context.Context, started []playing) error {
	d.screen.Note("letting data flow for %s", d.period)
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d.period):
	}
	all := make([][]display.Check, len(started))
	group, ctx := errgroup.WithContext(ctx)
	for i, r := range started {
		group.Go(func() (err error) {
			if all[i], err = r.verify(ctx); err != nil {
				return fmt.Errorf("%s: %w", r.service, err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	failed := 0
	for i, checks := range all {
		d.screen.Table(started[i].service, checks)
		for _, c := range checks {
			if !c.OK() {
				failed++
			}
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d checks failed", failed)
	}
	return nil
}

// stack returns a stack of its own for demo and smoke: neither shares servers with tests or stops
// theirs. The servers die with this process, and what one that was killed has left is removed by
// the next.
func (d *demo) stack(root string) (*stack.Stack, error) {
	name, nice := stack.Demo, 19 // the current Prometheus is built beside what people watch
	if d.smoke {
		name, nice = stack.Smoke, 0 // which waits for it
	}
	return stack.New(stack.Config{Log: display.Progress{Screen: d.screen}, Checkout: root, Name: name, Owned: true, PrepareLater: true, BuildNice: nice})
}

// bounded runs a stop with time of its own, no longer than patience and at most until ctx ends.
func bounded(ctx context.Context, stop func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
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
