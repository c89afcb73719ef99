package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/storetest"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// instantStore takes everything at once.
type instantStore struct{}

func (instantStore) put(_ context.Context, entries []pendingCopy) (done, left []pendingCopy, err error) {
	return entries, nil, nil
}
func (instantStore) close(context.Context) {}

// BenchmarkEvent is the engine's own work for one event: window, matching among the rules of 1,000
// subscribers, copies, and their way through the queues. Storing takes no time.
func BenchmarkEvent(b *testing.B) {
	for _, copies := range []int{0, 1, 10} {
		for _, order := range []model.Order{model.OrderNone, model.OrderGroup} {
			b.Run(fmt.Sprintf("copies=%d/order=%s", copies, order), func(b *testing.B) { benchmarkEvent(b, copies, order) })
		}
	}
}

func benchmarkEvent(b *testing.B, copies int, order model.Order) {
	b.Helper()
	const subscribers = 1000
	var subs []model.Subscriber
	for i := range subscribers {
		s := newSubscriber(fmt.Sprint("s", i), order, fmt.Sprintf(`{"type":["t%d"]}`, i/max(copies, 1)))
		s.Bus, s.UID, s.Revision = busName, s.Name, 1
		subs = append(subs, s)
	}
	config := model.Bus{Name: busName, Partitions: 1, DedupWindow: model.Duration(time.Minute), Created: time.Now()}
	snapshot := storetest.Snapshot(b, 1, []model.Bus{config}, subs)
	e := New(Options{Config: DefaultConfig(), Log: zap.NewNop(), Metrics: NewMetrics(prometheus.NewRegistry())})
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	bus := e.newBus(ctx, snapshot.Bus(busName), nil)
	bus.update(snapshot)
	bus.own(ctx, "topic", 0)
	p := bus.owned[0]
	p.rebuilt = true
	open := func(context.Context) (topicWriter, error) { return instantStore{}, nil }
	for _, l := range bus.queues.byUID {
		l.open = open
	}
	for i := range subs {
		if order.Ordered() {
			p.queues.of(bus.rules.known[subs[i].UID].Subscriber).open = open
		}
	}
	padding, err := json.Marshal(make([]byte, 250))
	require.NoError(b, err)
	types := subscribers / max(copies, 1)
	if copies == 0 {
		types = 1
	}
	deliveries := make([]*messaging.Delivery, 1000)
	for i := range deliveries {
		kind := fmt.Sprint("t", i%types)
		if copies == 0 {
			kind = "none"
		}
		deliveries[i] = &messaging.Delivery{PublishTime: time.Now(), Payload: fmt.Appendf(nil,
			`{"specversion":"1.0","id":"%d","source":"/test","type":%q,"partitionkey":"k%d","data":{"padding":%s}}`, i, kind, i%10, padding)}
		require.Greater(b, len(deliveries[i].Payload), 400)
	}
	b.SetBytes(int64(len(deliveries[0].Payload)))
	b.ReportAllocs()
	began := cpu(b)
	for i := 0; b.Loop(); i++ {
		d := *deliveries[i%len(deliveries)]
		var err error
		d.ID, err = messaging.ParseMessageID(place(i))
		if err != nil {
			b.Fatal(err)
		}
		d.PublishTime = d.PublishTime.Add(time.Duration(i) * 100 * time.Millisecond) // none comes again within the window
		if err := bus.take(ctx, &d, messaging.PendingDelivery{}); err != nil {
			b.Fatal(err)
		}
	}
	b.StopTimer()
	b.ReportMetric(float64(cpu(b)-began)/float64(b.N), "cpu-ns/op")
	cancel()
	e.working.Wait()
	bus.endQueues()
	bus.halt()
	bus.queues.working.Wait()
}

// cpu is the time that this process has had of processors: a busy machine makes the other figures
// longer.
func cpu(t testing.TB) time.Duration {
	t.Helper()
	var u unix.Rusage
	require.NoError(t, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// place is the serialised id of the ith message: ledger, entry, partition.
func place(i int) []byte {
	ledger, entry := i>>20+1, i&(1<<20-1)
	b := []byte{1 << 3, byte(ledger), 2 << 3}
	for ; entry > 127; entry >>= 7 {
		b = append(b, byte(entry)|128)
	}
	return append(b, byte(entry), 3<<3, 0)
}
