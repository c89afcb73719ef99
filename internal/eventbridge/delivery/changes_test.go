package delivery

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"
	"go.uber.org/zap/zaptest/observer"

	"github.com/aviaryhq/aviary/internal/eventbridge/event"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/store"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/storetest"
	"github.com/aviaryhq/aviary/internal/eventbridge/target"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// remove deletes all subscribers.
func (w *fixture) remove() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rev++
	w.store.Set(storetest.Snapshot(w.t, w.rev, []model.Bus{w.bus}, nil))
}

// keepOnly deletes all subscribers but one.
func (w *fixture) keepOnly(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rev++
	w.store.Set(storetest.Snapshot(w.t, w.rev, []model.Bus{w.bus}, []model.Subscriber{*w.store.Snapshot().Subscriber(busName, name)}))
}

func (p *Processor) worker(subscriber string) *worker {
	w, _ := p.find(busName, subscriber)
	return w
}

// testWorker is a worker of a processor that does not run.
func testWorker(t *testing.T, s *model.Subscriber, to target.Target) *worker {
	t.Helper()
	p := New(Options{Config: testConfig(), Source: &registry{Store: storetest.NewStore(storetest.Snapshot(t, 0, nil, nil))}, Log: zaptest.NewLogger(t), Metrics: prometheus.NewRegistry()})
	w := p.newWorker(t.Context(), s, &attempts{})
	t.Cleanup(w.stop)
	w.target = to
	return w
}

// A change of rules is nothing to deliveries: what is held for another attempt keeps its attempts,
// and the breaker its state. A change of how to deliver begins anew, behind the end of what works
// at present.
func TestWhatAChangeBeginsAnew(t *testing.T) {
	t.Parallel()
	s := newSubscriber("s", model.OrderGroup)
	w := newFixture(t, 1, s)
	entered, leave := make(chan struct{}, 10), make(chan struct{})
	var inFlight, most atomic.Int64
	w.target("s", func(context.Context, target.Delivery) target.Result {
		most.Store(max(most.Load(), inFlight.Add(1)))
		defer inFlight.Add(-1)
		entered <- struct{}{}
		<-leave
		return delivered()
	})
	p, _ := w.processor(testConfig())
	w.send("s", "k", "one")
	<-entered
	first := p.worker("s")
	changed := *w.sub("s")
	changed.Rules = []model.Rule{{Name: "other", Pattern: []byte(`{"type":["a"]}`)}}
	changed.Description = "other rules"
	w.put(changed)
	assert.Same(t, first, p.worker("s"))
	assert.Equal(t, w.rev, first.revision.Load())

	// It is paused, and resumed at once: what is under way ends first.
	changed.State = model.Paused
	w.put(changed)
	require.Nil(t, p.worker("s"))
	changed.State = model.Active
	w.put(changed)
	second := p.worker("s")
	require.NotSame(t, first, second)
	w.send("s", "other", "two")
	select {
	case <-entered:
		t.Fatal("two workers deliver to one subscriber")
	case <-time.After(300 * time.Millisecond):
	}
	close(leave)
	<-entered
	<-first.done
	assert.EqualValues(t, 1, most.Load())
}

// Metrics are there from the beginning, say what is known, and end with their subscriber, also with
// one that was paused.
func TestMetricsFollowTheSubscriber(t *testing.T) {
	t.Parallel()
	s := newSubscriber("s", model.OrderNone)
	s.Delivery.Retry.Schedule = []model.Duration{model.Duration(3 * time.Second)}
	w := newFixture(t, 1, s)
	var fails, refuses atomic.Bool
	fails.Store(true)
	f := w.target("s", func(context.Context, target.Delivery) target.Result {
		if refuses.Load() {
			return target.Result{Verdict: target.Refused, Err: errors.New("no")}
		}
		if fails.Load() {
			return retryResult()
		}
		return delivered()
	})
	p, _ := w.processor(testConfig())
	for _, outcome := range outcomes() {
		assert.Zero(t, testutil.ToFloat64(p.metrics.deliveries.WithLabelValues(busName, "s", outcome)))
	}
	assert.Equal(t, len(outcomes()), testutil.CollectAndCount(p.metrics.deliveries))

	// An event that waits for another attempt has its age.
	before := time.Now().Truncate(time.Millisecond)
	w.send("s", "", "e")
	stored := time.Now()
	w.eventually("it has failed", func() bool { return len(f.attemptsAt("e")) == 1 })
	var b Backlog
	w.eventually("its copy waits", func() bool {
		var err error
		b, err = p.Backlog(t.Context(), busName, "s")
		return err == nil && b.Events == 1 && !b.Oldest.IsZero()
	})
	assert.False(t, b.Oldest.Before(before) || b.Oldest.After(stored), "it is as old as the original: %s", b.Oldest)
	fails.Store(false)
	w.gets(f, []string{"e"})
	refuses.Store(true)
	w.send("s", "", "bad")
	w.eventually("there is a dead letter", func() bool {
		b, err := p.Backlog(t.Context(), busName, "s")
		return err == nil && b.DeadLetters == 1
	})

	old := w.sub("s")
	paused := *old
	paused.State = model.Paused
	w.put(paused)
	w.remove()
	all := func() int {
		return testutil.CollectAndCount(p.metrics.deliveries) + testutil.CollectAndCount(p.metrics.breaker)
	}
	w.eventually("they are removed", func() bool { return all() == 0 })
}

// A subscriber that cannot be consumed is unhealthy; one that another instance delivers to is not.
func TestUnhealthySubscribersAreCounted(t *testing.T) {
	t.Parallel()
	w := newFixture(t, 1, newSubscriber("total", model.OrderTotal), newSubscriber("broken", model.OrderNone))
	w.target("total", nil)
	w.target("broken", nil)
	// Its subscription is another one's, and of another type.
	cfg := messaging.DefaultConsumerConfig()
	cfg.Topics, cfg.Subscription, cfg.Type = []string{w.topics.Send(w.sub("broken"))}, model.DeliverSubscription, messaging.Exclusive
	other, err := w.client.Consumer(cfg)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- other.Run(ctx, func(context.Context, *messaging.Delivery) error { return nil }) }()
	w.send("broken", "", "e")
	w.eventually("the other one consumes", func() bool {
		n, err := w.client.Topic(cfg.Topics[0]).Subscription(cfg.Subscription).Backlog(t.Context())
		return err == nil && n == 0
	})
	one, _ := w.processor(testConfig())
	w.send("total", "", "e")
	w.eventually("one delivers", func() bool { return len(w.targets["total"].delivered()) == 1 })
	two, _ := w.processor(testConfig())
	w.eventually("one is unhealthy", func() bool { return one.unhealthy() == 1 && two.unhealthy() == 1 })
	assert.NotEmpty(t, one.Status(busName, "broken").Unhealthy)
	w.eventually("one of them stands by", func() bool {
		return one.Status(busName, "total").StandsBy != two.Status(busName, "total").StandsBy
	})
	assert.Empty(t, one.Status(busName, "total").Unhealthy+two.Status(busName, "total").Unhealthy)
	cancel()
	require.NoError(t, <-done)
	w.eventually("it is over", func() bool { return one.unhealthy() == 0 && two.unhealthy() == 0 })
}

// Whoever delivers nothing because others have all partitions says so, until one of them goes.
func TestWhoHasNoPartitionStandsBy(t *testing.T) {
	t.Parallel()
	w := newFixture(t, 1, newSubscriber("group", model.OrderGroup), newSubscriber("total", model.OrderTotal), newSubscriber("none", model.OrderNone))
	names := []string{"group", "total", "none"}
	for _, name := range names {
		w.target(name, func(context.Context, target.Delivery) target.Result { return delivered() })
	}
	one, stop := w.processor(testConfig())
	for _, name := range names {
		w.send(name, "k", name)
		w.eventually("one delivers to "+name, func() bool { return len(w.targets[name].delivered()) == 1 })
	}
	two, _ := w.processor(testConfig())
	for _, name := range []string{"group", "total"} {
		w.eventually(name+": one of them stands by", func() bool {
			a, b := one.Status(busName, name), two.Status(busName, name)
			return a.StandsBy != b.StandsBy && a.Delivering && b.Delivering && a.Unhealthy == "" && b.Unhealthy == ""
		})
	}
	assert.False(t, one.Status(busName, "none").StandsBy || two.Status(busName, "none").StandsBy, "all share it")
	stop()
	for _, name := range names {
		w.eventually(name+": the other one delivers", func() bool { s := two.Status(busName, name); return s.Delivering && !s.StandsBy })
	}
}

// 410 of what the subscriber was before a change does not disable what it is now.
func TestGoneIsSaidOfOneRevision(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSubscriber("s", model.OrderNone)
		s.Bus, s.UID, s.Revision = busName, "u-s", 2
		now := storetest.Snapshot(t, 2, []model.Bus{{Name: busName, Partitions: 1}}, []model.Subscriber{s})
		asked := &conditions{Store: storetest.NewStore(now)}
		ctx, stop := context.WithCancel(t.Context())
		w := &worker{p: &Processor{source: asked}, sub: now.Subscriber(busName, "s"), log: zaptest.NewLogger(t), ctx: ctx}
		w.revision.Store(1)
		go w.disable(errors.New("410 Gone"))
		time.Sleep(time.Second)
		synctest.Wait()
		assert.False(t, asked.disabled.Load())
		assert.NoError(t, w.Unhealthy())
		w.revision.Store(2) // other rules, and no other target
		time.Sleep(10 * time.Second)
		synctest.Wait()
		assert.True(t, asked.disabled.Load())
		stop()
	})
}

// conditions is a registry that minds revisions.
type conditions struct {
	*storetest.Store
	disabled atomic.Bool
}

func (c *conditions) ChangeState(_ context.Context, bus, name string, state model.State, _ string, as store.Condition) (*model.Subscriber, error) {
	s := c.Snapshot().Subscriber(bus, name)
	if as.Revision != s.Revision {
		return nil, model.ErrConflict
	}
	c.disabled.Store(state == model.Disabled)
	return s, nil
}

// short is a target that does not say what became of each event.
type short struct{ asked chan struct{} }

func (s short) Deliver(context.Context, []target.Delivery) []target.Result {
	s.asked <- struct{}{}
	return nil
}
func (short) Close(context.Context) error { return nil }

func TestResultsThatAreMissing(t *testing.T) {
	s := newSubscriber("s", model.OrderNone)
	s.Delivery.Breaker = model.Breaker{Failures: 1, Probe: model.Duration(time.Minute)}
	w := testWorker(t, &s, short{make(chan struct{}, 1)})
	results := w.deliver(t.Context(), t.Context(), make([]target.Delivery, 3))
	require.Len(t, results, 3)
	for _, r := range results {
		assert.Equal(t, target.Retry, r.Verdict)
		assert.ErrorContains(t, r.Err, "0 results for 3 events")
	}
	state, _ := w.breaker.now()
	assert.Equal(t, BreakerClosed, state, "that says nothing about the target")
}

// The log says why the breaker opened, unless the target has asked to wait.
func TestTheBreakerSaysWhyItOpens(t *testing.T) {
	s := newSubscriber("s", model.OrderNone)
	s.Delivery.Breaker = model.Breaker{Failures: 1, Probe: model.Duration(time.Minute)}
	core, logs := observer.New(zap.WarnLevel)
	for wait, lines := range map[time.Duration]int{0: 1, time.Minute: 0} {
		away := answers{Err: errors.New("no answer within 10s"), Unavailable: true, RetryAfter: wait}
		w := testWorker(t, &s, away)
		w.log = zap.New(core)
		w.deliver(t.Context(), t.Context(), make([]target.Delivery, 1))
		state, _ := w.breaker.now()
		assert.Equal(t, BreakerOpen, state)
		logged := logs.TakeAll()
		require.Len(t, logged, lines)
		for _, line := range logged {
			assert.Equal(t, "the breaker is open: deliveries wait until a probe succeeds", line.Message)
			assert.Equal(t, "no answer within 10s", line.ContextMap()["error"])
		}
	}
}

// answers is a target with the same result for each event.
type answers target.Result

func (a answers) Deliver(_ context.Context, batch []target.Delivery) []target.Result {
	return slices.Repeat([]target.Result{target.Result(a)}, len(batch))
}
func (answers) Close(context.Context) error { return nil }

// An event that cannot be transformed is in the delivery log by its name.
func TestARefusedEventIsLogged(t *testing.T) {
	s := newSubscriber("s", model.OrderNone)
	w := testWorker(t, &s, nil)
	w.transform = func(event.Event) ([]byte, string, error) { return nil, "", errors.New("no such field") }
	verdicts := w.attempt(t.Context(), t.Context(), []*messaging.Delivery{{Payload: testEvent("e", "a", ""), Attempt: 1}})
	require.Len(t, verdicts, 1)
	require.ErrorContains(t, verdicts[0], "cannot transform: no such field")
	log := w.attempts.all()
	require.Len(t, log, 1)
	assert.Equal(t, []string{"e", "/test", "a", "dead_letter"}, []string{log[0].Event, log[0].Source, log[0].Type, log[0].Outcome})
}

// A target that cannot be made, as for a file that is missing, is made later.
func TestATargetThatCannotBeMadeIsTriedAgain(t *testing.T) {
	t.Parallel()
	w := newFixture(t, 1, newSubscriber("s", model.OrderNone))
	f := w.target("s", nil)
	missing := &missingTargets{fixture: w}
	missing.left.Store(2)
	p := New(Options{
		Client: w.client, Source: w.store, Topics: w.topics, Targets: missing, Config: testConfig(),
		Log: zaptest.NewLogger(t), Metrics: prometheus.NewRegistry(),
	})
	stop := w.run(p)
	w.send("s", "", "e")
	w.gets(f, []string{"e"})
	assert.Empty(t, p.Status(busName, "s").Unhealthy)
	assert.Negative(t, missing.left.Load())
	stop()
}

// missingTargets makes no target the first few times.
type missingTargets struct {
	*fixture
	left atomic.Int64
}

func (m *missingTargets) New(s *model.Subscriber) (target.Target, error) {
	if m.left.Add(-1) >= 0 {
		return nil, errors.New("the file does not exist")
	}
	return m.fixture.New(s)
}

// A subscriber whose target takes events again gets them, also if the processor sees that it was
// disabled and made active again as one change.
func TestASubscriberIsActiveAgainAtOnce(t *testing.T) {
	t.Parallel()
	w := newFixture(t, 1, newSubscriber("s", model.OrderNone))
	var gone atomic.Bool
	gone.Store(true)
	f := w.target("s", func(context.Context, target.Delivery) target.Result {
		if gone.Load() {
			return target.Result{Verdict: target.Gone, Err: errors.New("410 Gone")}
		}
		return delivered()
	})
	known := &fleet{}
	known.join("alone")
	p := New(Options{
		Client: w.client, Source: &reactivating{w.store, &gone}, Topics: w.topics, Targets: w, Config: testConfig(), Instance: "alone", Instances: known,
		Log: zaptest.NewLogger(t), Metrics: prometheus.NewRegistry(),
	})
	stop := w.run(p)
	w.send("s", "", "e")
	w.gets(f, []string{"e"})
	stop()
}

// reactivating is a registry where a subscriber that is disabled is active again before anybody sees
// that.
type reactivating struct {
	*registry
	gone *atomic.Bool
}

func (r *reactivating) ChangeState(_ context.Context, bus, name string, _ model.State, _ string, _ store.Condition) (*model.Subscriber, error) {
	r.gone.Store(false)
	s := r.Snapshot().Subscriber(bus, name)
	r.w.put(*s)
	return s, nil
}
