package messaging

import (
	"context"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
)

// ackedConsumer stands for the underlying consumer: it notes what is acknowledged.
type ackedConsumer struct {
	pulsar.Consumer

	acked []pulsar.MessageID
	err   error
}

func (c *ackedConsumer) AckIDList(ids []pulsar.MessageID) error {
	if c.err == nil {
		c.acked = append(c.acked, ids...)
	}
	return c.err
}

// stored is a message as the underlying client delivers it.
type storedMessage struct {
	pulsar.Message

	id pulsar.MessageID
}

func (m storedMessage) ID() pulsar.MessageID { return m.id }
func (m storedMessage) Topic() string        { return "t" }

type batchID struct {
	pulsar.MessageID

	size int32
}

func (b batchID) BatchSize() int32 { return b.size }

func newTestPartition(ordered bool) (*partition, *ackedConsumer) {
	s := &session{
		ordered: ordered, sole: ordered, ackEvery: time.Hour, ackMessages: 1000,
		log: zap.NewNop(), ackFailed: prometheus.NewCounter(prometheus.CounterOpts{}),
	}
	s.life, s.cancel = context.WithCancel(context.Background())
	p := &partition{session: s, topic: "t", arrivals: s.arrivals.find("t")}
	p.forget()
	return p, &ackedConsumer{}
}

// deliver receives one message and reports whether it is to be handled.
func deliver(p *partition, c *ackedConsumer, entryID int64, index, size int32) *entry {
	id := batchID{pulsar.NewMessageID(1, entryID, index, 0), size}
	p.session.arrivals.note(storedMessage{id: id})
	e, _ := p.receive(&pulsar.ConsumerMessage{Consumer: c, Message: storedMessage{id: id}}, false)
	return e
}

func (p *partition) flushNow() {
	p.session.flushAcks()
	p.session.acks.senders.Wait()
}

func TestEntryIsAcknowledgedWithItsLastMessage(t *testing.T) {
	p, c := newTestPartition(true)
	var entries []*entry
	for i := range int32(3) {
		entries = append(entries, deliver(p, c, 7, i, 3))
		require.NotNil(t, entries[i])
	}
	p.complete(entries[0], 1)
	p.complete(entries[1], 1)
	p.flushNow()
	require.Empty(t, c.acked)
	for i := range int32(3) {
		require.Nil(t, deliver(p, c, 7, i, 3), "here already")
	}
	p.complete(entries[2], 1)
	p.flushNow()
	require.Len(t, c.acked, 1)
	require.EqualValues(t, 7, c.acked[0].EntryID())
}

func TestWhatWasNotReceivedOfABatchIsHandled(t *testing.T) {
	p, c := newTestPartition(true)
	require.NotNil(t, deliver(p, c, 1, 0, 1))
	require.NotNil(t, deliver(p, c, 2, 0, 3))
	// The connection broke: the rest of the batch comes with its second delivery.
	require.Nil(t, deliver(p, c, 1, 0, 1))
	require.Nil(t, deliver(p, c, 2, 0, 3))
	require.NotNil(t, deliver(p, c, 2, 1, 3))
	require.NotNil(t, deliver(p, c, 2, 2, 3))
}

func TestUnconfirmedAcknowledgementIsSentAgain(t *testing.T) {
	p, c := newTestPartition(true)
	e := deliver(p, c, 1, 0, 1)
	c.err = context.DeadlineExceeded
	p.complete(e, 1)
	p.session.flushAcks()
	require.Eventually(t, func() bool {
		p.acks.mu.Lock()
		defer p.acks.mu.Unlock()
		return len(p.acks.ready) == 1 && p.acks.sending
	}, 5*time.Second, time.Millisecond)
	require.Nil(t, deliver(p, c, 1, 0, 1), "its acknowledgement is under way")
	p.session.cancel()
	p.session.acks.senders.Wait()
	require.False(t, e.confirmed.Load())
}

func TestConfirmedEntryThatComesAgainStartsThePartitionOver(t *testing.T) {
	p, c := newTestPartition(true)
	first, second := deliver(p, c, 1, 0, 1), deliver(p, c, 2, 0, 1)
	p.complete(first, 1)
	p.flushNow()
	require.True(t, first.confirmed.Load())
	require.Nil(t, deliver(p, c, 2, 0, 1), "unfinished")
	require.NotNil(t, deliver(p, c, 1, 0, 1), "the subscription was reset")
	again := deliver(p, c, 2, 0, 1)
	require.NotNil(t, again, "and all behind it is handled again, so that the newest comes last")
	require.NotSame(t, second, again)
}

func TestWithoutOrderOnlyTheConfirmedEntryIsHandledAgain(t *testing.T) {
	p, c := newTestPartition(false)
	first := deliver(p, c, 1, 0, 1)
	require.NotNil(t, deliver(p, c, 2, 0, 1))
	p.complete(first, 1)
	p.flushNow()
	require.NotNil(t, deliver(p, c, 1, 0, 1))
	require.Nil(t, deliver(p, c, 2, 0, 1))
	require.NotNil(t, deliver(p, c, 0, 0, 1), "another consumer's")
	require.Nil(t, deliver(p, c, 0, 0, 1))
}

func TestConfirmedEntriesBehindAHeldOneAreNotKept(t *testing.T) {
	p, c := newTestPartition(true)
	require.NotNil(t, deliver(p, c, 0, 0, 1), "held for an hour")
	for i := int64(1); i < 100_000; i++ {
		p.complete(deliver(p, c, i, 0, 1), 1)
		if i%100 == 0 {
			p.flushNow()
		}
	}
	require.Less(t, len(p.live), 1000)
	require.Nil(t, deliver(p, c, 0, 0, 1), "still known")
}

func TestMessagesThatTheBrokerLeavesOutCountAsDone(t *testing.T) {
	p, c := newTestPartition(true)
	e := deliver(p, c, 1, 1, 3) // the first was acknowledged by itself, before
	require.NotNil(t, deliver(p, c, 1, 2, 3))
	p.complete(e, 1)
	p.complete(e, 1)
	require.NotNil(t, deliver(p, c, 2, 0, 1))
	p.flushNow()
	require.Len(t, c.acked, 1)
}

func TestCopyThatCrossedItsAcknowledgementIsDropped(t *testing.T) {
	p, c := newTestPartition(true)
	first := deliver(p, c, 1, 0, 1)
	require.NotNil(t, deliver(p, c, 2, 0, 1))
	copied := batchID{pulsar.NewMessageID(1, 1, 0, 0), 1}
	p.session.arrivals.note(storedMessage{id: copied}) // it arrives, and waits to be received
	p.complete(first, 1)
	p.flushNow()
	e, again := p.receive(&pulsar.ConsumerMessage{Consumer: c, Message: storedMessage{id: copied}}, false)
	require.Nil(t, e)
	require.True(t, again)
}
