// Package pigeonhole replicates messages between Kafka, RabbitMQ and Pulsar. It runs routes (see
// route): each has a source, a sink and a transformation of the messages. It imports
// internal/connector and the packages below it, and no other service.
package pigeonhole

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/app"
	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/pigeonhole/transform"
)

// Build makes the service: its routes, and their pages on the admin server.
func Build(_ context.Context, rt *app.Runtime, cfg Config) error {
	rt.SpareMemory(typicalMemory)
	rt.TuneMemory(Config{}.memoryNeed()) // first, so that the limit holds until the routes have stopped
	s := &service{log: rt.Log, metrics: newMetrics(rt.Metrics), setMemoryNeed: rt.TuneMemory, routes: map[string]*route{}}
	if err := rt.Metrics.Register(newCollector(s)); err != nil {
		return err
	}
	rt.OnStop("routes", s.stop)
	pages := s.handler()
	rt.Handle("/routes", "the routes: state, lag, current errors; POST /routes/NAME/pause and /resume", pages)
	rt.Handle("/routes/", "", pages)
	if err := s.apply(context.Background(), cfg); err != nil {
		return err
	}
	app.OnReload(rt, s.apply)
	rt.Check("routes", s.check)
	return nil
}

// service runs the routes.
type service struct {
	log           *zap.Logger
	metrics       *metrics
	setMemoryNeed func(need int64)
	applying      sync.Mutex // held by apply and resume: one change at a time

	mu     sync.Mutex
	cfg    Config
	routes map[string]*route
	closed bool
}

var (
	errNoRoutes = config.Fault("routes", "must be given: to stop every route write routes: []")
	errStopped  = errors.New("the route is stopping")
)

// apply changes the running routes to those of cfg. Without the key routes the file may be cut off.
func (s *service) apply(ctx context.Context, cfg Config) error {
	s.applying.Lock()
	defer s.applying.Unlock()
	if cfg.Routes == nil && len(s.all()) > 0 {
		return errNoRoutes
	}
	return s.change(ctx, cfg, nil)
}

// resume continues a paused route, and starts a failed one again.
func (s *service) resume(r *route) error {
	r.mu.Lock()
	phase := r.phase
	r.mu.Unlock()
	switch phase {
	case running:
		r.pipelines.Resume()
		return nil
	case stopping:
		return errStopped
	}
	s.applying.Lock()
	defer s.applying.Unlock()
	if s.find(r.cfg.Name) != r {
		return errStopped
	}
	return s.change(context.Background(), s.current(), r)
}

// change changes the running routes to those of cfg. Routes that did not change continue, with their
// new share of the bounds; restart does not. Others stop, start or are replaced. If cfg has a fault,
// nothing changes. If ctx ends while routes stop, cfg is not applied, and routes that have stopped
// stay stopped. s.applying is held.
func (s *service) change(ctx context.Context, cfg Config, restart *route) error {
	s.mu.Lock()
	old := maps.Clone(s.routes)
	s.mu.Unlock()
	next := map[string]*route{} // those that continue; then all
	transforms := make([]*transform.Transform, len(cfg.Routes))
	for i, rc := range cfg.Routes {
		var err error
		if r := old[rc.Name]; r != nil && r != restart && config.Same(r.cfg, rc) {
			next[rc.Name] = r
		} else if transforms[i], err = rc.newTransform(); err != nil {
			return fmt.Errorf("routes[%d]: %w", i, err)
		}
	}
	var removed []*route
	for name, r := range old {
		if next[name] == nil {
			removed = append(removed, r)
		}
	}
	if err := s.stopRoutes(ctx, removed); err != nil {
		return err
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errStopped
	}
	for _, r := range removed {
		s.metrics.pipelines.Forget(r.cfg.Name)
		s.metrics.parts.Forget(r.cfg.Name)
	}
	for i, rc := range cfg.Routes {
		if r := next[rc.Name]; r != nil {
			bounds := cfg.bounds(rc) // the number of routes may have changed
			r.pipelines.SetBounds(bounds.Messages, int64(bounds.Bytes))
			continue
		}
		r := newRoute(cfg, rc, transforms[i], s.log, s.metrics)
		if before := old[rc.Name]; before != nil && before != restart && before.pipelines.Paused() {
			r.pipelines.Pause() // a changed route stays paused until it is resumed
		}
		next[rc.Name] = r
		r.start()
	}
	s.cfg, s.routes = cfg, next
	s.setMemoryNeed(cfg.memoryNeed())
	return nil
}

// stopRoutes stops routes that are removed or replaced. It returns an error for a panic, and when
// ctx ends with the process. A route that has not stopped after stopTimeout is only logged.
func (s *service) stopRoutes(ctx context.Context, routes []*route) error {
	stopping, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	return forEach(routes, func(r *route) error {
		err := r.stop(stopping)
		if err != nil && ctx.Err() == nil {
			s.log.Error("route did not stop in time; continuing without waiting for it", zap.Error(err))
			return nil
		}
		return err
	})
}

// forEach calls f for all routes concurrently. A panic of f becomes an error.
func forEach(routes []*route, f func(r *route) error) error {
	errs := make([]error, len(routes))
	var wg sync.WaitGroup
	for i, r := range routes {
		wg.Go(func() { errs[i] = app.Protect(func() error { return f(r) }) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// stop ends all routes.
func (s *service) stop(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	return forEach(s.all(), func(r *route) error { return r.stop(ctx) })
}

// check is the readiness check. It fails when every route is unhealthy, and names three. One route
// that is healthy or paused keeps the process ready: /routes shows the errors of the others.
func (s *service) check(context.Context) error {
	var causes []string
	for _, r := range s.all() {
		switch now := r.status(); now.State {
		case "failed":
			causes = append(causes, now.Name+": failed: "+now.LastError)
		case "unhealthy":
			causes = append(causes, now.Name+": "+strings.Join(now.Unhealthy, ", "))
		default:
			return nil
		}
	}
	if causes == nil {
		return nil
	}
	if more := len(causes) - 3; more > 0 {
		causes = append(causes[:3], fmt.Sprintf("and %d more, see /routes", more))
	}
	return errors.New("nothing is replicated: " + strings.Join(causes, "; "))
}

// all returns the routes in the order of their names.
func (s *service) all() []*route {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Values(s.routes), func(a, b *route) int { return strings.Compare(a.cfg.Name, b.cfg.Name) })
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
