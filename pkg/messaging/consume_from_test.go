package messaging_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging"
)

func TestConsumerBeginsWhereItIsTold(t *testing.T) {
	topic := newManaged(t, 0)
	ids := topic.publish(t, 0, 9)
	from := messaging.AtMessage(ids[6])
	cfg := consumerConfig(topic.Name(), messaging.Exclusive)
	cfg.From = &from
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
