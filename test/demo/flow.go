package main

import (
	"context"
	"time"

	"github.com/aviaryhq/aviary/test/demo/display"
)

// A flow shows one service: it starts the service's processes, shows what arrives
// at its far end, and can prove that all of it did. Each flow is a file and a line
// in flows.
type flow struct {
	service string
	binary  string   // the program of it
	servers []string // what it needs of test/stack
	joins   bool     // a demo does not wait for its servers, a smoke does
	start   func(ctx context.Context, env *environment) (running, error)
}

// running is a started flow.
type running interface {
	// watch follows the flow's far end until ctx ends.
	watch(ctx context.Context) error
	// verify stops what flows in, waits for the rest to arrive and compares. It
	// runs while watch does.
	verify(ctx context.Context) ([]display.Check, error)
	// stop ends the flow's processes in order. It is called also after a failure.
	stop(ctx context.Context) error
}

// flows are in the order of their start: the first one has the fewest servers to wait for, the
// second needs no more, the last is built.
func flows() []flow {
	return []flow{
		nightingaleFlow("nightingale", stockPrometheus()), eventbridgeFlow(), pigeonholeFlow(), sonicFlow(),
		nightingaleFlow("nightingale-2.0", currentPrometheus()),
	}
}

// environment is what flows are built on.
type environment struct {
	root    string            // of the checkout
	dir     string            // for data and logs, deleted after success
	servers map[string]string // KEY=VALUE lines of the stack, of what a flow needs at least
	run     string            // distinguishes this run's topics
	screen  *display.Screen
	curves  *curves // nil for none

	restarts bool // services are started again when they have ended

	ports    *ports
	binaries *binaries
	first    *firstData
}

// subscription is that of the demo on the topics that services write to.
const subscription = "demo"

// patience is how long the demo waits for anything that must happen before it fails. It is far more
// than a busy machine needs, and costs no time: a wait ends as soon as its condition holds.
const patience = 2 * time.Minute

// standStill is how long a count must stand still to be taken as final.
const standStill = 5 * time.Second
