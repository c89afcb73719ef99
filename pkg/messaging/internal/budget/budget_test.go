package budget

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestQueueLengthFitsTheBudget(t *testing.T) {
	b := New(Config{Messages: 1000, Bytes: 64 << 20, MaxMessage: 5 << 20})
	for _, weight := range []int64{1, 700, 5 << 10, 1 << 20, 5 << 20, 1 << 40, math.MaxInt64} {
		for _, partitions := range []int{0, 1, 3, 64, 5000} {
			n := b.QueueLength(partitions, weight)
			require.GreaterOrEqual(t, n, 1)
			if n > 1 {
				all := int64(n * max(partitions, 1))
				require.LessOrEqual(t, all, int64(1000), "messages")
				require.LessOrEqual(t, (all+all/2)*weight, b.bytes+weight, "bytes, with the channel")
			}
		}
	}
	require.Equal(t, 1000, b.QueueLength(1, 700), "small messages: as many as asked for")
	require.Equal(t, 4, b.QueueLength(1, 5<<20))
}

func TestWeightFollowsRunsNotOutliers(t *testing.T) {
	var w Weigher
	_, known := w.Weight()
	require.False(t, known)
	w.Add(1, 1000)
	got, known := w.Weight()
	require.True(t, known)
	require.EqualValues(t, 2000, got)
	for range 200 {
		w.Add(1, 1000)
	}
	w.Add(1, 1<<20)
	for range 200 {
		w.Add(1, 1000)
	}
	got, _ = w.Weight()
	require.Less(t, got, int64(64<<10), "one large message among small ones")
	for range 200 {
		w.Add(1, 1<<20)
	}
	got, _ = w.Weight()
	require.GreaterOrEqual(t, got, int64(1<<20), "a run of large ones")
}

func TestStarvation(t *testing.T) {
	var p Starvation
	now := time.Unix(1000, 0)
	require.False(t, p.Limited(now, 4))
	p.entries = 8
	require.True(t, p.Limited(now.Add(10*time.Millisecond), 4), "emptied twice within the window")
	require.False(t, (&Starvation{start: now, entries: 8}).Limited(now.Add(time.Second), 4), "too slowly")
	require.False(t, (&Starvation{start: now, entries: 7}).Limited(now.Add(time.Millisecond), 4))
}
