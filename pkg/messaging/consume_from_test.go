package messaging_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/fakebroker"
)

func TestConsumerBeginsWhereItIsTold(t *testing.T) {
	t.Parallel()
	topic := newManaged(t, 0)
	ids := topic.publish(t, 0, 9)
	from := messaging.AtMessage(ids[6])
	cfg := consumerConfig(topic.Name(), messaging.Exclusive)
	cfg.From = &from
	cfg.Order = messaging.OrderTotal
	var got payloads
	handle := func(_ context.Context, d *messaging.Delivery) error {
		got.add(d)
		return nil
	}
	r := start(t, topic.client, cfg, handle)
	eventually(t, "what is there from the message on", func() bool { return len(got.list()) == 4 })
	r.stop(t)
	require.Equal(t, []string{"6", "7", "8", "9"}, got.list())

	topic.publish(t, 10, 10)
	r = start(t, topic.client, cfg, handle)
	eventually(t, "a subscription that exists goes on where it was", func() bool { return len(got.list()) == 5 })
	r.stop(t)
	require.Equal(t, "10", got.list()[4])

	_, err := dial(t, topic.srv.URL()).Consumer(cfg)
	require.ErrorIs(t, err, messaging.ErrNoAdminURL)
	cfg.Durable = false
	_, err = topic.client.Consumer(cfg)
	require.ErrorContains(t, err, "from")
}

// The admin API is unavailable when a consumer that runs subscribes again.
func TestConsumerNeedsTheAdminAPIOnceToBegin(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	s.CreateTopic(topic, 0)
	var asked atomic.Int32
	api := newAdminServer(t, nil, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/partitions"):
			_, _ = io.WriteString(w, `{"partitions":0}`)
		case r.Method == http.MethodPut && asked.Add(1) == 1:
			w.WriteHeader(http.StatusNoContent)
		default:
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	client := dialWith(t, messaging.Config{URL: s.URL(), AdminURL: api.URL, OperationTimeout: await.Patience})
	from := messaging.Earliest()
	cfg := quickConfig(messaging.Exclusive, "")
	cfg.From = &from
	var got payloads
	r := start(t, client, cfg, func(_ context.Context, d *messaging.Delivery) error {
		got.add(d)
		return nil
	})
	s.Publish(topic, fakebroker.Message{Payload: []byte("1")})
	eventually(t, "it is subscribed", func() bool { return len(got.list()) == 1 })
	require.NoError(t, s.WaitAcked(testContext(t), topic, "sub", 1))
	refused := s.FailSubscribe(topic, fakebroker.ConsumerBusy, 1)
	s.CutConnections()
	require.NoError(t, refused.Wait(testContext(t), 1)) // which ends the session
	s.Publish(topic, fakebroker.Message{Payload: []byte("2")})
	eventually(t, "it is subscribed again", func() bool { return len(got.list()) == 2 })
	r.stop(t)
	require.EqualValues(t, 1, asked.Load())
}
