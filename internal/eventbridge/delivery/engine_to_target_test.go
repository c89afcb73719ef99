package delivery

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zaptest"

	"github.com/aviaryhq/aviary/internal/eventbridge/engine"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/store"
	"github.com/aviaryhq/aviary/internal/eventbridge/target"
	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/e2e/eventbridge/soak"
	"github.com/aviaryhq/aviary/test/proxy"
)

// engine runs one until the test ends, or stop is called.
func (w *fixture) engine(client *messaging.Client) (stop func()) {
	w.t.Helper()
	cfg := engine.DefaultConfig()
	return w.run(engine.New(engine.Options{
		Client: client, Source: w.store, Topics: w.topics, Maker: store.NewPulsar(w.client, w.topics, true), Config: cfg,
		Log: zaptest.NewLogger(w.t), Metrics: engine.NewMetrics(prometheus.NewRegistry()),
	}))
}

// Events go the whole way while engines and processors are cut off, stopped and begun again, and
// targets fail: each comes, and subscribers with an order see the newest state of each key last.
func TestEngineToTargetUnderFaults(t *testing.T) {
	t.Parallel()
	seed := soak.Seed(t)
	url, server, line := proxy.Pulsar(t)
	w := newFixtureOn(t, server, 2, newSubscriber("any", model.OrderNone), newSubscriber("group", model.OrderGroup), newSubscriber("single", model.OrderGroup))
	require.NoError(t, w.client.Namespace(w.topics.Namespace).SetDeduplication(t.Context(), true))
	targets := map[string]*fakeTarget{}
	for _, name := range []string{"any", "group", "single"} {
		targets[name] = w.target(name, func(_ context.Context, d target.Delivery) target.Result {
			if targets[name].draw(seed, d.Event.ID, 20) == 0 {
				return retryResult()
			}
			return delivered()
		})
	}
	cut := w.dial(messaging.Config{URL: url, ListenerName: proxy.Listener})
	w.engine(cut)
	w.processorOf(cut, testConfig())
	other := w.dial(messaging.Config{URL: server.URL()})
	stopEngine := w.engine(other)
	_, stopProcessor := w.processorOf(other, testConfig())

	in, err := w.client.Publisher(t.Context(), w.topics.Events(busName), messaging.Business())
	require.NoError(t, err)
	ctx, end := context.WithCancel(t.Context())
	defer end()
	last := map[string]int{}
	var loading sync.WaitGroup
	loading.Go(func() {
		keys := rand.New(rand.NewPCG(seed, 0))
		for ctx.Err() == nil {
			key := fmt.Sprint("k", keys.IntN(9))
			last[key]++
			id := fmt.Sprint(key, "-", last[key])
			assert.NoError(t, in.Publish(context.WithoutCancel(ctx), &messaging.Record{Key: key, Payload: testEvent(id, "a", key)}))
			time.Sleep(3 * time.Millisecond) // the sender's pace
		}
	})
	lasts := soak.Lasting(t, 1500*time.Millisecond, func(time.Duration) time.Duration { return 3 * time.Second })
	for range soak.Rounds(t, 1, 10) { // the load between faults
		time.Sleep(lasts / 2)
		line.Cut()
		time.Sleep(lasts)
		require.NoError(t, line.Restore())
		time.Sleep(lasts / 2)
		stopEngine()
		stopProcessor()
		time.Sleep(lasts / 3)
		stopEngine = w.engine(other)
		_, stopProcessor = w.processorOf(other, testConfig())
	}
	time.Sleep(lasts / 3)
	end()
	loading.Wait()
	total := 0
	for _, n := range last {
		total += n
	}
	for name, f := range targets {
		came := func() map[string]bool {
			all := map[string]bool{}
			for _, id := range f.delivered() {
				all[id] = true
			}
			return all
		}
		w.counts(name, total, func() int { return len(came()) })
		require.Len(t, came(), total)
		require.Empty(t, w.deadLetters(name))
		if name != "any" { // the first delivery of each is in the order, and the newest comes last
			first, newest := map[string]int{}, map[string]string{}
			seen := map[string]bool{}
			for _, id := range f.delivered() {
				key, number, _ := strings.Cut(id, "-")
				newest[key] = number
				if !seen[id] {
					seen[id] = true
					first[key]++
					require.Equal(t, fmt.Sprint(first[key]), number, "%s: the first deliveries of %s", name, key)
				}
			}
			for key, n := range last {
				assert.Equal(t, fmt.Sprint(n), newest[key], "%s: the last delivery of %s is the newest", name, key)
			}
		}
		t.Logf("%s: %d events, %d deliveries", name, total, len(f.delivered()))
	}
}
