package backoff_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/backoff"
)

func TestBackoffDoublesUpToItsMaximum(t *testing.T) {
	var b backoff.Backoff
	require.False(t, b.Started())
	require.Zero(t, b.Current())
	for want := backoff.Min; want < backoff.Max; want *= 2 {
		d := b.Next()
		require.GreaterOrEqual(t, d, want)
		require.Less(t, d, want+want/5)
	}
	b.Next()
	require.True(t, b.IsMaxBackoffReached())
	require.GreaterOrEqual(t, b.Next(), backoff.Max)
	b.Reset()
	require.Less(t, b.Next(), 2*backoff.Min)
}

func TestBackoffHasBoundsOfItsOwn(t *testing.T) {
	b := backoff.Backoff{Min: time.Millisecond, Max: 3 * time.Millisecond}
	for _, want := range []time.Duration{1, 2, 3, 3} {
		require.InDelta(t, float64(want)*1.1, float64(b.Next())/float64(time.Millisecond), float64(want)*.1)
	}
	require.True(t, b.IsMaxBackoffReached())
	b.Held(backoff.Steady - 1)
	require.True(t, b.Started())
	b.Held(backoff.Steady)
	require.False(t, b.Started())
}

func TestWaitGrowsUntilReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := backoff.Backoff{Min: time.Second, Max: 4 * time.Second}
		waited := func() time.Duration {
			began := time.Now()
			require.True(t, b.Wait(t.Context()))
			return time.Since(began)
		}
		for _, least := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 4 * time.Second} {
			d := waited()
			require.GreaterOrEqual(t, d, least)
			require.Less(t, d, least+least/5)
		}
		b.Reset()
		require.Less(t, waited(), 2*time.Second)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.False(t, b.Wait(ctx))
	})
}

func TestSleepEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		require.True(t, backoff.Sleep(t.Context(), time.Minute))
		require.Equal(t, time.Minute, time.Since(began))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.False(t, backoff.Sleep(ctx, time.Minute))
		require.Equal(t, time.Minute+time.Second, time.Since(began))
	})
}
