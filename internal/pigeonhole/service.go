// Package pigeonhole replicates messages between Kafka, RabbitMQ and Pulsar. It runs
// routes: a source, a sink, and what happens on the way; see route.
package pigeonhole

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/app"
	"github.com/aviaryhq/aviary/internal/config"
)

// Build wires the service: its routes, their pages on the admin server, and the change
// of routes while it runs.
func Build(_ context.Context, rt *app.Runtime, cfg Config) error {
	rt.SpareMemory(usualMemory)
	rt.TuneMemory(memoryNeed(nil)) // here, so that the limit holds until the routes have stopped
	s := &service{
		log: rt.Log, metrics: newMetrics(rt.Metrics), tune: rt.TuneMemory, routes: map[string]*route{},
	}
	if err := rt.Metrics.Register(newCollector(s)); err != nil {
		return err
	}
	rt.OnStop("routes", s.stop)
	pages := s.handler()
	rt.Handle("/routes", "the routes: state, lag, what is the matter; POST /routes/NAME/pause and /resume", pages)
	rt.Handle("/routes/", "", pages)
	if err := s.change(context.Background(), cfg); err != nil {
		return err
	}
	app.OnReload(rt, s.change)
	rt.Check("routes", s.check)
	return nil
}

// service runs the routes.
type service struct {
	log     *zap.Logger
	metrics *metrics
	tune    func(need int64) // told how much memory the routes need

	changing sync.Mutex // one change at a time

	mu     sync.Mutex
	cfg    Config
	routes map[string]*route
	closed bool
}

// change runs the routes of cfg: those that are as they were go on undisturbed, with the
// share of the bounds that they have now; others stop, start or are replaced. When one
// cannot be made nothing changes.
func (s *service) change(ctx context.Context, cfg Config) error {
	s.changing.Lock()
	defer s.changing.Unlock()
	s.mu.Lock()
	old := maps.Clone(s.routes)
	s.mu.Unlock()
	if cfg.Routes == nil && len(old) > 0 {
		return errNoRoutes
	}

	defer s.forgetMetrics(old, cfg)
	made := map[string]*route{}
	var errs []error
	for i, rc := range cfg.Routes {
		if r := old[rc.Name]; r != nil && reflect.DeepEqual(r.cfg, rc) {
			continue
		}
		r, err := newRoute(cfg, rc, s.log, s.metrics)
		if err != nil {
			errs = append(errs, fmt.Errorf("routes[%d]: %w", i, err))
			continue
		}
		made[rc.Name] = r
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}

	wanted := map[string]bool{}
	for _, rc := range cfg.Routes {
		wanted[rc.Name] = true
	}
	var gone []*route
	for name, r := range old {
		if made[name] != nil || !wanted[name] {
			gone = append(gone, r)
		}
	}
	if err := s.retire(ctx, gone...); err != nil {
		return err
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errStopped
	}
	s.cfg = cfg
	for name := range old {
		if !wanted[name] {
			delete(s.routes, name)
		}
	}
	for name, r := range made {
		if before := old[name]; before != nil && before.lanes.Paused() {
			r.lanes.Pause() // whoever paused it has not resumed it
		}
		s.routes[name] = r
	}
	for _, r := range s.routes {
		r.share(cfg) // of those that did not change, too: there are more or fewer now
	}
	s.tune(memoryNeed(slices.Collect(maps.Values(s.routes))))
	for _, r := range made {
		r.start()
	}
	return nil
}

// forgetMetrics removes, after a change, those of routes and parts that there are no more,
// and of those that there would have been, had it not been refused.
func (s *service) forgetMetrics(old map[string]*route, cfg Config) {
	names := slices.Collect(maps.Keys(old))
	for _, rc := range cfg.Routes {
		names = append(names, rc.Name)
	}
	for _, name := range names {
		if r := s.find(name); r != nil {
			s.metrics.forgetParts(r.cfg)
		} else {
			s.metrics.forget(name)
		}
	}
}

// errNoRoutes refuses a configuration that would end every route without saying so: its
// file may have been cut off.
var errNoRoutes = config.Fault("routes", "must be given: to stop every route write routes: []")

// retire stops routes that leave. Its errors are a panic, and the end of ctx: the
// process stops, which then waits for the same routes.
func (s *service) retire(ctx context.Context, routes ...*route) error {
	patient, cancel := context.WithTimeout(ctx, stopPatience)
	defer cancel()
	return each(routes, func(r *route) error {
		err := r.stop(patient)
		if err != nil && ctx.Err() == nil {
			s.log.Error("a route is left behind", zap.Error(err))
			return nil
		}
		return err
	})
}

// each calls f for each route, for all at once. A panic of f becomes an error.
func each(routes []*route, f func(r *route) error) error {
	errs := make([]error, len(routes))
	var wg sync.WaitGroup
	for i, r := range routes {
		wg.Go(func() { errs[i] = app.Protect(func() error { return f(r) }) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// resume lets a paused route go on, and starts a failed one anew.
func (s *service) resume(r *route) error {
	r.mu.Lock()
	phase := r.phase
	r.mu.Unlock()
	switch phase {
	case running:
		r.lanes.Resume()
		return nil
	case stopping:
		return errStopped
	}
	s.changing.Lock()
	defer s.changing.Unlock()
	if s.find(r.cfg.Name) != r {
		return errStopped
	}
	if err := s.retire(context.Background(), r); err != nil {
		return err
	}
	again, err := newRoute(s.current(), r.cfg, s.log, s.metrics)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errStopped
	}
	s.routes[r.cfg.Name] = again
	again.start()
	return nil
}

// stop ends all routes.
func (s *service) stop(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	return each(s.all(), func(r *route) error { return r.stop(ctx) })
}

// check is the readiness check: it fails when something is the matter with every route. A route
// that works, or that somebody has paused, keeps the process ready: what is the matter with the
// others /routes says.
func (s *service) check(context.Context) error {
	var causes []string
	for _, r := range s.all() {
		cause := r.unwell()
		if cause == "" {
			return nil
		}
		causes = append(causes, r.cfg.Name+": "+cause)
	}
	if len(causes) == 0 {
		return nil
	}
	slices.Sort(causes)
	text := "nothing is replicated: " + strings.Join(causes[:min(len(causes), toldRoutes)], "; ")
	if more := len(causes) - toldRoutes; more > 0 {
		text += fmt.Sprintf("; and %d more, see /routes", more)
	}
	return errors.New(text)
}

// toldRoutes is how many routes an error names.
const toldRoutes = 3

func (s *service) all() []*route {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.routes))
}

func (s *service) find(name string) *route {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.routes[name]
}

func (s *service) current() Config {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cfg
}
