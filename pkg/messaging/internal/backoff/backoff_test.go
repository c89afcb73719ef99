package backoff_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/backoff"
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
