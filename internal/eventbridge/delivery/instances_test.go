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
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/storetest"
	"github.com/aviaryhq/aviary/pkg/messaging"
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

// member runs a processor that stores the progress of jobs often. kill ends it as a process that has
// gone: nothing is kept any more.
func (w *fixture) member(f *fleet, name string) (p *Processor, stop, kill func()) {
	w.t.Helper()
	dying := &mortal{registry: w.store}
	cfg := testConfig()
	p = New(Options{
		Client: w.client, Source: dying, Topics: w.topics, Targets: w, Config: cfg, Instance: name, Instances: f,
		Log: zaptest.NewLogger(w.t), Metrics: prometheus.NewRegistry(),
	})
	p.saveEvery = 200 * time.Millisecond
	stop = w.run(p)
	w.eventually("it runs", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.ctx != nil
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
	dead, unavailable atomic.Bool
	refused           atomic.Int64
	after             func() // of a change; nil: nothing
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
func (w *fixture) fill(ids ...string) {
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
func (w *fixture) kept(name string) *Job { return decodeJob(w.store.Job(busName, name)) }

// aReplay is a fixture whose only instance, "one", runs a replay of n events. What before does to its
// registry is done before the replay begins.
func aReplay(t *testing.T, n int, rate float64, before func(*mortal)) (w *fixture, f *fakeTarget, all *fleet, one *Processor) {
	t.Helper()
	w = newFixture(t, 1, newSubscriber("s", model.OrderNone))
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

// A job ends with its process. All instances show that it was interrupted, and any of them begins
// another one.
func TestAJobIsInterruptedWithItsProcess(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"stop", "kill"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			w := newFixture(t, 2, newSubscriber("s", model.OrderGroup))
			f := w.target("s", nil)
			ids := numbered("e", 40)
			w.fill(ids...)
			all := &fleet{active: true}
			all.join("one", "two")
			one, stop, kill := w.member(all, "one")
			two, _, _ := w.member(all, "two")
			begun, err := one.Replay(t.Context(), busName, "s", ReplayOptions{Rate: 5})
			require.NoError(t, err)
			w.eventually("its progress is stored", func() bool { return w.kept("s").Published > 3 })
			_, err = two.Replay(t.Context(), busName, "s", ReplayOptions{})
			require.ErrorIs(t, err, ErrJobRunning)
			require.ErrorContains(t, err, "at the instance one")
			assert.Zero(t, two.interruptedJobs())
			w.eventually("two consumes the topic of replays, too", func() bool {
				running := two.worker("s")
				running.mu.Lock()
				defer running.mu.Unlock()
				return running.replaying
			})
			if how == "stop" {
				stop()
				all.leave("one")
			} else {
				kill()
			}
			shown := StoredJob(w.store.Job(busName, "s"), all.Instances())
			assert.Equal(t, []any{begun.ID, JobInterrupted, "one", `{"rate":5}`}, []any{shown.ID, shown.State, shown.Instance, string(shown.Options)})
			assert.Contains(t, shown.Error, "begin another job")
			assert.Equal(t, 1, two.interruptedJobs())
			_, err = two.Replay(t.Context(), busName, "s", ReplayOptions{})
			require.NoError(t, err)
			w.eventually("the next one ends", func() bool { return w.kept("s").State == JobDone })
			assert.EqualValues(t, 40, w.kept("s").Published)
			assert.Zero(t, two.interruptedJobs())
			w.eventually("all are delivered", func() bool {
				got := f.delivered()
				return !slices.ContainsFunc(ids, func(id string) bool { return !slices.Contains(got, id) })
			})
		})
	}
}

// A process does not hold a job of a former one of its name for its own.
func TestAJobOfAFormerProcessOfThisName(t *testing.T) {
	t.Parallel()
	w := newFixture(t, 1, newSubscriber("s", model.OrderNone))
	w.target("s", nil)
	require.NoError(t, w.store.ChangeJob(t.Context(), busName, "s", "u-s", func(json.RawMessage) (json.RawMessage, error) {
		return json.Marshal(Job{ID: "1", Kind: KindReplay, Bus: busName, Subscriber: "s", State: JobRunning, Began: time.Now().Add(-time.Hour), Instance: "one"})
	}))
	all := &fleet{active: true}
	all.join("one")
	one, _, _ := w.member(all, "one")
	assert.Equal(t, JobInterrupted, StoredJob(w.store.Job(busName, "s"), all.Instances()).State)
	_, err := one.Replay(t.Context(), busName, "s", ReplayOptions{})
	require.NoError(t, err)
	w.eventually("the new one is done", func() bool { return w.kept("s").State == JobDone })
}

// The job of a process that ends, and whose successor of the same name starts at once, is
// interrupted. One whose process has set its clock back is not.
func TestAJobOfAProcessThatIsReplacedAtOnce(t *testing.T) {
	s := newSubscriber("s", model.OrderNone)
	p := testWorker(t, &s, nil).p
	p.ctx, p.instance = t.Context(), "one"
	defer p.running.Done()
	p.started = time.Now().Round(0).Add(time.Minute) // the clock was set back by a minute since
	j, _, err := p.addJob("u-s", Job{Kind: KindReplay})
	require.NoError(t, err)
	defer j.cancel(nil)
	text, err := json.Marshal(j.now())
	require.NoError(t, err)
	assert.Equal(t, JobRunning, StoredJob(text, []instances.Instance{{Name: "one", Started: p.started}}).State)
	assert.Equal(t, JobInterrupted, StoredJob(text, []instances.Instance{{Name: "one", Started: p.started.Add(time.Millisecond)}}).State)
}

// A job ends when the subscriber has another one: its process was believed to have stopped.
func TestAJobThatWasReplaced(t *testing.T) {
	t.Parallel()
	w, _, all, one := aReplay(t, 50, 0.2, nil)
	j := one.jobOf("u-s")
	all.leave("one")
	all.join("two")
	two, _, _ := w.member(all, "two")
	begun, err := two.Replay(t.Context(), busName, "s", ReplayOptions{Rate: 0.2})
	require.NoError(t, err)
	w.eventually("it ends here", func() bool { return j.now().State == JobInterrupted })
	assert.Equal(t, []any{begun.ID, JobRunning}, []any{w.kept("s").ID, w.kept("s").State})
}

// Of many instances that are asked at once one begins the job.
func TestOneInstanceBeginsAJob(t *testing.T) {
	t.Parallel()
	w := newFixture(t, 1, newSubscriber("s", model.OrderNone))
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

// Any instance cancels a job. The next one begins when it has ended.
func TestAnyInstanceEndsAJob(t *testing.T) {
	t.Parallel()
	w := newFixture(t, 1, newSubscriber("s", model.OrderNone))
	w.target("s", nil)
	w.fill(numbered("e", 50)...)
	all := &fleet{active: true}
	all.join("one", "two")
	one, _, _ := w.member(all, "one")
	two, _, _ := w.member(all, "two")
	_, err := one.Replay(t.Context(), busName, "s", ReplayOptions{Rate: 0.2})
	require.NoError(t, err)
	j := one.jobOf("u-s")
	canceled, err := two.CancelJob(t.Context(), busName, "s")
	require.NoError(t, err)
	assert.True(t, canceled.Canceling)
	w.eventually("it ends where it runs", func() bool { return j.now().State == JobCanceled })
	w.eventually("everybody sees that", func() bool { return w.kept("s").State == JobCanceled })
	_, err = two.CancelJob(t.Context(), busName, "s")
	require.ErrorIs(t, err, ErrNoJob)
	_, err = two.Replay(t.Context(), busName, "s", ReplayOptions{DryRun: true})
	require.NoError(t, err)
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
			j := one.jobOf("u-s")
			if how == "canceled" {
				_, err := one.CancelJob(t.Context(), busName, "s")
				require.NoError(t, err)
			}
			w.eventually("it ends", func() bool { return j.now().State == ended })
			tried := source.refused.Load()
			w.eventually("it cannot say so", func() bool { return source.refused.Load() > tried })
			source.unavailable.Store(false)
			w.eventually("it says so", func() bool { return w.kept("s").State != JobRunning })
			assert.Same(t, j, one.jobOf("u-s"), "it runs once")
			assert.Equal(t, ended, w.kept("s").State)
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
	j := one.jobOf("u-s")
	w.eventually("it is done", func() bool { return j.now().State == JobDone })
	all.join("two")
	two, _, _ := w.member(all, "two")
	_, err := two.CancelJob(t.Context(), busName, "s")
	require.NoError(t, err)
	source.unavailable.Store(false)
	w.eventually("it says so", func() bool { return w.kept("s").State == JobDone })
	assert.EqualValues(t, 20, w.kept("s").Published)
}

// The replay of a new subscriber waits until all engines have heard of it, however long that takes.
func TestAStartWaitsForEngines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := &fleet{}
		p := &Processor{instances: all, instance: "one"}
		heard := make(chan error, 1)
		go func() { heard <- p.awaitEngines(t.Context(), 7) }()
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

// What an earlier job has published is consumed, also if the process that begins the next job had
// not read that the earlier one was there.
func TestAJobKeepsThatThereMayBeReplays(t *testing.T) {
	bus := model.NewBus(busName)
	sub := model.NewSubscriber(busName, "s")
	sub.UID = "u-s"
	sub.Rules = []model.Rule{{Name: "all", Pattern: json.RawMessage(`{"type":[{"exists":true}]}`)}}
	sub.Target = model.Target{Log: &model.LogTarget{}}
	source := &registry{Store: storetest.NewStore(storetest.Snapshot(t, 1, []model.Bus{bus}, []model.Subscriber{sub}))}
	p := &Processor{source: source, instance: "b"}
	earlier, next := &job{job: Job{ID: "1", State: JobDone, Replays: true}}, &job{job: Job{ID: "2", State: JobRunning}}
	require.NoError(t, p.store(t.Context(), &sub, earlier))
	require.NoError(t, p.store(t.Context(), &sub, next))
	stored := decodeJob(source.Job(busName, "s"))
	assert.Equal(t, "2", stored.ID)
	assert.True(t, stored.Replays)
	assert.True(t, next.now().Replays, "it is stored again with the job's progress")
}
