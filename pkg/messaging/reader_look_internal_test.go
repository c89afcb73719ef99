package messaging

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/cluster"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/read"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/record"
	"github.com/aviaryhq/aviary/test/fakebroker"
)

// lateClient has readers that are shown some messages, all of them together, and nothing more until
// a time, as a broker does that limits a topic's rate, or cannot read from its store for a while.
type lateClient struct {
	pulsar.Client
	left  *atomic.Int32
	until <-chan struct{}
}

func (c lateClient) CreateReader(o pulsar.ReaderOptions) (pulsar.Reader, error) {
	r, err := c.Client.CreateReader(o)
	if err != nil {
		return nil, err
	}
	return lateReader{r, c}, nil
}

type lateReader struct {
	pulsar.Reader
	c lateClient
}

func (r lateReader) Next(ctx context.Context) (pulsar.Message, error) {
	if r.c.left.Add(-1) < 0 {
		select {
		case <-r.c.until:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return r.Reader.Next(ctx)
}

// Whoever is dispatched nothing for a long time has not reached the end.
func TestReadToEndWaitsForLateMessages(t *testing.T) {
	t.Parallel()
	const topic, hurry = "orders", 10
	const late = 15 * time.Second / hurry
	for name, shown := range map[string]int32{
		"nothing is shown": 0, "one message to the reader": 1, "one more to whoever looks": 2,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := fakebroker.Start(t)
			s.CreateTopic(topic, 0)
			for i := range 50 {
				s.Publish(topic, fakebroker.Message{Payload: []byte(strconv.Itoa(i))})
			}
			s.PublishRaw(topic, WrongChecksum(), 1)
			client, err := Dial(t.Context(), cluster.Config{URL: s.URL()})
			require.NoError(t, err)
			defer func() { require.NoError(t, client.Close(context.Background())) }()
			client.HurryReaders(hurry)
			until := make(chan struct{})
			left := new(atomic.Int32)
			left.Store(shown)
			client.cluster.Consumers = lateClient{client.cluster.Consumers, left, until}
			time.AfterFunc(late, func() { close(until) })
			r, err := client.Reader(t.Context(), read.ReaderConfig{Topic: topic})
			require.NoError(t, err)
			n, err := r.ReadToEnd(t.Context(), func(context.Context, *record.Delivery) error { return nil })
			require.NoError(t, err)
			require.Equal(t, 50, n)
			select {
			case <-r.CaughtUp():
			default:
				t.Fatal("all was read")
			}
		})
	}
}
