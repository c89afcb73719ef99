package template

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestCountValues(t *testing.T) {
	for text, want := range map[string]int{
		`1`: 1, `"a,[{"`: 1, `[1,2]`: 3, `{"a":1,"b\",":[true,{"c":null}]}`: 6, `[]`: 2, `"\\"`: 1, `["\\",1]`: 3,
	} {
		assert.Equal(t, want, countValues([]byte(text)), text)
	}
}

// TestTurns: however many subscribers transform, no more events are decoded at a time than there
// are processors.
func TestTurns(t *testing.T) {
	var now, most atomic.Int64
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			for range 20 {
				end := turn()
				n := now.Add(1)
				for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
				}
				runtime.Gosched()
				now.Add(-1)
				end()
			}
		})
	}
	wg.Wait()
	assert.LessOrEqual(t, most.Load(), int64(runtime.GOMAXPROCS(0)))
	assert.Empty(t, turns())
}
