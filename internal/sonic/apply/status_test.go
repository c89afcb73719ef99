package apply

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/sonic/wire"
)

func begun(t *testing.T) *Applier {
	t.Helper()
	a := New(Config{Zone: "a", Origin: "b", MaxClockSkew: time.Hour}, nil, nil, zap.NewNop(), NewMetrics(prometheus.NewRegistry()))
	a.status.Began = time.Now()
	return a
}

// idOf is an effect of a moment.
func idOf(at time.Time) wire.ID { return wire.ID{Ms: uint64(at.UnixMilli())} }

// TestLagOfAZoneThatIsNeverHeard: a zone that nothing is replicated from is behind, though no
// message tells how far.
func TestLagOfAZoneThatIsNeverHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, _, known := (Status{}).Behind(time.Now())
		assert.False(t, known, "it does not run")
		a := begun(t)
		time.Sleep(maxSilence)
		_, _, known = a.Status().Behind(time.Now())
		assert.False(t, known, "the first message may be under way")
		time.Sleep(time.Minute)
		lag, effects, known := a.Status().Behind(time.Now())
		require.True(t, known)
		assert.Equal(t, maxSilence+time.Minute, lag)
		assert.Zero(t, effects)
	})
}

// TestLagWhereAnotherProcessApplies: it is that of the zone's Redis.
func TestLagWhereAnotherProcessApplies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := begun(t)
		behind := func() (time.Duration, int64) {
			lag, effects, known := a.Status().Behind(time.Now())
			require.True(t, known)
			return lag, effects
		}
		// The other one applies each beat.
		for n := int64(100); n < 200; n += watchEvery.Milliseconds() / 1000 {
			time.Sleep(watchEvery)
			end := &wire.Header{Last: idOf(time.Now().Add(-500 * time.Millisecond)), Count: n}
			a.recordEnd(end)
			a.updateCursor(end.Last)
			lag, effects := behind()
			assert.Zero(t, lag)
			assert.Zero(t, effects)
		}
		time.Sleep(watchEvery)
		lag, _ := behind()
		assert.Zero(t, lag, "between two looks")
		// It is 10 s behind.
		a.updateCursor(idOf(time.Now().Add(-10 * time.Second)))
		lag, _ = behind()
		assert.Zero(t, lag, "an older cursor is that of a Redis that came back older: what it had is applied again")
		time.Sleep(20 * time.Second)
		a.updateCursor(idOf(time.Now().Add(-10 * time.Second)))
		lag, _ = behind()
		assert.Equal(t, 9*time.Second, lag)
		// Nobody applies any more.
		cursor := a.Status().Cursor
		for range 12 {
			time.Sleep(watchEvery)
			a.updateCursor(cursor)
		}
		lag, _ = behind()
		assert.Equal(t, 69*time.Second, lag)
	})
}

// TestLagInEffectsWhereAnotherProcessApplies: it does not rise while the zone is behind by as much,
// though no look finds all of the topic applied.
func TestLagInEffectsWhereAnotherProcessApplies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := begun(t)
		const each, rate = int64(watchEvery / time.Second), 1000
		began := time.Now()
		count := func(at time.Time) int64 { return int64(at.Sub(began)/time.Second) * rate }
		for n := range 3 * maxEnds {
			time.Sleep(watchEvery)
			now := time.Now()
			a.recordEnd(&wire.Header{Last: idOf(now), Count: count(now)})
			a.updateCursor(idOf(now.Add(-10 * time.Second))) // the zone is 10 s behind
			if n < 3 {
				continue
			}
			_, effects, known := a.Status().Behind(now)
			require.True(t, known)
			require.GreaterOrEqual(t, effects, int64(10*rate))
			require.LessOrEqual(t, effects, (10+each)*rate)
		}
		require.LessOrEqual(t, len(a.ends), 3)
		for range 3 * maxEnds { // nobody applies any more
			time.Sleep(watchEvery)
			a.recordEnd(&wire.Header{Last: idOf(time.Now()), Count: count(time.Now())})
			require.LessOrEqual(t, len(a.ends), maxEnds)
		}
		a.updateCursor(idOf(time.Now()))
		_, effects, _ := a.Status().Behind(time.Now())
		assert.Zero(t, effects)
		assert.Empty(t, a.ends)
	})
}

// TestHealthOfTheTopic: what keeps messages from coming shows, also when nothing was ever
// applied.
func TestHealthOfTheTopic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := begun(t)
		refused, unavailable := errors.New("not authorized"), errors.New("no broker")
		a.recordTopicError(refused, nil)
		at, now, last := a.Health()
		require.ErrorIs(t, now, refused)
		require.ErrorIs(t, last, refused)
		assert.Equal(t, time.Now(), at)
		a.recordTopicError(nil, unavailable)
		_, now, last = a.Health()
		require.NoError(t, now, "messages may come all the same")
		require.ErrorIs(t, last, refused)
		time.Sleep(maxSilence + time.Second)
		a.recordTopicError(nil, unavailable)
		at, now, last = a.Health()
		require.ErrorIs(t, now, unavailable)
		require.ErrorContains(t, now, "no effects arrive from zone b")
		require.ErrorIs(t, last, unavailable)
		assert.Equal(t, time.Now(), at)
		apply := errors.New("redis is unavailable")
		a.health.Set(apply)
		_, now, _ = a.Health()
		require.ErrorIs(t, now, apply)
		a.health.Set(nil)
		a.recordTopicError(nil, nil)
		_, now, _ = a.Health()
		require.NoError(t, now)
	})
}

func TestLagsOfTheLastMinute(t *testing.T) {
	var l lags
	now := time.Unix(1000, 0)
	assert.Zero(t, l.last(now))
	for i := range 100 {
		l.add(now, time.Duration(i+1)*time.Millisecond)
	}
	assert.Equal(t, Lags{P50: 50 * time.Millisecond, P99: 99 * time.Millisecond, Messages: 100}, l.last(now))
	now = now.Add(30 * time.Second)
	l.add(now, -time.Second)
	assert.Equal(t, 101, l.last(now).Messages)
	now = now.Add(45 * time.Second)
	assert.Equal(t, Lags{Messages: 1}, l.last(now), "a clock that is ahead is no lag")
	for range maxLags {
		l.add(now, time.Second)
	}
	assert.Equal(t, Lags{P50: time.Second, P99: time.Second, Messages: maxLags}, l.last(now))
	assert.Zero(t, l.last(now.Add(lagsPeriod)))
}
