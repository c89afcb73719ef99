package delivery

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

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/store"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/storetest"
	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/await"
)

// bytesEach bounds what a subscriber may cost whose topics are open in engine and processor: 1,000
// of them have to fit a process of 512 MiB beside everything else.
const bytesEach = 320 << 10

// fixed is about what connections and the bus take, however many subscribers there are.
const fixed = 8 << 20

// What a subscriber costs is measured with some of them. AVIARY_SUBSCRIBERS is how many.
func TestSubscribersAreSmall(t *testing.T) {
	n := 50
	if text := os.Getenv("AVIARY_SUBSCRIBERS"); text != "" {
		var err error
		n, err = strconv.Atoi(text)
		require.NoError(t, err)
	}
	w := newFixture(t, 1)
	subs := make([]model.Subscriber, n)
	for i := range subs {
		subs[i] = newSubscriber(fmt.Sprint("s", i), model.OrderNone)
		subs[i].Bus, subs[i].UID, subs[i].Revision = busName, "u-"+subs[i].Name, 1
		w.target(subs[i].Name, nil)
	}
	maker := store.NewPulsar(w.client, w.topics, true)
	var making sync.WaitGroup
	next := make(chan *model.Subscriber)
	for range 8 {
		making.Go(func() {
			for s := range next {
				err := maker.MakeSubscriber(t.Context(), &w.bus, s)
				if err != nil { // brokers are slow with thousands of topics
					err = maker.MakeSubscriber(t.Context(), &w.bus, s)
				}
				assert.NoError(t, err)
			}
		})
	}
	for i := range subs {
		next <- &subs[i]
	}
	close(next)
	making.Wait()
	before, threads := used(), runtime.NumGoroutine()
	w.store.Set(storetest.Snapshot(t, 1, []model.Bus{w.bus}, subs))
	began := time.Now()
	cfg := testConfig()
	p, _ := w.processor(cfg)
	w.engine(w.client)
	in, err := w.client.Publisher(t.Context(), w.topics.Events(busName), messaging.Business())
	require.NoError(t, err)
	require.NoError(t, in.Publish(t.Context(), &messaging.Record{Key: "k", Payload: testEvent("e", "a", "k")}))
	for i := range subs { // engine and processor have all open
		require.Eventually(t, func() bool { return len(w.targets[subs[i].Name].delivered()) > 0 }, await.Patience, 10*time.Millisecond)
		require.Empty(t, p.Status(busName, subs[i].Name).Unhealthy)
	}
	each := (used() - before - fixed) / int64(n)
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
