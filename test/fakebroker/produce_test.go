package fakebroker_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/fakebroker"
)

func TestEntriesShowWhatWasSent(t *testing.T) {
	tests := map[string]pulsar.ProducerOptions{
		"batch":              {BatchingMaxPublishDelay: time.Hour},
		"batch LZ4":          {BatchingMaxPublishDelay: time.Hour, CompressionType: pulsar.LZ4},
		"batch ZSTD":         {BatchingMaxPublishDelay: time.Hour, CompressionType: pulsar.ZSTD},
		"batch ZLIB":         {BatchingMaxPublishDelay: time.Hour, CompressionType: pulsar.ZLib},
		"batch Snappy":       {BatchingMaxPublishDelay: time.Hour, CompressionType: pulsar.SNAPPY},
		"single":             {DisableBatching: true},
		"single LZ4":         {DisableBatching: true, CompressionType: pulsar.LZ4},
		"key based batch":    {BatchingMaxPublishDelay: time.Hour, BatcherBuilderType: pulsar.KeyBasedBatchBuilder},
		"named, small batch": {Name: "tester", BatchingMaxMessages: 3, BatchingMaxPublishDelay: time.Hour},
	}
	for name, o := range tests {
		t.Run(name, func(t *testing.T) {
			ctx := testContext(t)
			s := fakebroker.Start(t)
			o.Topic = "orders"
			p := newProducer(t, newClient(t, s), o)
			got := newSends()
			event := time.UnixMilli(1_700_000_000_000)
			for i := range 10 {
				p.SendAsync(ctx, &pulsar.ProducerMessage{
					Key:        fmt.Sprintf("k%d", i%2),
					Payload:    []byte(strings.Repeat(fmt.Sprintf("payload %d ", i), 10)),
					Properties: map[string]string{"n": fmt.Sprint(i)},
					EventTime:  event,
				}, func(_ pulsar.MessageID, m *pulsar.ProducerMessage, err error) {
					got.mu.Lock()
					defer got.mu.Unlock()
					got.results[m.Properties["n"]] = err
				})
			}
			require.NoError(t, p.FlushWithCtx(ctx))
			for i := range 10 {
				err, ok := got.done(fmt.Sprint(i))
				require.True(t, ok)
				require.NoError(t, err)
			}

			entries := s.Entries("orders")
			require.Len(t, entries, 10)
			require.Equal(t, 10, s.Count("orders"))
			seen := map[string]bool{}
			for _, m := range entries {
				n := m.Properties["n"]
				seen[n] = true
				require.Equal(t, strings.Repeat("payload "+n+" ", 10), string(m.Payload))
				require.Contains(t, []string{"k0", "k1"}, m.Key)
				require.Equal(t, n, fmt.Sprint(m.SequenceID))
				require.Equal(t, p.Name(), m.ProducerName)
				require.True(t, event.Equal(m.EventTime))
				require.Equal(t, "persistent://public/default/orders", m.Topic)
				require.Equal(t, -1, m.Partition)
			}
			require.Len(t, seen, 10)
		})
	}
}

func TestPartitions(t *testing.T) {
	ctx := testContext(t)
	s := fakebroker.Start(t)
	s.CreateTopic("orders", 4)
	client := newClient(t, s)
	names, err := client.TopicPartitions("orders")
	require.NoError(t, err)
	require.Len(t, names, 4)

	p := newProducer(t, client, pulsar.ProducerOptions{Topic: "orders"})
	for i := range 40 {
		_, err := p.Send(ctx, &pulsar.ProducerMessage{Key: fmt.Sprint(i), Payload: []byte("sent")})
		require.NoError(t, err)
	}
	require.Len(t, s.Producers("orders"), 4)

	// Publish routes keys as the client does: each key's partition holds both its messages.
	for i := range 40 {
		s.Publish("orders", fakebroker.Message{Key: fmt.Sprint(i), Payload: []byte("published")})
	}
	where := map[string]map[int]bool{}
	for _, m := range s.Entries("orders") {
		if where[m.Key] == nil {
			where[m.Key] = map[int]bool{}
		}
		where[m.Key][m.Partition] = true
	}
	for key, partitions := range where {
		require.Len(t, partitions, 1, "key %s", key)
	}
	require.Equal(t, len(s.Entries("orders-partition-2")), s.Count("orders-partition-2"))
	require.NotZero(t, s.Count("orders-partition-2"))
}

func TestReceiptsHeldBack(t *testing.T) {
	ctx := testContext(t)
	s := fakebroker.Start(t)
	hold := s.HoldReceipts("orders")
	p := newProducer(t, newClient(t, s), oneByOne("orders"))
	got := newSends()
	for _, payload := range []string{"a", "b", "c"} {
		got.send(ctx, p, payload)
	}
	require.NoError(t, hold.Wait(ctx, 3))
	require.Equal(t, []string{"a", "b", "c"}, payloads(s.Entries("orders")))
	require.Zero(t, got.count())

	require.Equal(t, 1, hold.ReleaseNext(1))
	require.NoError(t, got.wait(ctx, 1))
	_, ok := got.done("a")
	require.True(t, ok)
	require.Equal(t, 2, hold.Held())

	require.Equal(t, 2, hold.Release())
	require.NoError(t, got.wait(ctx, 3))
	got.send(ctx, p, "d")
	require.NoError(t, got.wait(ctx, 4))
}

func TestEntriesHeldBackAreLostWithTheConnection(t *testing.T) {
	ctx := testContext(t)
	s := fakebroker.Start(t)
	hold := s.HoldEntries("orders")
	p := newProducer(t, newClient(t, s), oneByOne("orders"))
	got := newSends()
	got.send(ctx, p, "a")
	require.NoError(t, hold.Wait(ctx, 1))
	require.Zero(t, s.Count("orders"))
	s.CutConnections()
	require.NoError(t, hold.Wait(ctx, 2)) // the client has sent it again
	require.Equal(t, 1, hold.Release())
	require.NoError(t, got.wait(ctx, 1))
	require.Equal(t, []string{"a"}, payloads(s.Entries("orders")))
}

func TestResendAfterLostReceipt(t *testing.T) {
	for name, dedup := range map[string]bool{"without deduplication": false, "with deduplication": true} {
		t.Run(name, func(t *testing.T) {
			ctx := testContext(t)
			var opts []fakebroker.Option
			want := []string{"a", "a"}
			if dedup {
				opts, want = append(opts, fakebroker.WithDeduplication()), []string{"a"}
			}
			s := fakebroker.Start(t, opts...)
			drop := s.DropReceipts("orders", 1)
			p := newProducer(t, newClient(t, s), pulsar.ProducerOptions{Topic: "orders"})
			got := newSends()
			got.send(ctx, p, "a")
			require.NoError(t, drop.Wait(ctx, 1))
			s.CutConnections()
			require.NoError(t, got.wait(ctx, 1))
			err, _ := got.done("a")
			require.NoError(t, err)
			require.Equal(t, want, payloads(s.Entries("orders")))
		})
	}
}

func TestServerClosesProducer(t *testing.T) {
	ctx := testContext(t)
	s := fakebroker.Start(t)
	hold := s.HoldReceipts("orders")
	p := newProducer(t, newClient(t, s), oneByOne("orders"))
	got := newSends()
	got.send(ctx, p, "a")
	require.NoError(t, hold.Wait(ctx, 1))
	require.Equal(t, 1, s.CloseProducers("orders"))
	require.NoError(t, hold.Wait(ctx, 2)) // reconnected and sent again
	// The first receipt belonged to the closed producer: only the second goes out.
	require.Equal(t, 1, hold.Release())
	require.NoError(t, got.wait(ctx, 1))
	require.Equal(t, 1, s.Accepted(), "the connection stays")
	producers := s.Producers("orders")
	require.Len(t, producers, 1)
	require.EqualValues(t, 1, producers[0].Epoch)
}

func TestSlowPartition(t *testing.T) {
	ctx := testContext(t)
	s := fakebroker.Start(t)
	s.CreateTopic("orders", 2)
	slow := s.SlowPartition("orders-partition-1", time.Hour)
	p := newProducer(t, newClient(t, s), pulsar.ProducerOptions{
		Topic: "orders", DisableBatching: true,
		MessageRouter: func(m *pulsar.ProducerMessage, _ pulsar.TopicMetadata) int {
			return int(m.Payload[0] - '0')
		},
	})
	got := newSends()
	for _, payload := range []string{"0a", "1a", "0b", "1b"} {
		got.send(ctx, p, payload)
	}
	require.NoError(t, slow.Wait(ctx, 2))
	require.NoError(t, got.wait(ctx, 2))
	for _, payload := range []string{"0a", "0b"} {
		_, ok := got.done(payload)
		require.True(t, ok)
	}
	require.Equal(t, []string{"0a", "0b"}, payloads(s.Entries("orders")))
	slow.Remove()
	require.NoError(t, got.wait(ctx, 4))
	require.Equal(t, []string{"0a", "0b", "1a", "1b"}, payloads(s.Entries("orders")))

	short := s.SlowPartition("orders", 20*time.Millisecond)
	start := time.Now()
	_, err := p.Send(ctx, &pulsar.ProducerMessage{Payload: []byte("0c")})
	require.NoError(t, err)
	require.GreaterOrEqual(t, time.Since(start), 20*time.Millisecond)
	require.Equal(t, 1, short.Hits())
}

func TestRefusedConnections(t *testing.T) {
	ctx := testContext(t)
	s := fakebroker.Start(t)
	p := newProducer(t, newClient(t, s), pulsar.ProducerOptions{Topic: "orders"})
	before := s.Accepted()
	s.RefuseConnections(true)
	require.Equal(t, 1, s.CutConnections())
	require.NoError(t, s.Until(ctx, func() bool { return s.Accepted() >= before+2 }))
	require.Empty(t, s.Producers("orders"))
	s.RefuseConnections(false)
	require.NoError(t, s.WaitProducers(ctx, "orders", 1))
	_, err := p.Send(ctx, &pulsar.ProducerMessage{Payload: []byte("a")})
	require.NoError(t, err)
}

func TestStall(t *testing.T) {
	ctx := testContext(t)
	s := fakebroker.Start(t)
	p := newProducer(t, newClient(t, s), oneByOne("orders"))
	s.Stall()
	got := newSends()
	for _, payload := range []string{"a", "b", "c"} {
		got.send(ctx, p, payload)
	}
	require.LessOrEqual(t, s.Count("orders"), 1)
	s.Resume()
	require.NoError(t, got.wait(ctx, 3))
	require.Equal(t, []string{"a", "b", "c"}, payloads(s.Entries("orders")))
}

func TestPingAndNamespace(t *testing.T) {
	ctx := testContext(t)
	s := fakebroker.Start(t)
	s.CreateTopic("orders", 2)
	client := newClient(t, s)
	newProducer(t, client, pulsar.ProducerOptions{Topic: "orders"})
	require.Equal(t, 1, s.PingClients())
	require.NoError(t, s.WaitReceived(ctx, fakebroker.CommandPong, 1))

	c := newConsumer(t, client, pulsar.ConsumerOptions{
		TopicsPattern: "persistent://public/default/ord.*", SubscriptionName: "sub",
	})
	require.NoError(t, s.WaitConsumers(ctx, "orders", "sub", 2))
	s.Publish("orders", numbered(2)...)
	receiveAll(ctx, t, c, 2)
}

func TestAccessModes(t *testing.T) {
	ctx := testContext(t)
	s := fakebroker.Start(t)
	client := newClient(t, s)
	first := newProducer(t, client, pulsar.ProducerOptions{
		Topic: "orders", ProducerAccessMode: pulsar.ProducerAccessModeExclusive,
	})
	_, err := client.CreateProducer(pulsar.ProducerOptions{
		Topic: "orders", ProducerAccessMode: pulsar.ProducerAccessModeExclusive,
	})
	require.ErrorContains(t, err, "ProducerFenced")
	_, err = client.CreateProducer(pulsar.ProducerOptions{Topic: "orders"})
	require.ErrorContains(t, err, "ProducerBusy")

	// An exclusive producer may come back after its connection broke.
	s.CutConnections()
	require.NoError(t, s.WaitProducers(ctx, "orders", 1))
	_, err = first.Send(ctx, &pulsar.ProducerMessage{Payload: []byte("a")})
	require.NoError(t, err)
}

func TestSchema(t *testing.T) {
	ctx := testContext(t)
	s := fakebroker.Start(t)
	p := newProducer(t, newClient(t, s), pulsar.ProducerOptions{Topic: "orders", Schema: pulsar.NewStringSchema(nil)})
	_, err := p.Send(ctx, &pulsar.ProducerMessage{Value: "text"})
	require.NoError(t, err)
	m := s.Entries("orders")[0]
	require.Equal(t, "text", string(m.Payload))
	require.Len(t, m.SchemaVersion, 8)
}
