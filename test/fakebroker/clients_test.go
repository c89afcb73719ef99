package fakebroker_test

import (
	"fmt"
	"testing"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/fakebroker"
)

// newNamedClient is a client that the server knows by name.
func newNamedClient(t *testing.T, s *fakebroker.Server, name string) pulsar.Client {
	t.Helper()
	client, err := pulsar.NewClient(pulsar.ClientOptions{
		URL: s.URL(), OperationTimeout: await.Patience, MemoryLimitBytes: -1, Logger: log.DefaultNopLogger(),
		MetricsRegisterer: prometheus.NewRegistry(), Authentication: pulsar.NewAuthenticationToken(name),
	})
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return client
}

func options(kind pulsar.SubscriptionType) pulsar.ConsumerOptions {
	return pulsar.ConsumerOptions{
		Topic: "orders", SubscriptionName: "sub", Type: kind, AckWithResponse: true,
		SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
	}
}

func TestDispatchLog(t *testing.T) {
	ctx := testContext(t)
	s := fakebroker.Start(t, fakebroker.WithDispatchLog())
	s.Publish("orders", fakebroker.Message{Key: "k", Payload: []byte("a")}, fakebroker.Message{Payload: []byte("b")})
	c := newConsumer(t, newNamedClient(t, s, "one"), options(pulsar.Exclusive))
	receiveAll(ctx, t, c, 2)
	require.Equal(t, 2, s.Clock())
	const topic = "persistent://public/default/orders"
	require.Equal(t, []fakebroker.Dispatch{
		{Topic: topic, Entry: 0, Key: "k", Subscription: "sub", Identity: "one"},
		{Topic: topic, Entry: 1, Subscription: "sub", Identity: "one"},
	}, s.Dispatches())
}

func TestOneClientIsIsolated(t *testing.T) {
	ctx := testContext(t)
	s := fakebroker.Start(t)
	one := newConsumer(t, newNamedClient(t, s, "one"), options(pulsar.Failover))
	two := newConsumer(t, newNamedClient(t, s, "two"), options(pulsar.Failover))
	s.Publish("orders", numbered(1)...)
	receiveAll(ctx, t, one, 1)
	s.Isolate("one")
	receiveAll(ctx, t, two, 1)
	accepted := s.Accepted()
	require.NoError(t, s.Until(ctx, func() bool { return s.Accepted() > accepted }), "it tries to come back")
	require.Len(t, s.Consumers("orders", "sub"), 1)
	s.Admit("one")
	require.NoError(t, s.WaitConsumers(ctx, "orders", "sub", 2))
	require.Equal(t, 1, s.CutConnectionsOf("two"))
	receiveAll(ctx, t, one, 1)
}

func TestAcksAreLostWithTheirConnection(t *testing.T) {
	ctx := testContext(t)
	s := fakebroker.Start(t)
	s.Publish("orders", numbered(2)...)
	o := options(pulsar.Exclusive)
	o.AckWithResponse = false
	c := newConsumer(t, newClient(t, s), o)
	got := receiveAll(ctx, t, c, 2)
	require.Equal(t, 1, s.LoseAcks("orders"))
	acks := s.Received(fakebroker.CommandAck)
	require.NoError(t, c.Ack(got[0]))
	require.NoError(t, s.WaitReceived(ctx, fakebroker.CommandAck, acks+1))
	require.Zero(t, s.Acked("orders", "sub"))
	s.CutConnections()
	for _, m := range receiveAll(ctx, t, c, 2) {
		require.NoError(t, c.Ack(m))
	}
	require.NoError(t, s.WaitAcked(ctx, "orders", "sub", 2))
}

func TestActiveConsumerChanges(t *testing.T) {
	ctx := testContext(t)
	s := fakebroker.Start(t)
	one := newConsumer(t, newNamedClient(t, s, "one"), options(pulsar.Failover))
	two := newConsumer(t, newNamedClient(t, s, "two"), options(pulsar.Failover))
	s.Publish("orders", numbered(3)...)
	require.NoError(t, one.Ack(receiveAll(ctx, t, one, 3)[0]))
	require.Equal(t, 1, s.ChangeActive("orders", "sub"))
	for i, m := range receiveAll(ctx, t, two, 2) {
		require.Equal(t, fmt.Sprintf("m%d", i+1), string(m.Payload()), "what is not acknowledged")
	}
}

// A producer with a claim on the topic stays disconnected once another has taken it; a shared one comes
// back.
func TestFence(t *testing.T) {
	for name, access := range map[string]pulsar.ProducerAccessMode{
		"shared": pulsar.ProducerAccessModeShared, "exclusive": pulsar.ProducerAccessModeExclusive,
	} {
		t.Run(name, func(t *testing.T) {
			ctx := testContext(t)
			s := fakebroker.Start(t)
			o := oneByOne("orders")
			o.ProducerAccessMode = access
			p := newProducer(t, newClient(t, s), o)
			_, err := p.Send(ctx, &pulsar.ProducerMessage{Payload: []byte("a")})
			require.NoError(t, err)
			created := s.Received(fakebroker.CommandProducer)
			s.Fence("orders", fakebroker.Message{Payload: []byte("fence")})
			require.NoError(t, s.WaitReceived(ctx, fakebroker.CommandProducer, created+1))
			if access == pulsar.ProducerAccessModeExclusive {
				waitClosed(ctx, t, p, "probe") // a send that meets the closing would panic in the client
			}
			_, err = p.Send(ctx, &pulsar.ProducerMessage{Payload: []byte("b")})
			if access == pulsar.ProducerAccessModeShared {
				require.NoError(t, err)
				require.Equal(t, []string{"a", "fence", "b"}, payloads(s.Entries("orders")))
				return
			}
			require.ErrorIs(t, err, pulsar.ErrProducerClosed)
			require.Equal(t, []string{"a", "fence"}, payloads(s.Entries("orders")))
		})
	}
}

// A key that moves to a consumer that has come waits for what the other still has of it.
func TestKeysThatMoveWait(t *testing.T) {
	ctx := testContext(t)
	s := fakebroker.Start(t, fakebroker.WithDispatchLog())
	one := newConsumer(t, newNamedClient(t, s, "one"), options(pulsar.KeyShared))
	keyed := func(n int) {
		for i := range 8 {
			s.Publish("orders", fakebroker.Message{Key: fmt.Sprint(i), Payload: []byte(fmt.Sprint(n))})
		}
	}
	keyed(0)
	first := receiveAll(ctx, t, one, 8)
	two := newConsumer(t, newNamedClient(t, s, "two"), options(pulsar.KeyShared))
	require.NoError(t, s.Until(ctx, func() bool {
		infos := s.Consumers("orders", "sub")
		return len(infos) == 2 && infos[1].Permits > 0
	}))
	keyed(1)
	for _, d := range s.Dispatches() {
		require.Equal(t, "one", d.Identity, "keys wait")
	}
	for _, m := range first {
		require.NoError(t, one.Ack(m))
	}
	require.NotEmpty(t, string(receiveAll(ctx, t, two, 1)[0].Payload()))
	require.NoError(t, s.Until(ctx, func() bool { return s.Clock() == 16 }), "all are sent")
}

// The client reconnects twice when the connection breaks while it subscribes again. The broker
// takes the second time for a mistake and keeps the consumer with what it holds; the client
// meanwhile may have dropped some of that.
func TestClientSubscribesTwice(t *testing.T) {
	ctx := testContext(t)
	s := fakebroker.Start(t)
	newConsumer(t, newClient(t, s), options(pulsar.Exclusive))
	never := s.Ignore(fakebroker.OpSubscribe, "orders", 1)
	s.CutConnections()
	require.NoError(t, never.Wait(ctx, 1))
	s.CutConnections()
	require.NoError(t, s.WaitReceived(ctx, fakebroker.CommandSubscribe, 4), "the first, the one without an answer, and two")
	require.Len(t, s.Consumers("orders", "sub"), 1)
}
