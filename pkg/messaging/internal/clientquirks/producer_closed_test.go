package clientquirks_test

import (
	"context"
	"testing"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/clientquirks"
	"github.com/aviaryhq/aviary/test/fakebroker"
)

// closing is a producer whose channels are closed in the middle of a call.
type closing struct{ pulsar.Producer }

func (closing) SendAsync(context.Context, *pulsar.ProducerMessage, func(pulsar.MessageID, *pulsar.ProducerMessage, error)) {
	panic("send on closed channel")
}
func (closing) FlushWithCtx(context.Context) error { panic("send on closed channel") }
func (closing) Close()                             { panic("send on closed channel") }

func TestCallsOfAProducerThatClosesItselfDoNotPanic(t *testing.T) {
	var outcome error
	clientquirks.Send(closing{}, &pulsar.ProducerMessage{},
		func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) { outcome = err })
	require.ErrorIs(t, outcome, pulsar.ErrProducerClosed)
	clientquirks.Flush(t.Context(), closing{})
	clientquirks.CloseProducer(closing{})
}

// Records in the batch builder of a producer that closes itself get no outcome.
func TestProducerThatClosedItselfIsFound(t *testing.T) {
	s := start(t)
	c := connect(t, s.URL(), nil)
	p := produce(t, c, func(o *pulsar.ProducerOptions) {
		o.DisableBatching, o.BatchingMaxPublishDelay = false, clientquirks.Never
	})
	require.False(t, clientquirks.IsClosed(p))
	outcomes := make(chan error, 1)
	clientquirks.Send(p, &pulsar.ProducerMessage{Payload: []byte("m")},
		func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) { outcomes <- err })
	_, err := c.TopicPartitions(topic) // the connection's goroutine orders the send before the closing
	require.NoError(t, err)
	s.FailProducerCreate(topic, fakebroker.ProducerFenced, fakebroker.Always)
	s.CloseProducers(topic)
	eventually(t, "it closes itself", func() bool { return clientquirks.IsClosed(p) })
	clientquirks.CloseProducer(p)
	require.Empty(t, outcomes)
	require.Zero(t, s.Count(topic), "the probe is not sent")
}
