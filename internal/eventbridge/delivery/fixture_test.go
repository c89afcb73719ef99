package delivery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/store"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/storetest"
	"github.com/aviaryhq/aviary/internal/eventbridge/target"
	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack"
)

const busName = "orders"

// fixture is a namespace of a real Pulsar with one bus, whose subscribers' targets are the test's.
type fixture struct {
	t      testing.TB
	client *messaging.Client
	topics model.Topics
	store  *registry
	bus    model.Bus
	rev    int64

	counter *counter        // of a benchmark; nil: none
	factory *target.Factory // of real targets, in place of the test's; nil: none

	mu      sync.Mutex
	targets map[string]*fakeTarget
}

// registry is a store that takes states.
type registry struct {
	*storetest.Store
	w *fixture
}

func (s *registry) ChangeState(_ context.Context, bus, name string, state model.State, reason string, c store.Condition) (*model.Subscriber, error) {
	now := s.Snapshot()
	changed := *now.Subscriber(bus, name)
	if c.Revision != changed.Revision {
		return nil, model.ErrConflict
	}
	changed.State, changed.Reason, changed.Revision = state, reason, 0
	go s.w.put(changed)
	return &changed, nil
}

func newFixture(t testing.TB, partitions int, subs ...model.Subscriber) *fixture {
	t.Helper()
	return newFixtureOn(t, stack.Pulsar(t), partitions, subs...)
}

func newFixtureOn(t testing.TB, server *stack.PulsarServer, partitions int, subs ...model.Subscriber) *fixture {
	t.Helper()
	w := &fixture{
		t: t, topics: model.Topics{Namespace: server.Namespace(t)}, targets: make(map[string]*fakeTarget),
		bus: model.Bus{Name: busName, Partitions: partitions, Created: time.Now(), DedupWindow: model.Duration(10 * time.Minute)},
	}
	w.client = w.dial(messaging.Config{URL: server.URL(), AdminURL: server.AdminURL()})
	client := w.client
	w.store = &registry{storetest.NewStore(storetest.Snapshot(t, 0, []model.Bus{w.bus}, nil)), w}
	maker := store.NewPulsar(client, w.topics, true)
	require.EventuallyWithT(t, func(c *assert.CollectT) { // a busy broker may lose its bookie for a moment
		assert.NoError(c, maker.MakeBus(t.Context(), &w.bus))
	}, await.Patience, 10*time.Millisecond)
	for _, s := range subs {
		w.put(s)
	}
	return w
}

func (w *fixture) dial(cfg messaging.Config) *messaging.Client {
	w.t.Helper()
	client, err := messaging.Dial(w.t.Context(), cfg, messaging.WithLogger(zaptest.NewLogger(w.t, zaptest.Level(zap.ErrorLevel))))
	require.NoError(w.t, err)
	w.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), await.Patience)
		defer cancel()
		_ = client.Close(ctx)
	})
	return client
}

// put adds a subscriber, or changes it.
func (w *fixture) put(s model.Subscriber) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rev++
	s.Bus, s.UID, s.Revision = busName, "u-"+s.Name, w.rev
	all := []model.Subscriber{s}
	for old := range w.store.Snapshot().Subscribers(busName) {
		if old.Name != s.Name {
			all = append(all, *old)
		} else if old != nil {
			s.Created = old.Created
		}
	}
	if len(all) > 0 && w.store.Snapshot().Subscriber(busName, s.Name) == nil {
		require.NoError(w.t, store.NewPulsar(w.client, w.topics, true).MakeSubscriber(w.t.Context(), &w.bus, &s))
	}
	w.store.Set(storetest.Snapshot(w.t, w.rev, []model.Bus{w.bus}, all))
}

func (w *fixture) sub(name string) *model.Subscriber {
	return w.store.Snapshot().Subscriber(busName, name)
}

func newSubscriber(name string, order model.Order) model.Subscriber {
	s := model.Subscriber{
		Name: name, Order: order, State: model.Active, Target: model.Target{Log: &model.LogTarget{}},
		Rules: []model.Rule{{Name: "all", Pattern: json.RawMessage(`{"specversion":["1.0"]}`)}},
	}
	s.Delivery.Retry = model.Retry{MaxAttempts: 16, Schedule: []model.Duration{model.Duration(50 * time.Millisecond)}}
	return s
}

// nextMillisecond waits until the clock shows another one, and returns its beginning: times at which
// messages were published are milliseconds.
func nextMillisecond() time.Time {
	for begun := time.Now().Truncate(time.Millisecond); ; time.Sleep(100 * time.Microsecond) { // polling a condition
		if now := time.Now().Truncate(time.Millisecond); now.After(begun) {
			return now
		}
	}
}

// fakeTarget answers as the test says, and notes what it has got.
type fakeTarget struct {
	answer func(ctx context.Context, d target.Delivery) target.Result
	whole  func(batch []target.Delivery) target.Result // of each event of a batch, in place of answer; nil: none

	mu    sync.Mutex
	got   []string // ids that were delivered, in their order
	asked map[string][]time.Time
	sizes []int // of batches
}

// target has the subscriber's events answered by answer, and without it delivered.
func (w *fixture) target(name string, answer func(ctx context.Context, d target.Delivery) target.Result) *fakeTarget {
	w.mu.Lock()
	defer w.mu.Unlock()
	if answer == nil {
		answer = func(context.Context, target.Delivery) target.Result { return target.Result{Verdict: target.Delivered} }
	}
	f := &fakeTarget{answer: answer, asked: make(map[string][]time.Time)}
	w.targets[name] = f
	return f
}

// New makes the fixture a Targets.
func (w *fixture) New(s *model.Subscriber) (target.Target, error) {
	if w.counter != nil {
		return w.counter, nil
	}
	if w.factory != nil {
		return w.factory.New(s)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.targets[s.Name] == nil {
		return nil, errors.New("no target")
	}
	return w.targets[s.Name], nil
}

func (f *fakeTarget) Deliver(ctx context.Context, batch []target.Delivery) []target.Result {
	results := make([]target.Result, len(batch))
	for i, d := range batch {
		f.mu.Lock()
		f.asked[d.Event.ID] = append(f.asked[d.Event.ID], time.Now())
		f.mu.Unlock()
		if f.whole != nil {
			results[i] = f.whole(batch)
		} else {
			results[i] = f.answer(ctx, d)
		}
		if results[i].Verdict == target.Delivered {
			f.mu.Lock()
			f.got = append(f.got, d.Event.ID)
			f.mu.Unlock()
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sizes = append(f.sizes, len(batch))
	return results
}

func (f *fakeTarget) Close(context.Context) error { return nil }

func (f *fakeTarget) delivered() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.got...)
}

// draw returns a number below n for the present attempt of an event. The number depends on the seed,
// the event and which attempt it is, and not on what else is delivered.
func (f *fakeTarget) draw(seed uint64, id string, n int) int {
	h := fnv.New64a()
	_, _ = fmt.Fprint(h, id, "\n", len(f.attemptsAt(id)))
	return rand.New(rand.NewPCG(seed, h.Sum64())).IntN(n)
}

func (f *fakeTarget) attemptsAt(id string) []time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]time.Time(nil), f.asked[id]...)
}

// processor runs one until the test ends, or stop is called.
func (w *fixture) processor(cfg Config) (p *Processor, stop func()) {
	w.t.Helper()
	return w.processorOf(w.client, cfg)
}

func (w *fixture) processorOf(client *messaging.Client, cfg Config) (p *Processor, stop func()) {
	w.t.Helper()
	require.NoError(w.t, cfg.Validate())
	known := &fleet{active: true}
	known.join("alone")
	p = New(Options{
		Client: client, Source: w.store, Topics: w.topics, Targets: w, Config: cfg, Instance: "alone", Instances: known,
		Log: zaptest.NewLogger(w.t), Metrics: prometheus.NewRegistry(),
	})
	return p, w.run(p)
}

// run runs a processor or an engine until stop is called or the test ends.
func (w *fixture) run(p interface {
	Run(ctx context.Context) error
}) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(w.t, <-ended)
	})
	w.t.Cleanup(stop)
	return stop
}

func testConfig() Config { return DefaultConfig() }

func testEvent(id, kind, key string) []byte {
	k := ""
	if key != "" {
		k = fmt.Sprintf(`"partitionkey":%q,`, key)
	}
	return fmt.Appendf(nil, `{"specversion":"1.0","id":%q,"source":"/test","type":%q,%s"data":{}}`, id, kind, k)
}

// send stores events in a subscriber's send topic, as the engine does.
func (w *fixture) send(name, key string, ids ...string) {
	w.t.Helper()
	profile := messaging.Business()
	profile.BatchRecords, profile.Compression = 1, messaging.NoCompression // as the engine does by default
	p, err := w.client.Publisher(w.t.Context(), w.topics.Send(w.sub(name)), profile)
	require.NoError(w.t, err)
	defer func() { _ = p.Close(context.Background()) }()
	failed := make(chan error, len(ids))
	for _, id := range ids {
		p.PublishAsync(w.t.Context(), &messaging.Record{Key: key, Payload: testEvent(id, "a", key)}, func(_ messaging.MessageID, err error) { failed <- err })
	}
	for range ids {
		require.NoError(w.t, <-failed)
	}
}

// numbered returns n ids.
func numbered(prefix string, n int) (ids []string) {
	for i := range n {
		ids = append(ids, fmt.Sprint(prefix, i))
	}
	return ids
}

// eventually waits for a condition.
func (w *fixture) eventually(what string, condition func() bool) {
	w.t.Helper()
	require.Eventually(w.t, condition, await.Patience, 10*time.Millisecond, what)
}

// counts waits until a count is reached. The time begins anew with all progress.
func (w *fixture) counts(what string, want int, count func() int) {
	w.t.Helper()
	for last, progress := -1, time.Now(); ; time.Sleep(10 * time.Millisecond) { // polling a condition
		n := count()
		if n >= want {
			return
		}
		if n != last {
			last, progress = n, time.Now()
		}
		if time.Since(progress) > await.Patience {
			w.t.Fatalf("%s: %d of %d", what, n, want)
		}
	}
}

// gets waits until a target has exactly the events of ids, in any order.
func (w *fixture) gets(f *fakeTarget, ids []string) {
	w.t.Helper()
	w.counts("all are delivered", len(ids), func() int { return len(f.delivered()) })
	require.ElementsMatch(w.t, ids, f.delivered())
}

// deadLetters returns what was given up.
func (w *fixture) deadLetters(name string) (deadLetters []messaging.DeadLetter) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), await.Patience)
	defer cancel()
	r, err := w.client.Reader(ctx, messaging.ReaderConfig{Topic: w.topics.DeadLetter(w.sub(name)), MaxMessageBytes: 4 << 10})
	require.NoError(w.t, err)
	defer func() { _ = r.Close(ctx) }()
	_, err = r.ReadToEnd(ctx, func(_ context.Context, d *messaging.Delivery) error {
		deadLetter, ok := d.DeadLetter()
		require.True(w.t, ok)
		deadLetters = append(deadLetters, deadLetter)
		return nil
	})
	require.NoError(w.t, err)
	return deadLetters
}
