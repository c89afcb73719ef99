package fakebroker_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/fakebroker"
)

func TestConsume(t *testing.T) {
	kinds := map[string]pulsar.SubscriptionType{
		"exclusive": pulsar.Exclusive, "shared": pulsar.Shared, "failover": pulsar.Failover, "key_shared": pulsar.KeyShared,
	}
	for name, kind := range kinds {
		t.Run(name, func(t *testing.T) {
			ctx := testContext(t)
			s := fakebroker.Start(t)
			s.CreateTopic("orders", 2)
			client := newClient(t, s)
			p := newProducer(t, client, pulsar.ProducerOptions{Topic: "orders", CompressionType: pulsar.LZ4})
			got := newSends()
			for i := range 100 {
				got.send(ctx, p, fmt.Sprint(i))
			}
			require.NoError(t, p.FlushWithCtx(ctx))
			s.PublishBatch("orders-partition-1", fakebroker.ZSTD, numbered(50)...)

			c := newConsumer(t, client, pulsar.ConsumerOptions{
				Topic: "orders", SubscriptionName: "sub", Type: kind, ReceiverQueueSize: 10,
				SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
			})
			seen := map[string]bool{}
			for _, m := range receiveAll(ctx, t, c, 150) {
				seen[string(m.Payload())] = true
				require.NoError(t, c.Ack(m))
			}
			require.Len(t, seen, 150)
			require.NoError(t, s.WaitAcked(ctx, "orders", "sub", 150))
			require.Zero(t, s.Unacked("orders", "sub"))
			require.Zero(t, s.Backlog("orders", "sub"))
		})
	}
}

func TestPermits(t *testing.T) {
	ctx := testContext(t)
	s := fakebroker.Start(t)
	s.Publish("orders", numbered(100)...)
	c := newConsumer(t, newClient(t, s), pulsar.ConsumerOptions{
		Topic: "orders", SubscriptionName: "sub", ReceiverQueueSize: 10,
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
	})
	require.NoError(t, s.Until(ctx, func() bool { return s.Unacked("orders", "sub") >= 10 }))
	// The first message sits in the consumer's own channel, so the client may have returned some
	// permits, never all.
	require.Less(t, s.Unacked("orders", "sub"), 30)
	receiveAll(ctx, t, c, 100)
	require.Equal(t, 100, s.Consumers("orders", "sub")[0].Dispatched)
}

func TestServerClosesConsumer(t *testing.T) {
	ctx := testContext(t)
	s := fakebroker.Start(t)
	s.Publish("orders", numbered(5)...)
	c := newConsumer(t, newClient(t, s), pulsar.ConsumerOptions{
		Topic: "orders", SubscriptionName: "sub", Type: pulsar.Shared,
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
		AckWithResponse:             true,
	})
	first := receiveAll(ctx, t, c, 5)
	require.NoError(t, c.Ack(first[0]))
	require.NoError(t, c.Ack(first[1]))
	require.Equal(t, 1, s.CloseConsumers("orders"))

	again := receiveAll(ctx, t, c, 3)
	for i, m := range again {
		require.Equal(t, fmt.Sprintf("m%d", i+2), string(m.Payload()))
		require.EqualValues(t, 1, m.RedeliveryCount())
		require.NoError(t, c.Ack(m))
	}
	require.Equal(t, 5, s.Acked("orders", "sub"))
	require.Equal(t, 1, s.Accepted(), "the connection stays")
}

func TestUnackedGoToTheOtherConsumer(t *testing.T) {
	ctx := testContext(t)
	s := fakebroker.Start(t)
	client := newClient(t, s)
	o := pulsar.ConsumerOptions{Topic: "orders", SubscriptionName: "sub", Type: pulsar.Shared}
	a, b := newConsumer(t, client, o), newConsumer(t, client, o)
	require.NoError(t, s.Until(ctx, func() bool {
		all := s.Consumers("orders", "sub")
		return len(all) == 2 && all[0].Permits > 0 && all[1].Permits > 0
	}))
	s.Publish("orders", numbered(10)...)
	receiveAll(ctx, t, a, 5)
	receiveAll(ctx, t, b, 5)
	a.Close()
	receiveAll(ctx, t, b, 5)
	require.Equal(t, 10, s.Unacked("orders", "sub"))
}

func TestNackAndBatchIndexAck(t *testing.T) {
	ctx := testContext(t)
	s := fakebroker.Start(t)
	s.PublishBatch("orders", fakebroker.None, numbered(4)...)
	c := newConsumer(t, newClient(t, s), pulsar.ConsumerOptions{
		Topic: "orders", SubscriptionName: "sub", Type: pulsar.Shared, NackRedeliveryDelay: time.Millisecond,
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
		AckWithResponse:             true, EnableBatchIndexAcknowledgment: true,
	})
	all := receiveAll(ctx, t, c, 4)
	require.NoError(t, c.Ack(all[0]))
	require.NoError(t, c.Ack(all[2]))
	require.Equal(t, 2, s.Acked("orders", "sub"))
	c.Nack(all[1])
	again := receiveAll(ctx, t, c, 2)
	require.Equal(t, "m1", string(again[0].Payload()))
	require.Equal(t, "m3", string(again[1].Payload()))
}

func TestFailoverTakesOver(t *testing.T) {
	ctx := testContext(t)
	s := fakebroker.Start(t)
	o := pulsar.ConsumerOptions{
		Topic: "orders", SubscriptionName: "sub", Type: pulsar.Failover, AckWithResponse: true,
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
	}
	a := newConsumer(t, newClient(t, s), o)
	b := newConsumer(t, newClient(t, s), o)
	s.Publish("orders", numbered(4)...)
	got := receiveAll(ctx, t, a, 4)
	require.NoError(t, a.Ack(got[0]))
	a.Close()
	for i, m := range receiveAll(ctx, t, b, 3) {
		require.Equal(t, fmt.Sprintf("m%d", i+1), string(m.Payload()))
		require.Zero(t, m.RedeliveryCount())
	}
}

func TestCumulativeAck(t *testing.T) {
	ctx := testContext(t)
	s := fakebroker.Start(t)
	s.Publish("orders", numbered(10)...)
	c := newConsumer(t, newClient(t, s), pulsar.ConsumerOptions{
		Topic: "orders", SubscriptionName: "sub", AckWithResponse: true,
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
	})
	got := receiveAll(ctx, t, c, 10)
	require.NoError(t, c.AckCumulative(got[6]))
	require.Equal(t, 7, s.Acked("orders", "sub"))
	require.Equal(t, 3, s.Backlog("orders", "sub"))
}

func TestSeekAndLastMessage(t *testing.T) {
	ctx := testContext(t)
	s := fakebroker.Start(t)
	s.Publish("orders", numbered(10)...)
	c := newConsumer(t, newClient(t, s), pulsar.ConsumerOptions{
		Topic: "orders", SubscriptionName: "sub",
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
	})
	got := receiveAll(ctx, t, c, 10)
	ids, err := c.GetLastMessageIDs()
	require.NoError(t, err)
	require.EqualValues(t, 9, ids[0].EntryID())
	require.NoError(t, c.Seek(got[4].ID()))
	// The server sends m4 again; the client skips it, for it takes the position as the last message
	// read.
	again := receiveAll(ctx, t, c, 5)
	require.Equal(t, "m5", string(again[0].Payload()))
}

func TestReader(t *testing.T) {
	ctx := testContext(t)
	s := fakebroker.Start(t)
	s.Publish("orders", numbered(3)...)
	client := newClient(t, s)
	r, err := client.CreateReader(pulsar.ReaderOptions{Topic: "orders", StartMessageID: pulsar.EarliestMessageID()})
	require.NoError(t, err)
	t.Cleanup(r.Close)
	var last pulsar.Message
	for i := 0; r.HasNext(); i++ {
		m, err := r.Next(ctx)
		require.NoError(t, err)
		require.Equal(t, fmt.Sprintf("m%d", i), string(m.Payload()))
		last = m
	}
	require.Equal(t, "m2", string(last.Payload()))

	// A reader that comes back goes on where it was.
	s.CutConnections()
	s.Publish("orders", fakebroker.Message{Payload: []byte("m3")})
	m, err := r.Next(ctx)
	require.NoError(t, err)
	require.Equal(t, "m3", string(m.Payload()))

	after, err := client.CreateReader(pulsar.ReaderOptions{Topic: "orders", StartMessageID: last.ID()})
	require.NoError(t, err)
	t.Cleanup(after.Close)
	m, err = after.Next(ctx)
	require.NoError(t, err)
	require.Equal(t, "m3", string(m.Payload()))
}
