package engine

import (
	"context"
	"strconv"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zaptest"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/fakebroker"
)

// fakeBroker starts a broker in memory, and connects a client to it.
func fakeBroker(t *testing.T) (*fakebroker.Server, *messaging.Client) {
	t.Helper()
	server := fakebroker.Start(t)
	client, err := messaging.Dial(t.Context(), messaging.Config{URL: server.URL()}, messaging.WithLogger(zaptest.NewLogger(t)))
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), await.Patience)
		defer cancel()
		assert.NoError(t, client.Close(ctx))
	})
	return server, client
}

// The broker delivers an event again: its copy for an ordered subscriber is stored already, or is
// before it in the same group.
func TestACopyThatComesAgainIsStoredOnce(t *testing.T) {
	t.Parallel()
	server, client := fakeBroker(t)
	s := newSubscriber("s", model.OrderTotal, `{"type":["a"]}`)
	s.Bus, s.UID = busName, "u-s"
	e := New(Options{
		Client: client, Topics: model.Topics{Namespace: "public/default"}, Config: DefaultConfig(), Log: zaptest.NewLogger(t),
		Metrics: NewMetrics(prometheus.NewRegistry()),
	})
	topic := e.topics.Send(&s)
	server.CreateTopic(topic, 0)
	w, err := e.openWriter(t.Context(), &s, 0)
	require.NoError(t, err)
	t.Cleanup(func() { w.close(context.Background()) })
	for _, group := range [][]int64{{1, 2}, {1, 2, 3, 2, 3, 4}, {4, 1}} {
		entries := make([]pendingCopy, len(group))
		for i, position := range group {
			entries[i] = pendingCopy{position: position, record: &messaging.Record{
				Payload: []byte("{}"), SequenceID: &position, Properties: map[string]string{PropertyPosition: strconv.FormatInt(position, 10)},
			}}
		}
		done, left, err := w.put(t.Context(), entries)
		require.NoError(t, err)
		assert.Len(t, done, len(group))
		assert.Empty(t, left)
	}
	assert.Equal(t, 4, server.Count(topic))
}

// noMaker fails the test if a topic is to be made.
type noMaker struct{ t *testing.T }

func (m noMaker) MakeBus(context.Context, *model.Bus) error {
	m.t.Error("a topic of a bus is made")
	return nil
}

func (m noMaker) MakeSubscriber(context.Context, *model.Bus, *model.Subscriber) error {
	m.t.Error("a topic of a subscriber is made")
	return nil
}

// The topics of a bus that was deleted together with its subscribers are not made again for the
// copies that are left.
func TestADeletedBusMakesNoTopics(t *testing.T) {
	t.Parallel()
	server, client := fakeBroker(t)
	e := New(Options{
		Client: client, Topics: model.Topics{Namespace: "public/default"}, Maker: noMaker{t}, Config: DefaultConfig(), Log: zaptest.NewLogger(t),
		Metrics: NewMetrics(prometheus.NewRegistry()),
	})
	b := e.newBus(t.Context(), &model.Bus{Name: busName}, nil)
	defer b.endQueues()
	s := newSubscriber("s", model.OrderNone, `{"type":["a"]}`)
	s.Bus, s.UID = busName, "u-s"
	server.FailLookup(e.topics.Send(&s), fakebroker.TopicNotFound, 100)
	b.halt()
	_, err := b.openSendTopic(t.Context(), &s, 0)
	require.ErrorIs(t, err, messaging.ErrTopicNotFound)
}
