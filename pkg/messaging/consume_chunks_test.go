package messaging_test

import (
	"context"
	"strings"
	"testing"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/fakebroker"
)

// chunking is a producer that stores what is longer than 1,000 bytes in chunks.
func chunking(t *testing.T, s *fakebroker.Server) pulsar.Producer {
	t.Helper()
	return chunkingProducers(t, s, 1)[0]
}

func chunkingProducers(t *testing.T, s *fakebroker.Server, n int) (all []pulsar.Producer) {
	t.Helper()
	c, err := pulsar.NewClient(pulsar.ClientOptions{URL: s.URL(), MemoryLimitBytes: -1, Logger: log.DefaultNopLogger()})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	for range n {
		p, err := c.CreateProducer(pulsar.ProducerOptions{
			Topic: topic, DisableBatching: true, EnableChunking: true, ChunkMaxMessageSize: 1000, SendTimeout: -1,
		})
		require.NoError(t, err)
		all = append(all, p)
	}
	return all
}

// Chunks of two messages stand between each other: a cumulative acknowledgement of the one would
// take the first chunk of the other along.
func TestChunkedMessagesAreAcknowledgedOneByOne(t *testing.T) {
	t.Parallel()
	for _, kind := range []messaging.SubscriptionType{messaging.Exclusive, messaging.Failover, messaging.Shared} {
		t.Run(string(kind), func(t *testing.T) {
			s := fakebroker.Start(t)
			s.CreateTopic(topic, 0)
			client := dial(t, s.URL())
			chunks := s.HoldEntries(topic)
			for i, letter := range []string{"a", "b"} {
				chunking(t, s).SendAsync(context.Background(), &pulsar.ProducerMessage{Payload: []byte(strings.Repeat(letter, 1500))},
					func(pulsar.MessageID, *pulsar.ProducerMessage, error) {})
				eventually(t, "its two chunks are on their way", func() bool { return chunks.Held() == 2*(i+1) })
			}
			chunks.ReleaseOnly(0, 2, 1) // a's first, b's first, a's second
			var got payloads
			handle := func(_ context.Context, d *messaging.Delivery) error {
				got.add(&messaging.Delivery{Payload: d.Payload[:1]})
				return nil
			}
			cfg := quickConfig(kind, "")
			r := start(t, client, cfg, handle)
			eventually(t, "the first message is handled", func() bool { return len(got.list()) == 1 })
			r.stop(t)
			require.Equal(t, 2, s.Acked(topic, "sub"), "its two chunks")
			require.Equal(t, 1, chunks.ReleaseNext(1))
			r = start(t, client, cfg, handle)
			eventually(t, "the other message is handled", func() bool { return len(got.list()) == 2 })
			r.stop(t)
			require.Equal(t, []string{"a", "b"}, got.list())
			require.Zero(t, s.Backlog(topic, "sub"))
		})
	}
}

// Another message stands between the chunks of each message, directly before its last chunk. The
// consumer restarts when a chunked message was handled and another is not whole.
func TestChunksAroundOtherMessagesSurviveARestart(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	s.CreateTopic(topic, 0)
	client, p := dial(t, s.URL()), chunking(t, s)
	var got payloads
	handle := func(_ context.Context, d *messaging.Delivery) error {
		got.add(&messaging.Delivery{Payload: d.Payload[:1]})
		return nil
	}
	cfg := quickConfig(messaging.Exclusive, "")
	r := start(t, client, cfg, handle)
	// begin stores the first chunk of a message, and another message.
	begin := func(letter string) *fakebroker.Hold {
		chunks := firstOfTwo(t, s, p, letter)
		handled := len(got.list())
		s.Publish(topic, fakebroker.Message{Payload: []byte("between")})
		eventually(t, "the message between is handled", func() bool { return len(got.list()) == handled+1 })
		return chunks
	}
	begin("x").Release()
	eventually(t, "the first chunked message is handled", func() bool { return len(got.list()) == 2 })
	chunks := begin("y")
	r.stop(t)
	require.Equal(t, 1, s.Backlog(topic, "sub"), "the first chunk of the other")
	r = start(t, client, cfg, handle)
	chunks.Release()
	eventually(t, "the other is handled", func() bool { return len(got.list()) == 4 })
	r.stop(t)
	require.Equal(t, []string{"b", "x", "b", "y"}, got.list())
	require.Zero(t, s.Backlog(topic, "sub"))
}
