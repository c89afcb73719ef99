package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

// headStart bounds how long the first flow has the machine for itself once its servers can be had.
const headStart = time.Minute

// launch starts servers and flows: one flow's servers after the other's, since two at once are no
// faster on few processors, and each flow as soon as its own run. The first flow shows data before
// anything is done for the next; then fetching runs ahead.
type launch struct {
	servers       servers
	flows         []flow
	env           environment     // what each flow gets, with the servers that run by then
	group         *errgroup.Group // of what runs until the end
	awaitsJoining bool            // flows that join are awaited like the others

	mu      sync.Mutex
	up      map[string]bool
	started []playing // in the order of their starts
}

// playing is a flow that was started.
type playing struct {
	flow
	running
}

// run returns when all flows run, but for those that join later.
func (l *launch) run(ctx context.Context) error {
	var awaited []flow
	for _, f := range l.flows {
		if f.joins && !l.awaitsJoining {
			l.group.Go(func() error { return l.join(ctx, f) })
		} else {
			awaited = append(awaited, f)
		}
	}
	fetched := l.fetch(ctx, awaited)
	l.group.Go(func() error { l.env.binaries.build(ctx, l.env.root); return nil })
	starts, starting := errgroup.WithContext(ctx)
	for i, f := range awaited {
		err := <-fetched[i]
		if err == nil {
			err = l.raise(starting, f)
		}
		if err != nil {
			starts.Go(func() error { return err })
			break
		}
		starts.Go(func() error { return l.start(starting, ctx, f) })
		if i == 0 {
			l.awaitFirst(starting)
		}
	}
	return starts.Wait()
}

// fetch installs what flows need, in their order, and tells of each when it has.
func (l *launch) fetch(ctx context.Context, flows []flow) []chan error {
	fetched := make([]chan error, len(flows))
	for i := range flows {
		fetched[i] = make(chan error, 1)
	}
	l.group.Go(func() error {
		for i, f := range flows {
			fetched[i] <- l.servers.Fetch(ctx, f.servers...) // an error that who waits for it returns
			if i == 0 {
				l.awaitFirst(ctx)
			}
		}
		return nil
	})
	return fetched
}

// raise starts the servers of a flow that do not run yet.
func (l *launch) raise(ctx context.Context, f flow) error {
	l.mu.Lock()
	missing := slices.DeleteFunc(slices.Clone(f.servers), func(name string) bool { return l.up[name] })
	l.mu.Unlock()
	if len(missing) == 0 {
		return nil
	}
	lines, err := l.servers.Up(ctx, missing...)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, name := range missing {
		l.up[name] = true
	}
	known := keyValues(lines)
	maps.Copy(known, l.env.servers) // into a new one: flows that run read the old one
	l.env.servers = known
	return nil
}

// start starts a flow and has it watched until watching ends.
func (l *launch) start(ctx, watching context.Context, f flow) error {
	l.env.screen.Note("starting %s", f.service)
	l.mu.Lock()
	env := l.env
	l.mu.Unlock()
	r, err := f.start(ctx, &env)
	if r != nil {
		l.mu.Lock()
		l.started = append(l.started, playing{f, r})
		l.mu.Unlock()
	}
	if err != nil {
		return fmt.Errorf("%s: %w", f.service, err)
	}
	l.group.Go(func() error { return r.watch(watching) })
	return nil
}

// awaitFirst returns when data has arrived, or none comes.
func (l *launch) awaitFirst(ctx context.Context) {
	select {
	case <-l.env.first.arrived:
	case <-time.After(headStart):
	case <-ctx.Done():
	}
}

// join starts a flow once its servers can be had, which may take minutes. That they cannot is told
// and ends nothing.
func (l *launch) join(ctx context.Context, f flow) error {
	select { // whatever it does would delay the first data
	case <-l.env.first.arrived:
	case <-ctx.Done():
		return ctx.Err()
	}
	err := l.servers.Fetch(ctx, f.servers...)
	if err == nil {
		err = l.raise(ctx, f)
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		l.env.screen.Note("%s does not start, the other services go on: %v", f.service, err)
		return nil
	}
	l.env.screen.Note("%s: its servers are ready", f.service)
	return l.start(ctx, ctx, f)
}

// all returns the flows that were started, in their order of [launch.flows].
func (l *launch) all() []playing {
	l.mu.Lock()
	defer l.mu.Unlock()
	place := func(p playing) int {
		return slices.IndexFunc(l.flows, func(f flow) bool { return f.service == p.service })
	}
	return slices.SortedFunc(slices.Values(l.started), func(a, b playing) int { return place(a) - place(b) })
}

// stop ends the flows, the last one first.
func (l *launch) stop(ctx context.Context) (errs []error) {
	for _, p := range slices.Backward(l.started) {
		errs = append(errs, bounded(ctx, p.stop))
	}
	return errs
}
