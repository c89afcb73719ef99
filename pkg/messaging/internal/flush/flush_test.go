package flush

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// log notes flushes, each of which takes roundTrip.
type log struct {
	roundTrip time.Duration
	began     time.Time

	mu      sync.Mutex
	flushes []string // "partition at milliseconds"
	running int
	most    int
}

func (l *log) partition(name string) *Partition {
	return &Partition{Flush: func() {
		l.mu.Lock()
		l.flushes = append(l.flushes, fmt.Sprintf("%s at %d", name, time.Since(l.began).Milliseconds()))
		l.running++
		l.most = max(l.most, l.running)
		l.mu.Unlock()
		time.Sleep(l.roundTrip)
		l.mu.Lock()
		l.running--
		l.mu.Unlock()
	}}
}

func (l *log) sorted() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Sorted(slices.Values(l.flushes))
}

func started(roundTrip time.Duration) *log { return &log{roundTrip: roundTrip, began: time.Now()} }

func active(n int) func() int { return func() int { return n } }

// The first request is served at once. Those behind it are served together, when the first is
// acknowledged or when the linger is over.
func TestRequestsBehindAFlushGather(t *testing.T) {
	for _, groupCommit := range []bool{true, false} {
		for linger, second := range map[time.Duration]string{time.Hour: "p at 20", 5 * time.Millisecond: "p at 6"} {
			synctest.Test(t, func(t *testing.T) {
				l := started(20 * time.Millisecond)
				f := new(Flushers).Of(Config{Linger: linger, GroupCommit: groupCommit}, active(1))
				p := l.partition("p")
				f.Request(p)
				time.Sleep(time.Millisecond)
				f.Request(p)
				f.Request(p)
				time.Sleep(time.Second)
				require.ElementsMatch(t, []string{"p at 0", second}, l.sorted())
			})
		}
	}
}

// Without group commit four partitions have something in flight, and then the one that waits for
// the longest follows. Under group commit each goes by itself.
func TestPartitionsTakeTurns(t *testing.T) {
	for groupCommit, want := range map[bool][]string{
		false: {"0 at 0", "1 at 0", "2 at 0", "3 at 0", "4 at 10", "5 at 10"},
		true:  {"0 at 0", "1 at 0", "2 at 0", "3 at 0", "4 at 0", "5 at 0"},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := started(10 * time.Millisecond)
			f := new(Flushers).Of(Config{Linger: time.Hour, GroupCommit: groupCommit}, active(6))
			for i := range 6 {
				f.Request(l.partition(fmt.Sprint(i)))
			}
			time.Sleep(time.Second)
			require.Equal(t, want, l.sorted())
		})
	}
}

// Full entries do not wait, but for a broker that is far behind: then the linger paces them.
func TestFullEntriesDoNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := started(time.Second)
		f := new(Flushers).Of(Config{Linger: time.Millisecond}, active(1))
		p := l.partition("p")
		for range 3 * flushesAtOnce {
			f.Hurry(p)
		}
		synctest.Wait()
		require.Equal(t, flushesAtOnce, l.most)
		f.Request(p)
		time.Sleep(500 * time.Millisecond)
		require.Equal(t, flushesAtOnce, l.most, "the linger does not exceed it")
		time.Sleep(time.Minute)
		require.Len(t, l.sorted(), flushesAtOnce+1)
	})
}

// With many active partitions records gather for longer, so that the number of entries does not
// grow with them.
func TestLingerGrowsWithActivePartitions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := started(time.Minute)
		f := new(Flushers).Of(Config{Linger: 2 * time.Millisecond}, active(10*manyPartitions))
		require.True(t, f.Gathers())
		for range partitionsAtOnce {
			f.Request(l.partition("busy"))
		}
		f.Request(l.partition("waits"))
		time.Sleep(time.Second)
		require.Contains(t, l.sorted(), "waits at 20")
		few := new(Flushers).Of(Config{}, active(manyPartitions))
		require.False(t, few.Gathers())
		time.Sleep(time.Hour) // all have ended
	})
}

// A partition that is closed is not flushed any more.
func TestForgottenPartitionIsNotFlushed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := started(10 * time.Millisecond)
		f := new(Flushers).Of(Config{Linger: time.Millisecond, GroupCommit: true}, active(1))
		p := l.partition("p")
		f.Request(p)
		time.Sleep(time.Microsecond)
		f.Request(p)
		f.Forget(p)
		time.Sleep(time.Second)
		require.Len(t, l.sorted(), 1)
	})
}

func TestPublishersThatAgreeShareAFlusher(t *testing.T) {
	var fs Flushers
	a := fs.Of(Config{Linger: time.Microsecond}, active(1))
	require.Same(t, a, fs.Of(Config{Linger: time.Millisecond}, active(1)), "a millisecond at least")
	require.NotSame(t, a, fs.Of(Config{Linger: time.Millisecond, GroupCommit: true}, active(1)))
}
