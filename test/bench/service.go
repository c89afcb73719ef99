package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/aviaryhq/aviary/test/bench/load"
	"github.com/aviaryhq/aviary/test/bench/measure"
	"github.com/aviaryhq/aviary/test/bench/servers"
	"github.com/aviaryhq/aviary/test/bench/workload"
	"github.com/aviaryhq/aviary/test/stack"
)

// folder returns the scenario's folder for programs, logs and data. close removes it.
func (r *runner) folder() (string, error) {
	var err error
	if r.dir == "" {
		r.dir, err = os.MkdirTemp("", "aviary-bench-")
	}
	return r.dir, err
}

// up starts services of the test stack for this run only. It returns the values that the stack
// prints, its folder, and a function that stops the services.
func up(ctx context.Context, cfg stack.Config, services ...string) (values map[string]string, dir string, stop func(), err error) {
	cfg.Log, cfg.Owned, cfg.Checkout = os.Stderr, true, fmt.Sprintf("bench-%d-%s", os.Getpid(), cfg.Checkout)
	s, err := stack.New(cfg)
	if err != nil {
		return nil, "", nil, err
	}
	stop = func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := s.Down(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
		}
	}
	lines, err := s.Up(ctx, services...)
	if err != nil {
		stop()
	}
	values = map[string]string{}
	for _, line := range lines {
		name, value, _ := strings.Cut(line, "=")
		values[name] = value
	}
	return values, s.Dir(), stop, err
}

// service starts a service with these environment variables (without the service's prefix) and
// waits until it is ready. The variable in listen, if any, gets the address for clients. The caller
// stops the service.
func (r *runner) service(ctx context.Context, name, listen string, environ map[string]string, args ...string) (*servers.Server, error) {
	dir, err := r.folder()
	if err != nil {
		return nil, err
	}
	program := filepath.Join(dir, name)
	if _, err := os.Stat(program); errors.Is(err, os.ErrNotExist) {
		if err := servers.Build(ctx, name, program); err != nil {
			return nil, err
		}
	}
	address, admin, err := servers.TwoAddresses()
	if err != nil {
		return nil, err
	}
	prefix := strings.ToUpper(name) + "_"
	all := []string{prefix + "ADMIN_LISTEN=" + admin}
	if listen != "" {
		all = append(all, prefix+listen+"="+address)
	}
	for key, value := range environ {
		all = append(all, prefix+key+"="+value)
	}
	s, err := servers.Start(program, program+".log", all, args...)
	if err != nil {
		return nil, err
	}
	s.Address, s.Admin = address, "http://"+admin
	return s, s.Await(ctx, s.Admin+"/-/ready")
}

// profiled calls f. In the first round it writes profiles of the service meanwhile, if -profile is
// set.
func (r *runner) profiled(ctx context.Context, s *servers.Server, name string, round int, f func() error) error {
	if r.Profile == "" || round != 0 {
		return f()
	}
	done := make(chan error, 1)
	go func() { done <- s.Profiles(ctx, filepath.Join(r.Profile, plainName(name))) }()
	return errors.Join(f(), <-done)
}

// driver returns a side that runs the part's workload with a driver, as in a scenario file.
func (r *runner) driver(ctx context.Context, c *cluster, p *workload.Part, one workload.Side) side {
	return side{one.Name, func(round int) (*load.Result, error) { return r.turn(ctx, c, p, one, round, nil) }}
}

// newTopic returns the name of a topic that does not exist.
func newTopic(namespace, part string) string {
	return "persistent://" + namespace + "/bench-" + plainName(part) + "-" + rand.Text()
}

// measured returns the figures of an outcome as a result. unit is what its messages are: msg_s and
// msg_per_cpu_s with unit msg. more are further figures.
func measured(o measure.Outcome, unit string, more map[string]float64) *load.Result {
	f := map[string]float64{
		unit + "_s": o.Rate(), unit + "_per_cpu_s": float64(o.Messages) / o.CPU, "peak_mib": o.PeakMiB, "p50_ms": o.P50, "p99_ms": o.P99,
	}
	maps.Copy(f, more)
	return &load.Result{Figures: f}
}
