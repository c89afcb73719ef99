//go:build !race

package store_test

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/store"
)

// A registry of 1,000 subscribers with 10 rules each is ready in well under 5 s of processor time. By
// the clock it takes longer where others are on the machine.
func TestTenThousandRulesAreReadySoon(t *testing.T) {
	const subscribers, rules = 1000, 10
	w := newFixture(t)
	a := w.open(t, store.Options{})
	putBus(t, a, "orders")
	var all sync.WaitGroup
	begin := time.Now()
	for worker := range 20 {
		all.Go(func() {
			for i := worker; i < subscribers; i += 20 {
				_, _, err := a.PutSubscriber(testContext(t), withRules(aSubscriber("orders", fmt.Sprintf("s%d", i)), rules), store.Condition{})
				assert.NoError(t, err)
			}
		})
	}
	all.Wait()
	t.Logf("%d subscribers were made in %s", subscribers, time.Since(begin))
	var lone []time.Duration
	for i := range 21 {
		sub := aSubscriber("orders", "lone")
		sub.Description = fmt.Sprint(i)
		begin := time.Now()
		_, _, err := a.PutSubscriber(testContext(t), sub, store.Condition{})
		require.NoError(t, err)
		lone = append(lone, time.Since(begin))
	}
	slices.Sort(lone)
	t.Logf("a lone change: median %s, longest %s", lone[10], lone[20])
	client := w.dial(t, true)
	before := heap()
	begin = time.Now()
	used := processorTime(t)
	b := w.openWith(t, client, store.Options{})
	used = processorTime(t) - used
	t.Logf("%d rules were read in %s, %s of processor time, and take %d KiB", b.Snapshot().Rules(), time.Since(begin), used, (heap()-before)>>10)
	require.Equal(t, subscribers*rules+1, b.Snapshot().Rules())
	require.Less(t, used, 5*time.Second)
}

// processorTime is what this process has used. No other test runs meanwhile.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var used syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// heap is what lives on it.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
