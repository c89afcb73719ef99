package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/store"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/storetest"
	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack"
)

// fixture is a namespace of a real Pulsar with one bus.
type fixture struct {
	t      *testing.T
	client *messaging.Client
	server *stack.PulsarServer
	topics model.Topics
	store  *storetest.Store
	bus    model.Bus
	subs   []model.Subscriber
	rev    int64
	in     *messaging.Publisher
}

const busName = "orders"

func newFixture(t *testing.T, server *stack.PulsarServer, partitions int, subs ...model.Subscriber) *fixture {
	t.Helper()
	ns := server.Namespace(t)
	w := &fixture{t: t, server: server, topics: model.Topics{Namespace: ns}}
	w.client = w.dial(messaging.Config{URL: server.URL(), AdminURL: server.AdminURL()})
	require.NoError(t, w.client.Namespace(ns).SetDeduplication(t.Context(), true))
	w.bus = model.Bus{
		Name: busName, Partitions: partitions, Created: time.Now(), DedupWindow: model.Duration(10 * time.Minute),
	}
	w.store = storetest.NewStore(storetest.Snapshot(t, 0, nil, nil))
	w.set(subs...)
	return w
}

func (w *fixture) dial(cfg messaging.Config) *messaging.Client {
	w.t.Helper()
	client, err := messaging.Dial(w.t.Context(), cfg, messaging.WithLogger(zaptest.NewLogger(w.t, zaptest.Level(zap.WarnLevel))))
	require.NoError(w.t, err)
	w.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), await.Patience)
		defer cancel()
		_ = client.Close(ctx)
	})
	return client
}

// set makes subs the subscribers of the bus. Those without a revision get the next one.
func (w *fixture) set(subs ...model.Subscriber) {
	w.t.Helper()
	w.rev++
	w.subs = subs
	for i := range subs {
		subs[i].Bus = busName
		if subs[i].UID == "" {
			subs[i].UID = "u-" + subs[i].Name
		}
		if subs[i].Revision == 0 {
			subs[i].Revision = w.rev
		}
	}
	s := storetest.Snapshot(w.t, w.rev, []model.Bus{w.bus}, subs)
	maker := store.NewPulsar(w.client, w.topics, true)
	require.NoError(w.t, maker.MakeBus(w.t.Context(), &w.bus))
	for i := range subs {
		require.NoError(w.t, maker.MakeSubscriber(w.t.Context(), &w.bus, &subs[i]))
	}
	w.store.Set(s)
}

// engine runs an engine until the test ends, or stop is called.
func (w *fixture) engine(client *messaging.Client, cfg Config) (e *Engine, stop func()) {
	w.t.Helper()
	require.NoError(w.t, cfg.Validate())
	e = New(Options{
		Client: client, Source: w.store, Topics: w.topics, Maker: store.NewPulsar(w.client, w.topics, true), Config: cfg,
		Log: zaptest.NewLogger(w.t), Metrics: NewMetrics(prometheus.NewRegistry()),
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			cancel()
			require.NoError(w.t, <-ended)
		}
	}
	w.t.Cleanup(stop)
	return e, stop
}

// newSubscriber makes one whose rules have the given patterns.
func newSubscriber(name string, order model.Order, patterns ...string) model.Subscriber {
	s := model.Subscriber{Name: name, Order: order, State: model.Active, Target: model.Target{Log: &model.LogTarget{}}}
	s.Delivery.Retry.MaxAttempts = 16
	for i, p := range patterns {
		s.Rules = append(s.Rules, model.Rule{Name: fmt.Sprintf("r%d", i), Pattern: json.RawMessage(p)})
	}
	return s
}

// testEvent is an event of the given type, whose data say where it stands among those of its key.
func testEvent(id, kind, key string, n int) []byte {
	k := ""
	if key != "" {
		k = fmt.Sprintf(`"partitionkey":%q,`, key)
	}
	return fmt.Appendf(nil, `{"specversion":"1.0","id":%q,"source":"/test","type":%q,%s"data":{"n":%d}}`, id, kind, k, n)
}

// publisher publishes to a bus as the preprocessor does.
func (w *fixture) publisher() *messaging.Publisher {
	w.t.Helper()
	if w.in == nil {
		var err error
		w.in, err = w.client.Publisher(w.t.Context(), w.topics.Events(busName), messaging.Business())
		require.NoError(w.t, err)
	}
	return w.in
}

func (w *fixture) publish(id, kind, key string, n int) {
	w.t.Helper()
	k := key
	if k == "" {
		k = "/test\n" + id
	}
	err := w.publisher().Publish(w.t.Context(), &messaging.Record{Key: k, Payload: testEvent(id, kind, key, n)})
	require.NoError(w.t, err)
}

// publishAll publishes events side by side, in their order, and waits until they are stored.
func (w *fixture) publishAll(records []*messaging.Record) {
	w.t.Helper()
	failed := make(chan error, len(records))
	for _, r := range records {
		w.publisher().PublishAsync(w.t.Context(), r, func(_ messaging.MessageID, err error) { failed <- err })
	}
	for range records {
		require.NoError(w.t, <-failed)
	}
}

// read returns what a topic holds, each partition in its order.
func (w *fixture) read(topic string) (all []*messaging.Delivery) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), await.Patience)
	defer cancel()
	r, err := w.client.Reader(ctx, messaging.ReaderConfig{Topic: topic, MaxMessageBytes: 4 << 10})
	require.NoError(w.t, err)
	defer func() { _ = r.Close(ctx) }()
	_, err = r.ReadToEnd(ctx, func(_ context.Context, d *messaging.Delivery) error {
		all = append(all, d)
		return nil
	})
	require.NoError(w.t, err)
	return all
}

// acknowledged waits until the engines have acknowledged all events. The time begins anew with all
// progress.
func (w *fixture) acknowledged() {
	w.t.Helper()
	s := w.client.Topic(w.topics.Events(busName)).Subscription(model.EngineSubscription)
	for least, progress := int64(math.MaxInt64), time.Now(); ; time.Sleep(20 * time.Millisecond) { // polling a condition
		n, err := s.Backlog(w.t.Context())
		if err == nil && n == 0 {
			return
		}
		if err == nil && n < least {
			least, progress = n, time.Now()
		}
		if time.Since(progress) > await.Patience {
			w.t.Fatalf("%d events are not acknowledged: %v", n, err)
		}
	}
}

func (w *fixture) sub(name string) *model.Subscriber {
	return w.store.Snapshot().Subscriber(busName, name)
}
