package messaging

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestQueueLengthFitsTheBudget(t *testing.T) {
	b := newBudget(DefaultConsumerConfig())
	for _, weight := range []int64{1, 700, 5 << 10, 1 << 20, 5 << 20, 1 << 40, math.MaxInt64} {
		for _, partitions := range []int{0, 1, 3, 64, 5000} {
			n := b.queueLength(partitions, weight)
			require.GreaterOrEqual(t, n, 1)
			if n > 1 {
				all := int64(n * max(partitions, 1))
				require.LessOrEqual(t, all, int64(1000), "messages")
				require.LessOrEqual(t, (all+all/2)*weight, b.bytes+weight, "bytes, with the channel")
			}
		}
	}
	require.Equal(t, 1000, b.queueLength(1, 700), "small messages: as many as asked for")
	require.Equal(t, 4, b.queueLength(1, 5<<20))
}

func TestWeightFollowsRunsNotOutliers(t *testing.T) {
	var w weigher
	_, known := w.weight()
	require.False(t, known)
	w.add(1, 1000)
	got, known := w.weight()
	require.True(t, known)
	require.EqualValues(t, 2000, got)
	for range 200 {
		w.add(1, 1000)
	}
	w.add(1, 1<<20)
	for range 200 {
		w.add(1, 1000)
	}
	got, _ = w.weight()
	require.Less(t, got, int64(64<<10), "one large message among small ones")
	for range 200 {
		w.add(1, 1<<20)
	}
	got, _ = w.weight()
	require.GreaterOrEqual(t, got, int64(1<<20), "a run of large ones")
}

func TestPressure(t *testing.T) {
	var p pressure
	now := time.Unix(1000, 0)
	require.False(t, p.limited(now, 4))
	p.entries = 8
	require.True(t, p.limited(now.Add(10*time.Millisecond), 4), "emptied twice within the window")
	require.False(t, (&pressure{start: now, entries: 8}).limited(now.Add(time.Second), 4), "too slowly")
	require.False(t, (&pressure{start: now, entries: 7}).limited(now.Add(time.Millisecond), 4))
}

func TestRetryDelay(t *testing.T) {
	r := Retry{MinDelay: time.Second, MaxDelay: time.Minute}
	within := func(d, low time.Duration) { require.True(t, d >= low && d <= low+low/5, "%s for %s", d, low) }
	within(r.delay(1), time.Second)
	within(r.delay(2), 2*time.Second)
	within(r.delay(6), 32*time.Second)
	within(r.delay(7), time.Minute)
	within(r.delay(1<<40), time.Minute)
}
