//go:build !race

package registry_test

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry"
)

// A registry of 1,000 subscribers with 10 rules each is ready in well under 5 s.
func TestTenThousandRulesAreReadySoon(t *testing.T) {
	const subscribers, rules = 1000, 10
	w := newWorld(t)
	a := w.open(t, registry.Options{})
	putBus(t, a, "orders")
	var all sync.WaitGroup
	begin := time.Now()
	for worker := range 20 {
		all.Go(func() {
			for i := worker; i < subscribers; i += 20 {
				_, _, err := a.PutSubscriber(testContext(t), withRules(aSubscriber("orders", fmt.Sprintf("s%d", i)), rules), registry.Condition{})
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
		_, _, err := a.PutSubscriber(testContext(t), sub, registry.Condition{})
		require.NoError(t, err)
		lone = append(lone, time.Since(begin))
	}
	slices.Sort(lone)
	t.Logf("a lone change: median %s, longest %s", lone[10], lone[20])
	client := w.dial(t, true)
	before := heap()
	begin = time.Now()
	b := w.openWith(t, client, registry.Options{})
	took := time.Since(begin)
	t.Logf("%d rules were read in %s and take %d KiB", b.Snapshot().Rules(), took, (heap()-before)>>10)
	require.Equal(t, subscribers*rules+1, b.Snapshot().Rules())
	require.Less(t, took, 5*time.Second)
}

// heap is what lives on it.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
