package pipeline

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/connector/message"
)

// fill offers messages until the pipeline takes no more for a second, and returns how many it took.
func fill(t *testing.T, l *Pipeline) (taken int) {
	t.Helper()
	for {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		err := l.Offer(ctx, numbered(taken), int64(taken))
		cancel()
		if err != nil {
			require.ErrorIs(t, err, context.DeadlineExceeded)
			return taken
		}
		taken++
	}
}

// TestBusyPipelineBorrowsFromIdleOnes: 999 idle partitions do not slow down a busy one.
func TestBusyPipelineBorrowsFromIdleOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newHarness(t, Config{Messages: 4000, Bytes: 12 << 20}, nil)
		b.sink.immediate = func(_ int, s sent) bool {
			go func() { time.Sleep(5 * time.Millisecond); s.done(nil) }()
			return true
		}
		busy := b.open()
		for range 999 {
			idle := b.open()
			defer idle.Abandon()
		}
		began := time.Now()
		for n := range 4000 {
			offer(t, busy, n)
		}
		require.NoError(t, busy.Close(t.Context()))
		assert.Less(t, time.Since(began), 30*time.Millisecond, "about a thousand at a time")
	})
}

// TestStuckPipelinesLeaveOthersTheirShare: each stuck pipeline borrows half of what is left in the
// pool, and nothing of another pipeline's own share.
func TestStuckPipelinesLeaveOthersTheirShare(t *testing.T) {
	for name, cfg := range map[string]Config{"messages": {Messages: 800}, "bytes": {Messages: 10_000, Bytes: 800 * numbered(100).Size()}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newHarness(t, cfg, nil)
				var pipelines []*Pipeline
				for range 4 {
					l := b.open()
					defer l.Abandon()
					pipelines = append(pipelines, l)
				}
				var took []int
				for _, l := range pipelines {
					took = append(took, fill(t, l))
				}
				for i, want := range []int{100 + 200, 100 + 100, 100 + 50, 100 + 25} {
					assert.InDelta(t, want, took[i], 8, "%v", took)
				}
				// Another pipeline may take what a pipeline gives back.
				waited := make(chan time.Duration, 1)
				go func() {
					began := time.Now()
					assert.NoError(t, pipelines[3].Offer(t.Context(), numbered(1000), 1000))
					waited <- time.Since(began)
				}()
				time.Sleep(time.Second)
				for n := range took[0] {
					b.sink.call(n).done(nil)
				}
				assert.Equal(t, time.Second, <-waited)
			})
		})
	}
}

// TestBoundsWhilePipelinesOpenAndClose: all pipelines together exceed the bound by at most one message
// each, and State never shows more.
func TestBoundsWhilePipelinesOpenAndClose(t *testing.T) {
	const pipelines, rounds, each, bound = 12, 4, 400, 100
	outcomes := make(chan func(error), 10_000)
	var out, most atomic.Int64
	b := newHarness(t, Config{Messages: bound}, func(r *Route) {
		r.Sink = sinkOf(func(_ *message.Message, done func(error)) {
			n := out.Add(1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			outcomes <- done
		})
	})
	var workers, offering sync.WaitGroup
	workers.Go(func() {
		for done := range outcomes {
			out.Add(-1)
			done(nil)
		}
	})
	var shown int
	end := make(chan struct{})
	workers.Go(func() {
		for {
			shown = max(shown, b.State().InFlight)
			select {
			case <-end:
				return
			default:
			}
		}
	})
	for i := range pipelines {
		offering.Go(func() {
			for range rounds {
				l := b.Open(strconv.Itoa(i), func(int64) error { return nil })
				for n := range each {
					assert.NoError(t, l.Offer(t.Context(), numbered(n), int64(n)))
				}
				assert.NoError(t, l.Close(t.Context()))
			}
		})
	}
	offering.Wait()
	close(outcomes)
	close(end)
	workers.Wait()
	assert.LessOrEqual(t, most.Load(), int64(bound+pipelines))
	assert.LessOrEqual(t, shown, bound+pipelines)
	assert.Zero(t, b.pool.held)
	assert.Zero(t, b.pool.borrowed)
}

// TestSetBounds: new bounds apply at once to new messages. Messages in flight stay.
func TestSetBounds(t *testing.T) {
	for name, bounds := range map[string]func(n int64) (int, int64){
		"messages": func(n int64) (int, int64) { return int(n), 1 << 30 },
		"bytes":    func(n int64) (int, int64) { return 1 << 20, n * numbered(100).Size() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newHarness(t, Config{}, nil)
				b.SetBounds(bounds(400))
				l := b.open()
				assert.InDelta(t, 400, fill(t, l), 4)
				b.SetBounds(bounds(100))
				assert.Zero(t, fill(t, l))
				for n := range 350 {
					b.sink.call(n).done(nil)
				}
				more := fill(t, l)
				assert.InDelta(t, 50, more, 5, "100 with the 50 in flight")
				waited := make(chan error, 1)
				go func() { waited <- l.Offer(t.Context(), numbered(1000), 1000) }()
				synctest.Wait()
				b.SetBounds(bounds(1000))
				require.NoError(t, <-waited, "a waiting Offer is woken")
				other := b.open()
				assert.Positive(t, fill(t, other), "with the new bounds")
				l.Abandon()
				other.Abandon()
			})
		})
	}
}

// sinkOf makes a function a sink.
type sinkOf func(m *message.Message, done func(error))

func (f sinkOf) Send(_ context.Context, _ string, m *message.Message, done func(error)) { f(m, done) }
