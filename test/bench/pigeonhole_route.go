package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/aviaryhq/aviary/test/bench/load"
	"github.com/aviaryhq/aviary/test/bench/servers"
	"github.com/aviaryhq/aviary/test/bench/workload"
	"github.com/aviaryhq/aviary/test/stack/process"
)

// route is a route of Pigeonhole's configuration.
type route struct {
	settings    string // its other keys
	source      string // the key source
	destination *destination
}

// destination is where a route or a plain client stores its messages.
type destination struct {
	sink, to string                // the keys sink and to
	stored   func() (int64, error) // the number of messages there
	remove   func() error
}

// The guarantees of routes.
const (
	atLeastOnce     = "guarantee: at_least_once"
	effectivelyOnce = "guarantee: effectively_once"
)

// startRoutes starts Pigeonhole with the routes.
func (b *pigeonhole) startRoutes(ctx context.Context, routes ...route) (*servers.Server, error) {
	text := "routes:\n"
	for i, r := range routes {
		text += fmt.Sprintf("- {name: route-%d, source: {%s}, sink: {%s}, to: %q, %s}\n",
			i, r.source, r.destination.sink, r.destination.to, r.settings)
	}
	dir, err := b.folder()
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "pigeonhole.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return nil, err
	}
	return b.service(ctx, "pigeonhole", "", nil, "-config.file", file)
}

// routes returns a side that moves the part's messages over routes, one for each source, with equal
// shares. Each turn calls from and to again, for a new group or subscription, and a new topic or
// queue.
func (b *pigeonhole) routes(
	ctx context.Context, p *workload.Part, name, settings string, to func() (*destination, error), from ...func() (string, error),
) side {
	return side{name, func(round int) (result *load.Result, err error) {
		var routes []route
		for _, source := range from {
			r := route{settings: settings}
			if r.source, err = source(); err != nil {
				return nil, err
			}
			if r.destination, err = to(); err != nil {
				return nil, err
			}
			routes = append(routes, r)
		}
		each := int64(p.Messages / len(routes))
		s, err := b.startRoutes(ctx, routes...)
		if err != nil {
			return nil, err
		}
		err = b.profiled(ctx, s, p.Name+"-"+name, round, func() (err error) {
			result, err = move(ctx, s, each*int64(len(routes)))
			return err
		})
		if err := errors.Join(err, s.Stop()); err != nil {
			return nil, err
		}
		for _, r := range routes {
			stored, err := r.destination.stored()
			if err := errors.Join(err, r.destination.remove()); err != nil {
				return nil, err
			}
			if stored > each && settings == effectivelyOnce {
				return nil, fmt.Errorf("%s: %d messages are stored, not %d", settings, stored, each)
			}
			result.Figures["lost"] += float64(max(each-stored, 0))
			result.Figures["duplicated"] += float64(max(stored-each, 0))
		}
		return result, nil
	}}
}

// moveTimeout is how long a turn of routes may take.
const moveTimeout = 3 * time.Minute

// move measures Pigeonhole from the first message that its routes have stored to the n-th. Its
// figures have the same names as those of drivers.
func move(ctx context.Context, s *servers.Server, n int64) (*load.Result, error) {
	var began, now time.Time
	var first, stored int64
	var before, cpu float64
	ctx, cancel := context.WithTimeout(ctx, moveTimeout)
	defer cancel()
	if err := process.Poll(ctx, 10*time.Millisecond, func() (bool, error) {
		var all struct {
			Routes []struct {
				Stored int64 `json:"stored"`
			} `json:"routes"`
		}
		if err := servers.Get(ctx, s.Admin+"/routes", &all); err != nil {
			return false, err
		}
		stored, now = 0, time.Now()
		for _, r := range all.Routes {
			stored += r.Stored
		}
		var err error
		cpu, err = s.CPU()
		if began.IsZero() && stored > 0 {
			began, first, before = now, stored, cpu
		}
		return stored >= n, err
	}); err != nil {
		return nil, fmt.Errorf("%d of %d messages are stored: %w", stored, n, err)
	}
	if stored == first {
		return nil, fmt.Errorf("all %d messages were stored between two polls: there are too few", n)
	}
	peak, err := s.Peak()
	messages := float64(stored - first)
	return &load.Result{Figures: map[string]float64{
		"publish_msg_s": messages / now.Sub(began).Seconds(), "cpu_us": (cpu - before) / messages * 1e6, "peak_mib": peak,
	}}, err
}

// publisher returns a side that publishes the part's messages with a driver.
func (b *pigeonhole) publisher(ctx context.Context, p *workload.Part, driver, url string, setUp func() (*destination, error)) side {
	return side{"client", func(int) (*load.Result, error) {
		to, err := setUp()
		if err != nil {
			return nil, err
		}
		result, err := b.runTurn(ctx, driver, url, load.Turn{Workload: p.Workload, Topics: []string{to.to}, Messages: p.Messages})
		return result, errors.Join(err, to.remove())
	}}
}

// runTurn runs a turn at Kafka or at RabbitMQ.
func (b *pigeonhole) runTurn(ctx context.Context, driver, url string, t load.Turn) (*load.Result, error) {
	t.Side.Driver, t.URL = driver, url
	return load.Run(ctx, t, nil, b.pulsar.environ, func(load.Sample) {})
}
