//go:build !race

package messaging_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/fakebroker"
	"github.com/aviaryhq/aviary/test/stack"
)

// The client closes the channels of a producer that the broker closes for good, while senders use
// them: a race of pulsar-client-go v0.21.0 (producer_partition.go, doClose against FlushWithCtx)
// that Go's runtime itself reports, see docs/adr/0025-race-detector.md. The publisher outlives the
// panic that may come of it.

// The producer is fenced when it reconnects: the client closes it for good and
// fails all that it held. The publisher replaces it and sends all that again.
func TestProducerFenced(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	p := open(t, dial(t, s.URL()), topic, nil)
	publishWhile(t, p, func() {
		s.FailProducerCreate(topic, fakebroker.ProducerFenced, 2)
		s.CutConnections()
	}, func(n int) { requireInOrder(t, stored(s, topic), n) })
}

func TestTopicTerminated(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	p := open(t, dial(t, s.URL()), topic, nil)
	hold := s.HoldEntries(topic)
	published := make(chan error, 1)
	go func() { published <- p.Publish(testContext(t), record(0)) }()
	require.NoError(t, s.Until(testContext(t), func() bool { return hold.Held() == 1 }))
	s.FailProducerCreate(topic, fakebroker.TopicTerminatedError, fakebroker.Always)
	s.CutConnections()
	require.ErrorIs(t, <-published, messaging.ErrTopicTerminated, "what was in flight")
	require.ErrorIs(t, p.Publish(testContext(t), record(1)), messaging.ErrTopicTerminated, "what comes after")
	_, err := dial(t, s.URL()).Publisher(testContext(t), topic, messaging.Ops())
	require.ErrorIs(t, err, messaging.ErrTopicTerminated)
}

func TestQuotaExceeded(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	p := open(t, dial(t, s.URL()), topic, nil)
	publishWhile(t, p, func() {
		s.FailProducerCreate(topic, fakebroker.ProducerBlockedQuotaExceededException, 2)
		s.CutConnections()
	}, func(n int) { requireInOrder(t, stored(s, topic), n) })
}

func TestTerminatedOnBroker(t *testing.T) {
	t.Parallel()
	srv := stack.Pulsar(t)
	topic := srv.Topic(t, srv.Namespace(t), 0)
	client := dial(t, srv.URL())
	p := open(t, client, topic, func(p *messaging.Profile) { p.AckTimeout = ackTimeout })
	require.NoError(t, p.Publish(testContext(t), record(0)))
	srv.Terminate(t, topic)
	require.ErrorIs(t, p.Publish(testContext(t), record(1)), messaging.ErrTopicTerminated)
}
