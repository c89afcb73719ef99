package delivery

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zaptest"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/instances"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/target"
	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/await"
)

// fleet is what is known of instances.
type fleet struct {
	mu     sync.Mutex
	all    []instances.Instance
	active bool
}

func (f *fleet) Instances() []instances.Instance {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.all)
}

func (f *fleet) Active(int64) (bool, []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.active, nil
}

func (f *fleet) join(names ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, name := range names {
		f.all = append(f.all, instances.Instance{Name: name, Started: time.Now()})
	}
}

func (f *fleet) leave(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all = slices.DeleteFunc(f.all, func(i instances.Instance) bool { return i.Name == name })
}

// member runs a processor that looks after jobs often. kill ends it as a process that has gone:
// nothing is kept any more.
func (w *world) member(f *fleet, name string) (p *Processor, stop, kill func()) {
	w.t.Helper()
	dying := &mortal{registry: w.store}
	cfg := testConfig()
	cfg.StopTimeout = await.Patience // one that stops in order has nothing come twice
	p = New(Options{
		Client: w.client, Source: dying, Topics: w.topics, Targets: w, Admin: true, Config: cfg, Instance: name, Instances: f,
		Log: zaptest.NewLogger(w.t), Metrics: NewMetrics(prometheus.NewRegistry()),
	})
	p.jobs.saveEvery, p.jobs.lookEvery = 200*time.Millisecond, 100*time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(w.t, <-ended)
	})
	w.t.Cleanup(stop)
	w.eventually("it runs", func() bool {
		p.jobs.mu.Lock()
		defer p.jobs.mu.Unlock()
		return p.jobs.ctx != nil
	})
	return p, stop, func() {
		dying.dead.Store(true)
		stop()
		f.leave(name)
	}
}

// mortal is a registry that takes nothing from a process that has gone.
type mortal struct {
	*registry
	dead, unavailable, behind atomic.Bool
	refused                   atomic.Int64
	after                     func() // of a change; nil: nothing
}

// Job is what this process has read.
func (m *mortal) Job(bus, name string) json.RawMessage {
	if m.behind.Load() {
		return nil
	}
	return m.registry.Job(bus, name)
}

func (m *mortal) ChangeJob(ctx context.Context, bus, name, uid string, change func(json.RawMessage) (json.RawMessage, error)) error {
	switch {
	case m.dead.Load():
		return model.ErrClosed
	case m.unavailable.Load():
		m.refused.Add(1)
		return model.ErrUnavailable
	}
	err := m.registry.ChangeJob(ctx, bus, name, uid, change)
	if m.after != nil {
		m.after()
	}
	return err
}

// unavailableOnce has the registry become unavailable once it has a change: the beginning of a job.
func unavailableOnce(m *mortal) {
	m.after = sync.OnceFunc(func() { m.unavailable.Store(true) })
}

// fill stores events in the bus.
func (w *world) fill(ids ...string) {
	w.t.Helper()
	in, err := w.client.Publisher(w.t.Context(), w.topics.Events(busName), messaging.Business())
	require.NoError(w.t, err)
	defer func() { _ = in.Close(context.Background()) }()
	for i, id := range ids {
		key := fmt.Sprint("k", i%5)
		require.NoError(w.t, in.Publish(w.t.Context(), &messaging.Record{Key: key, Payload: testEvent(id, "a", key)}))
	}
}

// kept is the job as the registry has it.
func (w *world) kept(name string) *record { return recordOf(w.store.Job(busName, name)) }

// aReplay is a world whose only instance, "one", runs a replay of n events. What before does to its
// registry is done before the replay begins.
func aReplay(t *testing.T, n int, rate float64, before func(*mortal)) (w *world, f *fakeTarget, all *fleet, one *Processor) {
	t.Helper()
	w = newWorld(t, 1, newSubscriber("s", model.OrderNone))
	f = w.target("s", nil)
	w.fill(numbered("e", n)...)
	all = &fleet{active: true}
	all.join("one")
	one, _, _ = w.member(all, "one")
	if before != nil {
		before(one.source.(*mortal)) //nolint:forcetypeassert // member sets it
	}
	_, err := one.Replay(t.Context(), busName, "s", ReplayOptions{Rate: rate})
	require.NoError(t, err)
	return w, f, all, one
}

// A replay whose process stops, or dies, goes on at another one, behind what it had stored. Of one
// that stopped in order nothing comes twice.
func TestAReplayGoesOnAtAnotherInstance(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"stop", "kill"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 2, newSubscriber("s", model.OrderGroup))
			f := w.target("s", nil)
			ids := numbered("e", 60)
			w.fill(ids...)
			all := &fleet{active: true}
			all.join("one")
			one, stop, kill := w.member(all, "one")
			begun, err := one.Replay(t.Context(), busName, "s", ReplayOptions{Rate: 5})
			require.NoError(t, err)
			w.eventually("it is kept how far it is", func() bool { r := w.kept("s"); return r.Published > 10 })
			all.join("two")
			two, _, _ := w.member(all, "two")
			running := one.jobs.of("u-s")
			_, err = two.Replay(t.Context(), busName, "s", ReplayOptions{})
			require.ErrorIs(t, err, ErrJobRunning)
			require.ErrorContains(t, err, "at the instance one")
			if how == "stop" {
				stop()
				all.leave("one")
			} else {
				kill()
			}
			repeated := running.now().Published - w.kept("s").Published // or more was taken over by now
			w.eventually("two has it", func() bool { j, err := two.Job(busName, "s"); return err == nil && j.ID == begun.ID })
			w.eventually("it ends", func() bool { r := w.kept("s"); return r.State == JobDone })
			r := w.kept("s")
			assert.Equal(t, []any{"two", int64(60), false}, []any{r.Instance, r.Published, r.planned()}, r.Error)
			w.eventually("all are delivered", func() bool {
				got := f.delivered()
				return !slices.ContainsFunc(ids, func(id string) bool { return !slices.Contains(got, id) })
			})
			if how == "stop" {
				assert.Len(t, f.delivered(), len(ids), "nothing comes twice")
			} else {
				assert.LessOrEqual(t, len(f.delivered()), len(ids)+int(max(repeated, 0))+3, "it does not begin anew")
			}
		})
	}
}

// A redrive goes on with what is left, and leaves what failed again.
func TestARedriveGoesOnAtAnotherInstance(t *testing.T) {
	t.Parallel()
	s := newSubscriber("s", model.OrderNone)
	s.Delivery.Retry.MaxAttempts = 1
	s.Delivery.Breaker.Failures = 0
	w := newWorld(t, 1, s)
	var refuses atomic.Bool
	refuses.Store(true)
	f := w.target("s", func(_ context.Context, d target.Delivery) target.Result {
		if refuses.Load() || d.Event.ID == "e0" {
			return target.Result{Verdict: target.Refused, Err: fmt.Errorf("no")}
		}
		return delivered()
	})
	all := &fleet{active: true}
	all.join("one")
	one, _, kill := w.member(all, "one")
	ids := numbered("e", 60)
	w.send("s", "k", ids[0])
	w.eventually("it is the first dead letter", func() bool { return len(w.deadLetters("s")) == 1 })
	w.send("s", "k", ids[1:]...)
	w.eventually("all are dead letters", func() bool { return len(w.deadLetters("s")) == 60 })
	refuses.Store(false)
	_, err := one.Redrive(t.Context(), busName, "s", RedriveOptions{Rate: 8, Max: 50})
	require.NoError(t, err)
	w.eventually("it is kept how far it is", func() bool { return w.kept("s").Published > 10 })
	kill()
	all.join("two")
	w.member(all, "two")
	w.eventually("it ends", func() bool { return w.kept("s").State == JobDone })
	r := w.kept("s")
	assert.GreaterOrEqual(t, r.Published, int64(50), r.Error)
	w.eventually("as many are delivered", func() bool { return len(f.delivered()) >= 49 })
	w.eventually("the first one failed again", func() bool { return len(f.attemptsAt("e0")) > 1 })
	assert.Len(t, f.attemptsAt("e0"), 2, "it failed again, and stays")
}

// Of many instances that are asked at once one begins the job.
func TestOneInstanceBeginsAJob(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, newSubscriber("s", model.OrderNone))
	w.target("s", nil)
	w.fill(numbered("e", 20)...)
	all := &fleet{active: true}
	all.join("0", "1", "2")
	var began atomic.Int64
	var wg sync.WaitGroup
	for i := range 3 {
		p, _, _ := w.member(all, fmt.Sprint(i))
		for range 3 {
			wg.Go(func() {
				if _, err := p.Replay(t.Context(), busName, "s", ReplayOptions{Rate: 0.2}); err == nil {
					began.Add(1)
				} else {
					assert.ErrorIs(t, err, ErrJobRunning)
				}
			})
		}
	}
	wg.Wait()
	assert.EqualValues(t, 1, began.Load())
}

// A job is ended by any instance, and what was ended is not taken over.
func TestAnyInstanceEndsAJob(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, newSubscriber("s", model.OrderNone))
	w.target("s", nil)
	w.fill(numbered("e", 50)...)
	all := &fleet{active: true}
	all.join("one", "two")
	one, _, _ := w.member(all, "one")
	two, _, _ := w.member(all, "two")
	_, err := one.Replay(t.Context(), busName, "s", ReplayOptions{Rate: 0.2})
	require.NoError(t, err)
	j := one.jobs.of("u-s")
	canceled, err := two.CancelJob(t.Context(), busName, "s")
	require.NoError(t, err)
	assert.Equal(t, JobCanceled, canceled.State)
	w.eventually("it ends where it runs", func() bool { return j.now().State == JobCanceled })
	assert.Equal(t, JobCanceled, w.kept("s").State)
	_, err = two.CancelJob(t.Context(), busName, "s")
	require.ErrorIs(t, err, ErrNoJob)
}

// Whoever has ended a job at another instance may begin the next one at once.
func TestAJobBeginsBehindOneThatWasEndedElsewhere(t *testing.T) {
	t.Parallel()
	s := newSubscriber("s", model.OrderNone)
	s.Delivery.Retry.MaxAttempts = 1
	s.Delivery.Breaker.Failures = 0
	w := newWorld(t, 1, s)
	w.target("s", func(context.Context, target.Delivery) target.Result {
		return target.Result{Verdict: target.Refused, Err: fmt.Errorf("no")}
	})
	all := &fleet{active: true}
	all.join("one", "two")
	one, _, _ := w.member(all, "one")
	two, _, _ := w.member(all, "two")
	w.send("s", "k", numbered("e", 10)...)
	w.eventually("all are dead letters", func() bool { return len(w.deadLetters("s")) == 10 })
	one.jobs.saveEvery = 2 * time.Second // it hears of its end later
	_, err := one.Discard(t.Context(), busName, "s", RedriveOptions{Rate: 0.2})
	require.NoError(t, err)
	j := one.jobs.of("u-s")
	w.eventually("it has begun", func() bool { return j.now().Read > 0 })
	_, err = two.CancelJob(t.Context(), busName, "s")
	require.NoError(t, err)
	begun, err := two.Discard(t.Context(), busName, "s", RedriveOptions{})
	require.NoError(t, err)
	w.eventually("the next one ends", func() bool { return w.kept("s").State != JobRunning })
	assert.Equal(t, []any{begun.ID, JobDone}, []any{w.kept("s").ID, w.kept("s").State}, w.kept("s").Error)
}

// A job that another process has is not run on, and one that does not get on is given up.
func TestAJobThatIsAnothers(t *testing.T) {
	t.Parallel()
	w, _, all, one := aReplay(t, 50, 0.2, nil)
	j := one.jobs.of("u-s")
	all.join("other")
	change := func(f func(*record)) {
		require.NoError(t, w.store.ChangeJob(t.Context(), busName, "s", "u-s", func(was json.RawMessage) (json.RawMessage, error) {
			r := recordOf(was)
			f(r)
			return json.Marshal(r)
		}))
	}
	change(func(r *record) { r.Instance, r.Run, r.Taken = "other", "another", time.Now() })
	w.eventually("it ends here", func() bool { return j.now().State == JobInterrupted })
	w.eventually("it is not this one's", func() bool { return one.jobs.of("u-s") == nil })
	assert.Equal(t, "other", w.kept("s").Instance)
	change(func(r *record) { r.Vain = vainMost })
	all.leave("other")
	w.eventually("it is given up", func() bool { return w.kept("s").State == JobFailed })
	assert.Contains(t, w.kept("s").Error, "did not get on")
}

// A job that ends while the registry takes nothing has ended: it does not run again once the
// registry takes changes.
func TestAJobThatEndsWhileTheRegistryIsUnavailable(t *testing.T) {
	t.Parallel()
	for how, ended := range map[string]string{"done": JobDone, "canceled": JobCanceled} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			w, f, _, one := aReplay(t, 20, 10, unavailableOnce)
			source := one.source.(*mortal) //nolint:forcetypeassert // member sets it
			j := one.jobs.of("u-s")
			if how == "canceled" {
				_, err := one.CancelJob(t.Context(), busName, "s")
				require.ErrorContains(t, err, "could not be stored")
			}
			w.eventually("it ends", func() bool { return j.now().State == ended })
			tried := source.refused.Load()
			w.eventually("it cannot say so", func() bool { return source.refused.Load() > tried })
			source.unavailable.Store(false)
			w.eventually("it says so", func() bool { return w.kept("s").State != JobRunning })
			assert.Same(t, j, one.jobs.of("u-s"), "it runs once")
			assert.Equal(t, []any{ended, 0}, []any{w.kept("s").State, w.kept("s").Vain})
			if how == "done" {
				w.eventually("all are delivered", func() bool { return len(f.delivered()) >= 20 })
				assert.Len(t, f.delivered(), 20, "nothing comes twice")
			}
		})
	}
}

// A job that came to its end before it heard that somebody had ended it says so.
func TestAJobThatIsDoneBeforeItIsEnded(t *testing.T) {
	t.Parallel()
	w, _, all, one := aReplay(t, 20, 10, unavailableOnce)
	source := one.source.(*mortal) //nolint:forcetypeassert // member sets it
	j := one.jobs.of("u-s")
	w.eventually("it is done", func() bool { return j.now().State == JobDone })
	all.join("two")
	two, _, _ := w.member(all, "two")
	_, err := two.CancelJob(t.Context(), busName, "s")
	require.NoError(t, err)
	source.unavailable.Store(false)
	w.eventually("it says so", func() bool { return w.kept("s").State == JobDone })
	assert.EqualValues(t, 20, w.kept("s").Published)
}

// An instance that reads the registry late does not take its own job for one that is gone.
func TestAJobOfAnInstanceThatReadsLate(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, newSubscriber("s", model.OrderNone))
	w.target("s", nil)
	w.fill(numbered("e", 20)...)
	all := &fleet{active: true}
	all.join("one")
	one, _, _ := w.member(all, "one")
	source := one.source.(*mortal) //nolint:forcetypeassert // member sets it
	source.behind.Store(true)
	_, err := one.Replay(t.Context(), busName, "s", ReplayOptions{Rate: 10})
	require.NoError(t, err)
	time.Sleep(3 * one.jobs.saveEvery) // nothing may happen to it meanwhile
	source.behind.Store(false)
	w.eventually("it ends", func() bool { return w.kept("s").State != JobRunning })
	assert.Equal(t, []any{JobDone, int64(20)}, []any{w.kept("s").State, w.kept("s").Published}, w.kept("s").Error)
}

// A job that is kept has begun, also when the process stops in this moment: another one takes it
// over, at once.
func TestAJobThatBeginsWhileItsProcessStops(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, newSubscriber("s", model.OrderNone))
	f := w.target("s", nil)
	w.fill(numbered("e", 5)...)
	all := &fleet{active: true}
	all.join("one", "two")
	one, _, _ := w.member(all, "one")
	ctx, stop := context.WithCancel(t.Context())
	one.jobs.begin(ctx)
	one.source.(*mortal).after = stop //nolint:forcetypeassert // member sets it
	begun, err := one.Replay(t.Context(), busName, "s", ReplayOptions{})
	require.NoError(t, err, "it runs elsewhere, and must not be asked for again")
	assert.Equal(t, JobInterrupted, w.kept("s").State)
	w.member(all, "two")
	w.eventually("it is done", func() bool { return w.kept("s").State == JobDone })
	assert.Equal(t, begun.ID, w.kept("s").ID)
	w.eventually("all are delivered", func() bool { return len(f.delivered()) == 5 })
}

// An end that one instance has confirmed holds, also where another one has taken the job over in
// the meantime.
func TestAnEndIsKept(t *testing.T) {
	t.Parallel()
	w, _, all, one := aReplay(t, 50, 0.2, nil)
	all.join("other")
	require.NoError(t, w.store.ChangeJob(t.Context(), busName, "s", "u-s", func(was json.RawMessage) (json.RawMessage, error) {
		r := recordOf(was)
		r.Instance, r.Run, r.Taken = "other", "another", time.Now()
		return json.Marshal(r)
	}))
	_, err := one.CancelJob(t.Context(), busName, "s")
	require.NoError(t, err)
	require.Equal(t, JobCanceled, w.kept("s").State)
}

// A process takes over what a former one of its name had, however the clocks of both are.
func TestAJobOfAFormerProcessOfThisName(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, newSubscriber("s", model.OrderNone))
	f := w.target("s", nil)
	ids := numbered("e", 5)
	w.fill(ids...)
	all := &fleet{active: true}
	all.join("one")
	require.NoError(t, w.store.ChangeJob(t.Context(), busName, "s", "u-s", func(json.RawMessage) (json.RawMessage, error) {
		about := Job{ID: "1", Kind: KindReplay, Bus: busName, Subscriber: "s", State: JobRunning, Began: time.Now(), Instance: "one"}
		plan := replayPlan{ReplayOptions: ReplayOptions{To: time.Now()}, ToEnd: true}
		return json.Marshal(record{Job: about, Run: "former", Taken: time.Now().Add(time.Hour), Replay: &plan})
	}))
	w.member(all, "one")
	w.eventually("it is done", func() bool { return w.kept("s").State == JobDone })
	w.eventually("all are delivered", func() bool { return len(f.delivered()) >= len(ids) })
}

// The replay of a new subscriber waits until all engines have heard of it, however long that takes.
func TestAStartWaitsForEngines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := &fleet{}
		p := &Processor{instances: all, instance: "one"}
		heard := make(chan error, 1)
		go func() { heard <- p.heard(t.Context(), 7, time.Now()) }()
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Empty(t, heard, "not even this instance is known yet")
		all.mu.Lock()
		all.all, all.active = []instances.Instance{{Name: "one"}}, true
		all.mu.Unlock()
		time.Sleep(time.Second)
		require.NoError(t, <-heard)
	})
}

// A redrive that goes on at another instance reads what stays again, and counts it once.
func TestARedriveThatGoesOnCountsOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, newSubscriber("s", model.OrderNone))
	f := w.target("s", nil)
	ids := numbered("e", 30)
	letters := []letter{{payload: []byte("somebody else's")}, {payload: testEvent("x", "a", ""), reason: "other"}}
	for _, id := range ids {
		letters = append(letters, letter{payload: testEvent(id, "a", ""), reason: "chosen"})
	}
	w.storeDeadLetters("s", letters...)
	all := &fleet{active: true}
	all.join("one")
	one, stop, _ := w.member(all, "one")
	_, err := one.Redrive(t.Context(), busName, "s", RedriveOptions{Reason: "chosen", Rate: 5})
	require.NoError(t, err)
	w.eventually("it is kept how far it is", func() bool { return w.kept("s").Published > 5 })
	all.join("two")
	w.member(all, "two")
	stop()
	all.leave("one")
	w.eventually("it ends", func() bool { return w.kept("s").ended() })
	r := w.kept("s")
	assert.Equal(t, []any{JobDone, "two", Counts{Read: 32, Chosen: 31, Published: 30, Left: Left{Foreign: 1}}}, []any{r.State, r.Instance, r.Counts}, r.Error)
	w.gets(f, ids)
}
