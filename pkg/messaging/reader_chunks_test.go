package messaging_test

import (
	"context"
	"strings"
	"testing"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/fakebroker"
)

// firstOfTwo stores the first of the two chunks of a message that p publishes. What it returns has
// the second one, and all that is published later by producers.
func firstOfTwo(t *testing.T, s *fakebroker.Server, p pulsar.Producer, letter string) *fakebroker.Hold {
	t.Helper()
	chunks := s.HoldEntries(topic)
	p.SendAsync(context.Background(), &pulsar.ProducerMessage{Payload: []byte(strings.Repeat(letter, 1500))},
		func(pulsar.MessageID, *pulsar.ProducerMessage, error) {})
	eventually(t, "its two chunks are on their way", func() bool { return chunks.Held() == 2 })
	require.Equal(t, 1, chunks.ReleaseNext(1))
	return chunks
}

// begun are the first letters of messages.
func begun(all []*messaging.Delivery) []string {
	var out []string
	for _, d := range all {
		out = append(out, string(d.Payload[:1]))
	}
	return out
}

// Another message stands between the chunks of a message. The connection breaks when the one
// between was read.
func TestReaderGoesOnWithinAChunkedMessage(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	s.CreateTopic(topic, 0)
	client, p := dial(t, s.URL()), chunking(t, s)
	s.Publish(topic, fakebroker.Message{Payload: []byte("1")})
	chunks := firstOfTwo(t, s, p, "a")
	s.Publish(topic, fakebroker.Message{Payload: []byte("2")}, fakebroker.Message{Payload: []byte("3")})

	r := openReader(t, client, nil)
	var got []*messaging.Delivery
	read := func(n int) {
		t.Helper()
		for range n {
			d, err := r.Next(testContext(t))
			require.NoError(t, err)
			got = append(got, d)
		}
	}
	read(2)
	require.Equal(t, []string{"1", "2"}, begun(got))
	for range 2 { // the second time nothing was read since
		s.CloseConsumers(topic) // as a topic's unloading does
	}
	read(1)
	require.Equal(t, 1, chunks.ReleaseNext(1))
	s.Publish(topic, fakebroker.Message{Payload: []byte("4")})
	read(2)
	s.CloseConsumers(topic)
	s.Publish(topic, fakebroker.Message{Payload: []byte("5")})
	read(1)
	require.Equal(t, []string{"1", "2", "3", "a", "4", "5"}, begun(got))
}

// The same with readers that go on behind the positions of another, as a store of positions gives
// them back.
func TestReaderGoesOnBehindPositionsWithinAChunkedMessage(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	s.CreateTopic(topic, 0)
	client, p := dial(t, s.URL()), chunking(t, s)
	chunks := firstOfTwo(t, s, p, "a")
	s.Publish(topic, fakebroker.Message{Payload: []byte("1")}, fakebroker.Message{Payload: []byte("2")})
	var after []messaging.MessageID
	next := func() *messaging.Delivery {
		t.Helper()
		r := openReader(t, client, func(c *messaging.ReaderConfig) { c.After = after })
		d, err := r.Next(testContext(t))
		require.NoError(t, err)
		after = nil
		for _, id := range r.Positions() {
			require.Zero(t, id.Compare(d.ID))
			again, err := messaging.ParseMessageID(id.Bytes())
			require.NoError(t, err)
			require.Equal(t, id, again)
			after = append(after, again)
		}
		require.NoError(t, r.Close(testContext(t)))
		return d
	}
	got := []*messaging.Delivery{next(), next()}
	require.Equal(t, 1, chunks.ReleaseNext(1))
	s.Publish(topic, fakebroker.Message{Payload: []byte("3")})
	got = append(got, next(), next())
	require.Equal(t, []string{"1", "2", "a", "3"}, begun(got))
}

// Reading from the id of a chunked message begins with it, whoever gave the id.
func TestReaderFromAChunkedMessage(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	s.CreateTopic(topic, 0)
	client, p := dial(t, s.URL()), chunking(t, s)
	s.Publish(topic, fakebroker.Message{Payload: []byte("1")})
	chunks := firstOfTwo(t, s, p, "a")
	s.Publish(topic, fakebroker.Message{Payload: []byte("2")})
	require.Equal(t, 1, chunks.ReleaseNext(1))
	s.Publish(topic, fakebroker.Message{Payload: []byte("3")})
	all := toEnd(t, openReader(t, client, nil))
	require.Equal(t, []string{"1", "2", "a", "3"}, begun(all))
	require.Equal(t, []string{"a", "3"}, begun(toEnd(t, openReader(t, client, from(messaging.AtMessage(all[2].ID))))))

	var handled consumed
	run := start(t, client, quickConfig(messaging.Exclusive, ""), func(_ context.Context, d *messaging.Delivery) error {
		handled.add(d)
		return nil
	})
	eventually(t, "all are handled", func() bool { return handled.distinct() == 4 })
	run.stop(t)
	for i, d := range handled.snapshot() {
		require.Equal(t, all[i].ID, d.ID, "one id, whoever received it")
	}
}

// The topic's last message is in chunks, and others stand between them.
func TestLastMessageInChunks(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	s.CreateTopic(topic, 0)
	client, p := dial(t, s.URL()), chunking(t, s)
	chunks := firstOfTwo(t, s, p, "a")
	s.Publish(topic, fakebroker.Message{Payload: []byte("1")}, fakebroker.Message{Payload: []byte("2")})
	require.Equal(t, 1, chunks.ReleaseNext(1))
	d, err := client.Last(testContext(t), topic)
	require.NoError(t, err)
	require.Equal(t, strings.Repeat("a", 1500), string(d.Payload))

	p.Close() // which has the topic
	w := openEntryWriter(t, client, topic)
	require.Equal(t, d.ID, w.Last().ID)
	require.NoError(t, w.Close(testContext(t)))
}

// The last entry brings no message: what is last is not known.
func TestLastOfATopicThatEndsWithinAMessage(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	s.CreateTopic(topic, 0)
	client, p := dial(t, s.URL()), chunking(t, s)
	client.HurryReaders(5)
	s.Publish(topic, fakebroker.Message{Payload: []byte("1")})
	firstOfTwo(t, s, p, "a")
	_, err := client.Last(context.Background(), topic)
	require.ErrorContains(t, err, "brings no message")
}

// Last ends with its client.
func TestLastEndsWithItsClient(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	client, err := messaging.Dial(testContext(t), messaging.Config{URL: s.URL(), OperationTimeout: await.Patience})
	require.NoError(t, err)
	s.Publish(topic, fakebroker.Message{Payload: []byte("1")})
	s.CorruptDispatch(topic, fakebroker.Always)
	ended := make(chan error, 1)
	go func() {
		_, err := client.Last(context.Background(), topic)
		ended <- err
	}()
	require.NoError(t, s.WaitReceived(testContext(t), fakebroker.CommandFlow, 2)) // it reads the end, having asked for it
	require.NoError(t, client.Close(context.Background()))
	require.ErrorIs(t, <-ended, messaging.ErrClosed)
}

func TestTopicsThatKeepNothingAreNotRead(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	client := dial(t, s.URL())
	const fleeting = "non-persistent://public/default/fleeting"
	_, err := client.Reader(testContext(t), messaging.ReaderConfig{Topic: fleeting})
	require.ErrorContains(t, err, "keeps nothing")
	_, err = client.Last(testContext(t), fleeting)
	require.ErrorContains(t, err, "keeps nothing")
	_, err = client.EntryWriter(testContext(t), fleeting, messaging.EntryWriterConfig{Name: "n", Position: position})
	require.ErrorContains(t, err, "keeps nothing")
	require.Zero(t, s.Connections())
}

// The last entry brings no message: all that can be read has been.
func TestReaderOfATopicWhoseLastEntryBringsNoMessage(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*testing.T, *fakebroker.Server){
		"the beginning of a message": func(t *testing.T, s *fakebroker.Server) {
			t.Helper()
			s.Publish(topic, fakebroker.Message{Payload: []byte("1")})
			firstOfTwo(t, s, chunking(t, s), "a").Forget()
		},
		"a wrong checksum": func(_ *testing.T, s *fakebroker.Server) {
			s.Publish(topic, fakebroker.Message{Payload: []byte("1")})
			s.PublishRaw(topic, messaging.WrongChecksum(), 1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := fakebroker.Start(t)
			s.CreateTopic(topic, 0)
			client := dial(t, s.URL())
			client.HurryReaders(5)
			end(t, s)
			r := openReader(t, client, nil)
			opened := openReader(t, client, nil)
			caught := make(chan struct{})
			go func() {
				defer close(caught)
				for {
					if _, err := opened.Next(context.Background()); err != nil {
						return
					}
				}
			}()
			got := toEnd(t, r)
			require.Len(t, got, 1)
			<-opened.CaughtUp()
			asked := s.Received(fakebroker.CommandGetLastMessageID)
			require.Empty(t, toEnd(t, r))
			require.Equal(t, asked+1, s.Received(fakebroker.CommandGetLastMessageID), "it is known: nothing is looked at again")
			require.NoError(t, opened.Close(testContext(t)))
			<-caught
		})
	}
}
