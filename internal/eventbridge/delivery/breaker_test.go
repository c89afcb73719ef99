package delivery

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/eventbridge/event"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/target"
)

// unavailable are the results of a target that takes nothing at present, and asksToWait those of one
// that says for how long. answered are those of one that is available.
func unavailable() []target.Result { return asksToWait(0) }

func asksToWait(wait time.Duration) []target.Result {
	r := unavailableResult()
	r.RetryAfter = wait
	return []target.Result{r}
}

func answered() []target.Result { return []target.Result{delivered()} }

// testProbes is how many probes the breakers of tests let in.
const testProbes = 4

// states records the changes of a breaker.
type states struct{ all []BreakerState }

func (s *states) changed(now BreakerState, _ error) { s.all = append(s.all, now) }

// enters lets a delivery enter at once.
func enters(t *testing.T, b *breaker) pass {
	t.Helper()
	p, err := b.enter(t.Context())
	require.NoError(t, err)
	return p
}

// refuses reports whether the breaker lets no delivery enter at present. It takes a nanosecond.
func refuses(t *testing.T, b *breaker) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
	defer cancel()
	_, err := b.enter(ctx)
	return err != nil
}

func TestBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var s states
		b := newBreaker(model.Breaker{Failures: 3, Probe: model.Duration(10 * time.Second)}, testProbes, s.changed)
		end := func(results []target.Result) { b.leave(enters(t, b), results) }
		end(unavailable())
		end(unavailable())
		end(answered()) // not in a row
		end(unavailable())
		end(unavailable())
		assert.Empty(t, s.all)
		end(unavailable())
		assert.Equal(t, []BreakerState{BreakerOpen}, s.all)
		assert.True(t, refuses(t, b))

		began := time.Now().Add(-time.Nanosecond)
		waiting := make(chan pass, 10)
		for range testProbes + 2 {
			go func() {
				if p, err := b.enter(ctx); err == nil {
					waiting <- p
				}
			}()
		}
		first := <-waiting
		assert.Equal(t, 10*time.Second, time.Since(began))
		synctest.Wait()
		assert.Len(t, waiting, testProbes-1, "a few deliveries are probes")
		b.leave(first, nil)
		synctest.Wait()
		assert.Len(t, waiting, testProbes, "another delivery takes the place of one that was not made")
		for i := range testProbes {
			state, _ := b.now()
			assert.Equal(t, BreakerHalfOpen, state, i)
			b.leave(<-waiting, unavailable())
		}
		state, until := b.now()
		assert.Equal(t, BreakerOpen, state)
		assert.Equal(t, 10*time.Second, time.Until(until))

		last := <-waiting
		assert.Equal(t, 20*time.Second, time.Since(began))
		failed := enters(t, b)
		b.leave(failed, unavailable())
		b.leave(last, answered())
		state, _ = b.now()
		assert.Equal(t, BreakerClosed, state, "one of the probes is answered")
		end(answered())
		assert.Equal(t, []BreakerState{BreakerOpen, BreakerHalfOpen, BreakerOpen, BreakerHalfOpen, BreakerClosed}, s.all)

		for range 3 {
			end(unavailable())
		}
		began = time.Now()
		for range 3 * testProbes {
			p, err := b.enter(ctx)
			require.NoError(t, err)
			b.leave(p, unavailable())
		}
		assert.Equal(t, 30*time.Second, time.Since(began), "some probes each time, one after the other here")
	})
}

// A delivery that began before the breaker opened says nothing about the time after.
func TestABreakerIgnoresLateResults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(model.Breaker{Failures: 2, Probe: model.Duration(time.Second)}, testProbes, new(states).changed)
		slow, slower := enters(t, b), enters(t, b)
		for range 2 {
			b.leave(enters(t, b), unavailable())
		}
		b.leave(slow, answered())
		state, _ := b.now()
		assert.Equal(t, BreakerOpen, state)
		time.Sleep(time.Second)
		synctest.Wait()
		probe := enters(t, b)
		b.leave(slower, unavailable())
		state, _ = b.now()
		assert.Equal(t, BreakerHalfOpen, state)
		b.leave(probe, answered())
		state, _ = b.now()
		assert.Equal(t, BreakerClosed, state)
	})
}

// A target that asks to wait gets nothing until then, whichever the event, and also without a bound
// of failures.
func TestABreakerOpensForRetryAfter(t *testing.T) {
	for failures, after := range map[int]BreakerState{0: BreakerClosed, 10: BreakerHalfOpen} {
		synctest.Test(t, func(t *testing.T) {
			b := newBreaker(model.Breaker{Failures: failures, Probe: model.Duration(time.Second)}, testProbes, new(states).changed)
			other := enters(t, b)
			b.leave(enters(t, b), asksToWait(time.Minute))
			state, until := b.now()
			assert.Equal(t, BreakerOpen, state)
			assert.Equal(t, time.Minute, time.Until(until))
			b.leave(other, asksToWait(2*time.Minute)) // the longer time counts
			began := time.Now()
			p, err := b.enter(t.Context())
			require.NoError(t, err)
			assert.Equal(t, 2*time.Minute, time.Since(began))
			state, _ = b.now()
			assert.Equal(t, after, state)
			b.leave(p, answered())
			state, _ = b.now()
			assert.Equal(t, BreakerClosed, state)
		})
	}
}

// A delivery that has to stop is no probe: its result would never come, and no other could enter.
func TestWhoStopsIsNoProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(model.Breaker{Failures: 1, Probe: model.Duration(time.Second)}, testProbes, new(states).changed)
		b.leave(enters(t, b), unavailable())
		time.Sleep(2 * time.Second)
		synctest.Wait()
		stopped, cancel := context.WithCancel(t.Context())
		cancel()
		for range testProbes {
			_, err := b.enter(stopped)
			require.ErrorIs(t, err, context.Canceled)
		}
		b.leave(enters(t, b), answered())
		state, _ := b.now()
		assert.Equal(t, BreakerClosed, state)
	})
}

// A delivery may end after its worker: the metric is the next worker's then.
func TestAWorkerThatHasStoppedSaysNothingOfItsBreaker(t *testing.T) {
	s := newSubscriber("s", model.OrderNone)
	w := testWorker(t, &s, nil)
	w.stop()
	w.breakerChanged(BreakerOpen, errDown)
	assert.Zero(t, testutil.ToFloat64(w.p.metrics.breaker.WithLabelValues("", "s")))
}

// Only a target that is unavailable counts for the breaker, not one that answers about an event.
func TestWhatResultsSayAboutTheTarget(t *testing.T) {
	internal := target.Result{Status: 500, Reason: target.ReasonStatus, Err: errDown}
	away, asks := unavailableResult(), unavailableResult()
	asks.RetryAfter = time.Minute
	stopped := target.Result{Reason: target.ReasonStopped}
	for name, c := range map[string]struct {
		results []target.Result
		state   BreakerState // of a breaker that one more failure opens
		fails   int          // how many failures are counted after one of results
	}{
		"500":                       {[]target.Result{internal}, BreakerClosed, 0},
		"503":                       {[]target.Result{away, away}, BreakerOpen, 0},
		"a part is unavailable":     {[]target.Result{away, {Verdict: target.Delivered}}, BreakerClosed, 0},
		"a part asks to wait":       {[]target.Result{{Verdict: target.Refused}, asks}, BreakerOpen, 0},
		"a stop":                    {[]target.Result{stopped, stopped}, BreakerClosed, 1},
		"a stop after a failure":    {[]target.Result{away, stopped}, BreakerOpen, 0},
		"the receiver asks to wait": {[]target.Result{asks}, BreakerOpen, 0},
	} {
		b := newBreaker(model.Breaker{Failures: 2, Probe: model.Duration(time.Minute)}, testProbes, new(states).changed)
		b.leave(enters(t, b), unavailable())
		b.leave(enters(t, b), c.results)
		state, until := b.now()
		assert.Equal(t, []any{c.state, c.fails}, []any{state, b.failures}, name)
		assert.True(t, state != BreakerOpen || time.Until(until) > 50*time.Second, name)
	}
}

func TestSchedule(t *testing.T) {
	s := &model.Retry{MaxAttempts: 4, MaxAge: model.Duration(time.Hour), Jitter: 0.2,
		Schedule: []model.Duration{model.Duration(time.Second), model.Duration(10 * time.Second)}}
	now := time.Now()
	for attempt, want := range []time.Duration{time.Second, time.Second, 10 * time.Second, 10 * time.Second} {
		if attempt == 0 {
			continue
		}
		for range 100 {
			d, over := nextAttempt(s, attempt, now, now, 2*rand.Float64()-1)
			assert.Empty(t, over)
			assert.InDelta(t, float64(want), float64(d), 0.2*float64(want))
		}
	}
	_, over := nextAttempt(s, 4, now.Add(-time.Minute), now, 0)
	assert.Equal(t, "gave up after 4 attempts", over)
	_, over = nextAttempt(s, 2, now.Add(-time.Hour), now, 0)
	assert.Equal(t, "gave up after 2 attempts in 1h0m0s", over)
	_, over = nextAttempt(s, 2, now.Add(-time.Hour+5*time.Second), now, 0)
	assert.NotEmpty(t, over, "it would be too late then")
	d, over := nextAttempt(&model.Retry{Schedule: []model.Duration{model.Duration(time.Hour)}}, 1000, now, now, 0)
	assert.Equal(t, time.Hour, d)
	assert.Empty(t, over)
}

func TestTheLatestAttemptsAreKept(t *testing.T) {
	a := attempts{}
	assert.Empty(t, a.all())
	for i := range logAttempts + 2 {
		a.add(Attempt{Attempt: i})
		assert.Equal(t, i, a.all()[0].Attempt)
	}
	all := a.all()
	require.Len(t, all, logAttempts)
	assert.Equal(t, 2, all[logAttempts-1].Attempt)
}

// An entry of the delivery log does not keep the event in memory.
func TestTheDeliveryLogIsSmall(t *testing.T) {
	attributes := &strings.Builder{}
	for n := range 28 {
		fmt.Fprintf(attributes, `,"x%d":"%s"`, n, strings.Repeat("y", 8<<10))
	}
	logOf := func() *attempts {
		a := &attempts{}
		for i := range logAttempts {
			e, err := event.Decode(fmt.Appendf(nil, `{"specversion":"1.0","id":"%d","source":"/%s","type":"t"%s,"data":{}}`, i, strings.Repeat("s", 1000), attributes))
			require.NoError(t, err)
			failed := target.Result{Err: fmt.Errorf("no answer: %s", attributes), Response: strings.Repeat("r", 1<<10)}
			a.add(newAttempt(1, e, failed))
		}
		return a
	}
	heap := func() int64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	logs := make([]*attempts, 10)
	for i := range logs {
		logs[i] = logOf()
	}
	each := (heap() - before) / int64(len(logs))
	require.Less(t, each, int64(256<<10))
	one := logs[0].all()[0]
	assert.Equal(t, "/"+strings.Repeat("s", 255)+"...", one.Source)
	assert.Len(t, one.Response, 1<<10)
	runtime.KeepAlive(logs)
}
