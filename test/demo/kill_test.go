package main

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/demo/display"
	"github.com/aviaryhq/aviary/test/stack"
)

// TestNothingIsLostByKilling: on real servers a service is killed twice while data flow, and the
// demo starts it again. All that was sent arrives, and the flow goes on.
func TestNothingIsLostByKilling(t *testing.T) {
	pulsar := stack.Pulsar(t)
	servers := map[string]string{"PULSAR_URL": pulsar.URL(), "PULSAR_ADMIN_URL": pulsar.AdminURL()}
	t.Run("eventbridge", func(t *testing.T) {
		r := killAndCompare(t, eventbridgeFlow(), servers, func(r running) *service { return r.(*eventbridge).service }).(*eventbridge)
		for name := range hookOf { // the server is shared
			require.NoError(t, r.call(t.Context(), http.MethodDelete, "/v1/buses/"+r.bus()+"/subscribers/"+name, nil, nil))
		}
		require.NoError(t, r.call(t.Context(), http.MethodDelete, "/v1/buses/"+r.bus(), nil, nil))
		require.NoError(t, bounded(t.Context(), r.stop))
	})
	t.Run("pigeonhole", func(t *testing.T) {
		servers["KAFKA_BROKERS"], servers["RABBITMQ_URL"] = strings.Join(stack.Kafka(t).Brokers(), ","), stack.RabbitMQ(t).URL()
		r := killAndCompare(t, pigeonholeFlow(), servers, func(r running) *service { return r.(*pigeonhole).service })
		require.NoError(t, bounded(t.Context(), r.stop))
	})
}

// killAndCompare returns the flow, which still runs.
func killAndCompare(t *testing.T, f flow, servers map[string]string, serviceOf func(running) *service) running {
	t.Helper()
	root, err := moduleRoot(t.Context())
	require.NoError(t, err)
	screen := display.New(io.Discard)
	env := &environment{
		root: root, dir: t.TempDir(), servers: servers, run: strconv.FormatInt(time.Now().UnixNano(), 36),
		screen: screen, restarts: true, ports: &ports{screen: screen}, first: newFirstData(screen),
	}
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
	s := serviceOf(r)
	figures := r.(interface{ figures() display.Figures }).figures
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
				require.Fail(t, what, "%+v", figures())
			case <-time.After(50 * time.Millisecond): // the next look
			}
			if f := figures(); f.Sent != nil && f.Missing != nil && ready(f) {
				sent = *f.Sent
				return
			}
		}
	}
	for range 2 {
		await("nothing flows", func(f display.Figures) bool { return f.Arrived > sent+20 })
		run := s.run()
		require.NoError(t, s.current().kill())
		await("does not run again", func(display.Figures) bool { return s.run() > run })
	}
	await("not all that was sent while it was killed has arrived", func(f display.Figures) bool { return f.Arrived > sent+20 && *f.Missing == 0 })
	stop()
	require.ErrorIs(t, <-watched, context.Canceled)
	return r
}
