package processor

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/eventbridge/model"
)

func TestBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var states []BreakerState
		b := newBreaker(model.Breaker{Failures: 3, Probe: model.Duration(10 * time.Second)}, func(s BreakerState) { states = append(states, s) })
		fail := func(v verdict) {
			require.NoError(t, b.enter(ctx))
			b.leave(v)
		}
		fail(failing)
		fail(failing)
		fail(well) // not in a row
		fail(failing)
		fail(failing)
		assert.Empty(t, states)
		fail(failing)
		assert.Equal(t, []BreakerState{BreakerOpen}, states)

		began, entered := time.Now(), make(chan time.Duration, 10)
		for range 3 {
			go func() {
				if b.enter(ctx) == nil {
					entered <- time.Since(began)
				}
			}()
		}
		assert.False(t, b.tryEnter())
		assert.Equal(t, 10*time.Second, <-entered)
		synctest.Wait()
		assert.Empty(t, entered, "one delivery is the probe")
		b.leave(failing)
		assert.Equal(t, 30*time.Second, <-entered, "the interval is doubled")
		b.leave(noVerdict) // it was not made: another one is the probe
		assert.Equal(t, 30*time.Second, <-entered)
		b.leave(well)
		state, _ := b.now()
		assert.Equal(t, BreakerClosed, state)
		fail(well)
		assert.Equal(t, []BreakerState{BreakerOpen, BreakerHalfOpen, BreakerOpen, BreakerHalfOpen, BreakerClosed}, states)

		b.repeat()
		assert.Equal(t, BreakerClosed, states[len(states)-1])
		assert.Len(t, states, 6)

		for range 3 {
			fail(failing)
		}
		_, until := b.now()
		assert.Equal(t, 10*time.Second, time.Until(until), "it begins anew")
		for range 8 {
			require.NoError(t, b.enter(ctx))
			b.leave(failing)
		}
		_, until = b.now()
		assert.Equal(t, 100*time.Second, time.Until(until), "ten times as long at most")

		b.end()
		go func() {
			time.Sleep(time.Hour)
			cancel()
		}()
		assert.ErrorIs(t, b.enter(ctx), context.Canceled)
		assert.False(t, b.tryEnter())
	})
}

// Who is to stop is no probe: nobody would say what came of it, and nothing would be let through
// any more.
func TestWhoStopsIsNoProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(model.Breaker{Failures: 1, Probe: model.Duration(time.Second)}, func(BreakerState) {})
		require.NoError(t, b.enter(t.Context()))
		b.leave(failing)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		stopped, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, b.enter(stopped), context.Canceled)
		assert.True(t, b.tryEnter(), "the next one is the probe")
		b.leave(well)
		state, _ := b.now()
		assert.Equal(t, BreakerClosed, state)
	})
}

// A delivery may end after its worker: the state is the next worker's to say then.
func TestABreakerThatEndsIsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		said := 0
		b := newBreaker(model.Breaker{Failures: 1, Probe: model.Duration(time.Second)}, func(BreakerState) { said++ })
		require.NoError(t, b.enter(t.Context()))
		b.end()
		b.leave(failing)
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Zero(t, said)
	})
}

func TestSchedule(t *testing.T) {
	s := newSchedule(model.Retry{MaxAttempts: 4, MaxAge: model.Duration(time.Hour), Jitter: 0.2,
		Schedule: []model.Duration{model.Duration(time.Second), model.Duration(10 * time.Second)}})
	now := time.Now()
	for attempt, want := range []time.Duration{time.Second, time.Second, 10 * time.Second, 10 * time.Second} {
		if attempt == 0 {
			continue
		}
		for range 100 {
			d, over := s.next(attempt, now, now, 0)
			assert.Empty(t, over)
			assert.InDelta(t, float64(want), float64(d), 0.2*float64(want))
		}
	}
	d, _ := s.next(1, time.Time{}, now, time.Minute)
	assert.Equal(t, time.Minute, d, "the target says when")
	_, over := s.next(4, now.Add(-time.Minute), now, 0)
	assert.Equal(t, "gave up after 4 attempts", over)
	_, over = s.next(2, now.Add(-time.Hour), now, 0)
	assert.Equal(t, "gave up after 2 attempts in 1h0m0s", over)
	_, over = s.next(1, time.Time{}, now, 2*time.Hour)
	assert.NotEmpty(t, over, "it would be too late then")
	d, over = newSchedule(model.Retry{}).next(1000, now, now, 0)
	assert.Equal(t, time.Hour, d)
	assert.Empty(t, over)
}

func TestTheLatestAttemptsAreKept(t *testing.T) {
	a := attempts{most: 3}
	for i := range 5 {
		a.add(Attempt{Attempt: i})
		assert.Equal(t, i, a.all()[0].Attempt)
	}
	all := a.all()
	require.Len(t, all, 3)
	assert.Equal(t, 2, all[2].Attempt)
	none := attempts{}
	none.add(Attempt{})
	assert.Empty(t, none.all())
}
