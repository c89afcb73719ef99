package delivery

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/target"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// counter is a target that counts.
type counter struct {
	n    atomic.Int64
	want int64
	all  chan struct{}
}

func (c *counter) Deliver(_ context.Context, batch []target.Delivery) []target.Result {
	results := make([]target.Result, len(batch))
	for i := range results {
		results[i] = delivered()
	}
	if c.n.Add(int64(len(batch))) == c.want {
		close(c.all)
	}
	return results
}

func (c *counter) Close(context.Context) error { return nil }

// BenchmarkEngineToTarget is an event's way from the bus' topic through engine and processor to a
// target that takes no time, with a real Pulsar.
func BenchmarkEngineToTarget(b *testing.B) {
	for _, order := range []model.Order{model.OrderNone, model.OrderGroup, model.OrderTotal} {
		b.Run(string(order), func(b *testing.B) {
			s := newSubscriber("s", order)
			s.Delivery.Concurrency = 64
			w := newFixture(b, 2, s)
			require.NoError(b, w.client.Namespace(w.topics.Namespace).SetDeduplication(b.Context(), true))
			c := &counter{want: int64(b.N), all: make(chan struct{})}
			w.counter = c
			w.engine(w.client)
			w.processor(testConfig())
			in, err := w.client.Publisher(b.Context(), w.topics.Events(busName), messaging.Business())
			require.NoError(b, err)
			b.ResetTimer()
			for i := range b.N {
				key := fmt.Sprint("k", i%100)
				in.PublishAsync(b.Context(), &messaging.Record{Key: key, Payload: testEvent(fmt.Sprint("e", i), "a", key)}, func(_ messaging.MessageID, err error) {
					if err != nil {
						b.Error(err)
					}
				})
			}
			<-c.all
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
		})
	}
}
