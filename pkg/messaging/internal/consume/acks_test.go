package consume

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/clientquirks"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/record"
)

// When acknowledgements are sent, and their conditions.

// acked are the entries that were acknowledged cumulatively.
func (c *ackedConsumer) acked() []int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]int64(nil), c.upTo...)
}

// hangingConsumer stands for an underlying consumer that is connecting: an acknowledgement waits
// until connected is closed.
type hangingConsumer struct {
	ackedConsumer

	connected chan struct{}
}

func (c *hangingConsumer) AckIDCumulative(id pulsar.MessageID) error {
	<-c.connected
	return c.ackedConsumer.AckIDCumulative(id)
}

// receiveFrom has one message of a partition arrive and received, from any underlying consumer.
func receiveFrom(t *testing.T, p *partition, c pulsar.Consumer, entryID int64) *entry {
	t.Helper()
	m := stored(entryID, 0, 1)
	p.session.arrivals.note(m)
	require.True(t, p.arrive(m))
	e, _ := p.receive(&pulsar.ConsumerMessage{Consumer: c, Message: m}, false)
	return e
}

// Connections are counted for the session: one that is being made keeps the acknowledgements of all
// partitions waiting, for a time.
func TestAcknowledgementsGoOnWhenAnotherPartitionCannotConnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, c := newTestPartition(true)
		p.session.ackEvery = time.Millisecond
		e := deliver(t, p, c, 1, 0, 1)
		p.session.arrivals.connections.Policy() // never made
		p.complete(e, 1)
		time.Sleep(gateTimeout - time.Millisecond)
		synctest.Wait()
		require.Empty(t, c.acked(), "the broker may have been reset")
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
		require.Equal(t, []int64{1}, c.acked())
		p.complete(deliver(t, p, c, 2, 0, 1), 1)
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
		require.Equal(t, []int64{1, 2}, c.acked())
		p.session.closeAcks()
	})
}

func TestTheLastAcknowledgementsWaitForThoseInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := newTestPartition(true)
		p.session.ackEvery = time.Millisecond
		c := &hangingConsumer{connected: make(chan struct{})}
		p.complete(receiveFrom(t, p, c, 1), 1)
		time.Sleep(10 * time.Millisecond) // it is under way
		var closed atomic.Bool
		go func() {
			p.session.closeAcks()
			closed.Store(true)
		}()
		synctest.Wait()
		early := closed.Load()
		close(c.connected)
		synctest.Wait()
		require.False(t, early, "the underlying consumer would be closed before")
		require.True(t, closed.Load())
		require.Equal(t, []int64{1}, c.acked())
	})
}

// An underlying consumer that connects again takes acknowledgements only when it has.
func TestAcknowledgementThatHangsKeepsNoOtherPartitionWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hanging := &hangingConsumer{connected: make(chan struct{})}
		p, _ := newTestPartition(true)
		p.session.ackEvery = time.Millisecond
		others := make([]*partition, 8)
		consumers := make([]*ackedConsumer, len(others))
		p.complete(receiveFrom(t, p, hanging, 1), 1)
		for i := range others {
			topic := string(rune('a' + i))
			others[i] = newPartition(p.session, topic)
			p.session.parts[topic] = others[i]
			consumers[i] = &ackedConsumer{}
			e := others[i].add(record.Place{Ledger: 1, Entry: 1}, 1, &pulsar.ConsumerMessage{Consumer: consumers[i], Message: stored(1, 0, 1)})
			others[i].complete(e, 1)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		waiting := 0
		for _, c := range consumers {
			if len(c.acked()) == 0 {
				waiting++
			}
		}
		close(hanging.connected)
		p.session.closeAcks()
		require.Zero(t, waiting, "partitions")
	})
}

// Entries that are acknowledged individually are acknowledged in order.
func TestLostIndividualAcknowledgementIsSentAgain(t *testing.T) {
	for name, c := range map[string]struct {
		behind      bool // an unfinished entry
		first, then []int64
	}{
		"all completed":            {false, []int64{2}, []int64{2, 2}},
		"behind an unfinished one": {true, nil, []int64{1, 2}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, consumer := newTestPartition(true)
				p.individual.Store(true)
				var unfinished *entry
				if c.behind {
					unfinished = deliver(t, p, consumer, 1, 0, 1)
					require.NotNil(t, unfinished)
				}
				p.complete(deliver(t, p, consumer, 2, 0, 1), 1)
				p.session.flushDue()
				require.Equal(t, c.first, consumer.alone)
				breakConnection(p) // it is lost
				if c.behind {
					require.Nil(t, deliver(t, p, consumer, 1, 0, 1), "it is here, unfinished")
				}
				require.Nil(t, deliver(t, p, consumer, 2, 0, 1), "it is not handled again")
				require.False(t, p.rewound)
				if c.behind {
					p.complete(unfinished, 1)
				}
				p.session.closeAcks()
				require.Equal(t, c.then, consumer.alone)
				require.Empty(t, consumer.upTo)
			})
		})
	}
}

// An acknowledgement that waits in the underlying client is sent once that has connected. It may be
// lost when the new connection breaks soon after, however long it waited.
func TestAcknowledgementThatWaitedForAConnectionMayBeLostWithIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := newTestPartition(true)
		p.session.ackEvery = 10 * time.Millisecond
		c := &hangingConsumer{connected: make(chan struct{})}
		first := receiveFrom(t, p, c, 1)
		require.NotNil(t, receiveFrom(t, p, c, 2))
		connecting := p.session.arrivals.connections.Policy()
		p.complete(first, 1)
		time.Sleep(gateTimeout + time.Second) // it is under way
		connecting.Reset()
		close(c.connected)
		synctest.Wait()
		require.Equal(t, []int64{1}, c.acked())
		time.Sleep(clientquirks.AckLanding / 2)
		breakConnection(p)
		require.Nil(t, receiveFrom(t, p, c, 1), "it is not handled again")
		p.session.closeAcks()
		require.False(t, p.rewound, "the broker has not gone back")
		require.Equal(t, []int64{1, 1}, c.acked())
	})
}

// The client underneath acknowledges the chunks of a message that is not whole after this time.
func TestChunksHaveTenMinutes(t *testing.T) {
	r := &run{cfg: DefaultConsumerConfig()}
	require.Equal(t, 10*time.Minute, r.rawOptions(&session{}).ExpireTimeOfIncompleteChunk)
}

// Acknowledgements before a gap, which may be lost, are repeated behind it, too.
func TestLostAcknowledgementBeforeAGapIsSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, c := newTestPartition(true)
		for i := range int64(3) {
			p.complete(deliver(t, p, c, i, 0, 1), 1)
		}
		p.session.flushDue()
		require.Equal(t, []int64{2}, c.upTo)
		breakConnection(p) // it is lost
		for i := range int64(3) {
			require.Nil(t, deliver(t, p, c, i, 0, 1))
		}
		p.complete(deliver(t, p, c, 4, 0, 1), 1) // 3 is missing
		p.session.flushDue()
		p.session.closeAcks()
		require.Equal(t, []int64{2, 2}, c.upTo)
		require.Equal(t, []int64{4}, c.alone)
	})
}
