package processor

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/registrytest"
)

// bytesEach bounds what a subscriber that is consumed and gets nothing may cost: 1,000 of them have to fit a process of
// 512 MiB beside everything else.
const bytesEach = 300 << 10

// What a subscriber costs is measured with some of them. AVIARY_SUBSCRIBERS is how many.
func TestSubscribersAreSmall(t *testing.T) {
	n := 50
	if text := os.Getenv("AVIARY_SUBSCRIBERS"); text != "" {
		var err error
		n, err = strconv.Atoi(text)
		require.NoError(t, err)
	}
	w := newWorld(t, 1)
	subs := make([]registry.Subscriber, n)
	for i := range subs {
		subs[i] = newSubscriber(fmt.Sprint("s", i), registry.OrderNone)
		subs[i].Bus, subs[i].UID, subs[i].Revision = busName, "u-"+subs[i].Name, 1
		w.target(subs[i].Name, nil)
	}
	maker := registry.NewPulsar(w.client, w.topics, true)
	var making sync.WaitGroup
	next := make(chan *registry.Subscriber)
	for range 8 {
		making.Go(func() {
			for s := range next {
				assert.NoError(t, maker.MakeSubscriber(t.Context(), &w.bus, s))
			}
		})
	}
	for i := range subs {
		next <- &subs[i]
	}
	close(next)
	making.Wait()
	before, threads := used(), runtime.NumGoroutine()
	w.store.Set(registrytest.Snapshot(t, 1, []registry.Bus{w.bus}, subs))
	began := time.Now()
	cfg := testConfig()
	cfg.BacklogEvery = time.Hour
	p, _ := w.processor(cfg)
	for i := range subs {
		w.send(subs[i].Name, "", "e")
	}
	for i := range subs {
		w.gets(w.targets[subs[i].Name], []string{"e"})
		require.Empty(t, p.Status(busName, subs[i].Name).Trouble)
	}
	each := (used() - before) / int64(n)
	t.Logf("%d subscribers: %d KiB and %.1f goroutines each, all delivered to after %s", n, each>>10, float64(runtime.NumGoroutine()-threads)/float64(n), time.Since(began))
	assert.Less(t, each, int64(bytesEach))
}

// used is the memory that this process has of the system, without what could be given back.
func used() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}
