package main

import (
	"context"
	"time"
)

// A flow shows one service: it starts the service's processes, shows what arrives
// at its far end, and can prove that all of it did. Each flow is a file and a line
// in flows.
type flow struct {
	service string
	servers []string // what it needs of test/stack
	start   func(ctx context.Context, env *environment) (running, error)
}

// running is a started flow.
type running interface {
	// watch follows the flow's far end until ctx ends.
	watch(ctx context.Context) error
	// verify stops what flows in, waits for the rest to arrive and compares. It
	// runs while watch does.
	verify(ctx context.Context) ([]check, error)
	// stop ends the flow's processes in order. It is called also after a failure.
	stop(ctx context.Context) error
}

func flows() []flow {
	return []flow{nightingaleFlow("nightingale", stockPrometheus()), nightingaleFlow("nightingale-2.0", currentPrometheus()), pigeonholeFlow(), sonicFlow(), eventbridgeFlow()}
}

// environment is what flows are built on.
type environment struct {
	root    string            // of the checkout
	dir     string            // for data and logs, deleted after success
	servers map[string]string // KEY=VALUE lines of the stack
	run     string            // distinguishes this run's topics
	screen  *screen
	curves  *curves // nil for none
}

// check is one line of the smoke's table.
type check struct {
	what      string
	want, got int64
}

func (c check) ok() bool { return c.want == c.got }

// settle is how long a count must stand still to be taken as final.
const settle = 5 * time.Second
