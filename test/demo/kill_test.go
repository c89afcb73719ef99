package main

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/demo/display"
	"github.com/aviaryhq/aviary/test/stack"
)

// TestNothingIsLostByKilling: on real servers a service is killed while data flow and started
// again, twice. All that was sent arrives, and the flow goes on.
func TestNothingIsLostByKilling(t *testing.T) {
	pulsar := stack.Pulsar(t)
	servers := map[string]string{"PULSAR_URL": pulsar.URL(), "PULSAR_ADMIN_URL": pulsar.AdminURL()}
	t.Run("eventbridge", func(t *testing.T) {
		r := killAndCompare(t, eventbridgeFlow(), servers).(*eventbridge)
		for name := range hookOf { // the server is shared
			require.NoError(t, r.call(t.Context(), http.MethodDelete, "/v1/buses/"+r.bus()+"/subscribers/"+name, nil, nil))
		}
		require.NoError(t, r.call(t.Context(), http.MethodDelete, "/v1/buses/"+r.bus(), nil, nil))
		require.NoError(t, bounded(t.Context(), r.stop))
	})
	t.Run("pigeonhole", func(t *testing.T) {
		servers["KAFKA_BROKERS"], servers["RABBITMQ_URL"] = strings.Join(stack.Kafka(t).Brokers(), ","), stack.RabbitMQ(t).URL()
		r := killAndCompare(t, pigeonholeFlow(), servers)
		require.NoError(t, bounded(t.Context(), r.stop))
	})
}

// killAndCompare returns the flow, which still runs.
func killAndCompare(t *testing.T, f flow, servers map[string]string) running {
	t.Helper()
	root, err := moduleRoot(t.Context())
	require.NoError(t, err)
	screen := &probe{Screen: display.NewLines(io.Discard), panel: f.panels[0]}
	env := &environment{root: root, dir: t.TempDir(), servers: servers, run: strconv.FormatInt(time.Now().UnixNano(), 36), screen: screen, ports: new(ports), first: newFirstData(screen)}
	env.binaries = newBinaries(env.dir, []flow{f})
	env.binaries.build(t.Context(), root)
	r, err := f.start(t.Context(), env)
	if r != nil {
		t.Cleanup(func() { _ = bounded(context.Background(), r.stop) }) // after a failure
	}
	require.NoError(t, err)

	ctx, stop := context.WithCancel(t.Context())
	watched := make(chan error, 1)
	go func() { watched <- r.watch(ctx) }()
	control := screen.control
	sent := int64(0)
	await := func(what string, ready func(display.Figures) bool) {
		t.Helper()
		deadline := time.After(patience)
		for {
			select {
			case err := <-watched:
				require.NoError(t, err, what)
				require.Fail(t, "it ended", what)
			case <-deadline:
				require.Fail(t, what, "%+v", screen.figures())
			case <-time.After(50 * time.Millisecond): // the next look
			}
			if f := screen.figures(); f.Sent != nil && f.Missing != nil && ready(f) {
				sent = *f.Sent
				return
			}
		}
	}
	for range 2 {
		await("nothing flows", func(f display.Figures) bool { return f.Arrived > sent+20 })
		require.NoError(t, control.Kill())
		require.NoError(t, control.Again())
		await("does not run again", func(display.Figures) bool { return control.State().Phase == display.Up })
	}
	await("not all that was sent while it was killed has arrived", func(f display.Figures) bool { return f.Arrived > sent+20 && *f.Missing == 0 })
	stop()
	require.ErrorIs(t, <-watched, context.Canceled)
	return r
}

// probe is a display that is asked for the figures of one panel, and draws nothing.
type probe struct {
	display.Screen
	panel   string
	control display.Controlled

	mu  sync.Mutex
	ask func() display.Figures
}

func (p *probe) Status(panel string, ask func() display.Figures) {
	if panel == p.panel {
		p.mu.Lock()
		p.ask = ask
		p.mu.Unlock()
	}
}

func (p *probe) Control(panel string, by display.Controlled) {
	if panel == p.panel {
		p.control = by
	}
}

func (p *probe) figures() display.Figures {
	p.mu.Lock()
	ask := p.ask
	p.mu.Unlock()
	if ask == nil {
		return display.Figures{}
	}
	return ask()
}
