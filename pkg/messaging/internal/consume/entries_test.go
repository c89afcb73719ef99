package consume

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/clientquirks"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/record"
	"github.com/aviaryhq/aviary/test/fakebroker"
)

// ackedConsumer stands for the underlying consumer: it notes the acknowledgements.
type ackedConsumer struct {
	pulsar.Consumer

	mu    sync.Mutex
	upTo  []int64 // entries, cumulatively
	alone []int64 // entries, by themselves
}

func (c *ackedConsumer) AckIDCumulative(id pulsar.MessageID) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.upTo = append(c.upTo, id.EntryID())
	return nil
}

func (c *ackedConsumer) AckID(id pulsar.MessageID) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.alone = append(c.alone, id.EntryID())
	return nil
}

// storedMessage is a message as the underlying client delivers it.
type storedMessage struct {
	pulsar.Message

	id pulsar.MessageID
}

func (m *storedMessage) ID() pulsar.MessageID { return m.id }
func (m *storedMessage) Topic() string        { return "t" }

type batchID struct {
	pulsar.MessageID

	size int32
}

func (b batchID) BatchSize() int32 { return b.size }

func stored(entryID int64, index, size int32) *storedMessage {
	return &storedMessage{id: batchID{pulsar.NewMessageID(1, entryID, index, 0), size}}
}

// chunkedID is the id of a message in chunks, as the underlying client writes it.
type chunkedID struct{ batchID }

func (chunkedID) String() string { return "first chunk;last chunk" }

// newTestPartition is a partition of a subscription that has one consumer and keeps order, or of a
// Shared one.
func newTestPartition(sole bool) (*partition, *ackedConsumer) {
	s := &session{
		ordered: sole, singleConsumer: sole, ackEvery: time.Hour, ackMessages: 1_000_000,
		receiving: context.Background(), wake: func() {}, log: zap.NewNop(), ackFailed: prometheus.NewCounter(prometheus.CounterOpts{}),
	}
	p := newPartition(s, "t")
	s.parts = map[string]*partition{p.topic: p}
	return p, &ackedConsumer{}
}

// come receives a message that has arrived. It returns its entry, nil when the message is not to be
// handled, and whether the session may continue.
func come(p *partition, c *ackedConsumer, m *storedMessage) (*entry, bool) {
	if !p.arrive(m) {
		return nil, false
	}
	e, _ := p.receive(&pulsar.ConsumerMessage{Consumer: c, Message: m}, false)
	return e, true
}

// deliver has one message arrive and received.
func deliver(t *testing.T, p *partition, c *ackedConsumer, entryID int64, index, size int32) *entry {
	t.Helper()
	return deliverMessage(t, p, c, stored(entryID, index, size))
}

func deliverMessage(t *testing.T, p *partition, c *ackedConsumer, m *storedMessage) *entry {
	t.Helper()
	p.session.arrivals.note(m)
	e, ok := come(p, c, m)
	require.True(t, ok)
	return e
}

// breakConnection breaks the connection and makes another.
func breakConnection(p *partition) { p.session.arrivals.connections.Policy().Reset() }

func TestEntryIsAcknowledgedWithItsLastMessage(t *testing.T) {
	p, c := newTestPartition(true)
	var entries []*entry
	for i := range int32(3) {
		entries = append(entries, deliver(t, p, c, 7, i, 3))
		require.NotNil(t, entries[i])
	}
	p.complete(entries[0], 1)
	p.complete(entries[1], 1)
	p.session.flushDue()
	require.Empty(t, c.upTo)
	for i := range int32(3) {
		require.Nil(t, deliver(t, p, c, 7, i, 3), "here already")
	}
	p.complete(entries[2], 1)
	p.session.flushDue()
	require.Equal(t, []int64{7}, c.upTo)
	require.Empty(t, c.alone)
}

func TestWhatIsCompletedBehindAnUnfinishedOneWaits(t *testing.T) {
	p, c := newTestPartition(true)
	first, second, third := deliver(t, p, c, 1, 0, 1), deliver(t, p, c, 2, 0, 1), deliver(t, p, c, 3, 0, 1)
	p.complete(third, 1)
	p.complete(first, 1)
	p.session.flushDue()
	require.Equal(t, []int64{1}, c.upTo, "so that 2 and 3 come again together")
	p.complete(second, 1)
	p.session.flushDue()
	require.Equal(t, []int64{1, 3}, c.upTo)
}

func TestOneMessageDoesNotKeepAllFromBeingAcknowledged(t *testing.T) {
	p, c := newTestPartition(true)
	held := deliver(t, p, c, 0, 0, 1)
	for i := int64(1); i <= 3*maxUnacknowledged; i++ {
		p.complete(deliver(t, p, c, i, 0, 1), 1)
		if i%1000 == 0 {
			p.session.flushDue()
		}
	}
	require.Empty(t, c.upTo)
	require.Greater(t, len(c.alone), maxUnacknowledged)
	require.Less(t, len(p.unacked), 2*maxUnacknowledged, "what is acknowledged is not kept for ever")
	p.complete(held, 1)
	p.session.flushDue()
	require.Equal(t, []int64{3 * maxUnacknowledged}, c.upTo)
}

func TestWhatWasNotReceivedOfABatchIsHandled(t *testing.T) {
	p, c := newTestPartition(true)
	require.NotNil(t, deliver(t, p, c, 1, 0, 1))
	require.NotNil(t, deliver(t, p, c, 2, 0, 3))
	breakConnection(p)
	// The connection broke: the rest of the batch comes with its second delivery.
	require.Nil(t, deliver(t, p, c, 1, 0, 1))
	require.Nil(t, deliver(t, p, c, 2, 0, 3))
	require.NotNil(t, deliver(t, p, c, 2, 1, 3))
	require.NotNil(t, deliver(t, p, c, 2, 2, 3))
}

func TestAcknowledgementThatMayBeLostIsSentAgain(t *testing.T) {
	p, c := newTestPartition(true)
	p.complete(deliver(t, p, c, 1, 0, 1), 1)
	second := deliver(t, p, c, 2, 0, 1)
	p.session.flushDue()
	require.Equal(t, []int64{1}, c.upTo)
	breakConnection(p)
	require.Nil(t, deliver(t, p, c, 1, 0, 1), "it is not handled again")
	p.session.flushDue()
	require.Equal(t, []int64{1, 1}, c.upTo)
	require.Nil(t, deliver(t, p, c, 2, 0, 1))
	p.complete(second, 1)
	p.session.flushDue()
	require.Equal(t, []int64{1, 1, 2}, c.upTo)
	breakConnection(p)
	require.Nil(t, deliver(t, p, c, 2, 0, 1), "the latest of all")
	p.session.flushDue()
	require.Equal(t, []int64{1, 1, 2, 2}, c.upTo)
}

func TestWhatWasAcknowledgedAndComesAgainEndsTheSession(t *testing.T) {
	p, c := newTestPartition(true)
	p.complete(deliver(t, p, c, 1, 0, 1), 1)
	p.session.flushDue()
	second := deliver(t, p, c, 2, 0, 1)
	p.watermarks[0].sent = time.Now().Add(-clientquirks.AckLanding) // the broker has it by now
	p.complete(second, 1)
	breakConnection(p)
	p.session.flushDue()
	require.Equal(t, []int64{1}, c.upTo, "until it is known what the broker delivers again")
	require.False(t, p.rewound)
	require.Nil(t, deliver(t, p, c, 1, 0, 1), "the subscription was reset")
	require.True(t, p.rewound, "the next session handles it, and all behind it")
	p.session.flushDue()
	require.Equal(t, []int64{1}, c.upTo, "what was handled before acknowledges nothing")
}

func TestResetIsNoticedHoweverOftenAcknowledgementsAreSent(t *testing.T) {
	for _, every := range []time.Duration{100 * time.Microsecond, time.Millisecond, clientquirks.AckLanding - time.Millisecond} {
		t.Run(every.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, c := newTestPartition(true)
				var last int64
				for began := time.Now(); time.Since(began) < time.Second; time.Sleep(every) {
					last++
					p.complete(deliver(t, p, c, last, 0, 1), 1)
					p.session.flushDue()
				}
				require.LessOrEqual(t, len(p.watermarks), maxWatermarks)
				breakConnection(p)
				require.Nil(t, deliver(t, p, c, last, 0, 1))
				require.False(t, p.rewound, "the latest acknowledgement may be lost")
				require.Nil(t, deliver(t, p, c, 1, 0, 1))
				require.True(t, p.rewound, "the first was acknowledged long before")
			})
		})
	}
}

func TestWithoutOrderOnlyWhatWasAcknowledgedIsHandledAgain(t *testing.T) {
	p, c := newTestPartition(false)
	first := deliver(t, p, c, 1, 0, 1)
	require.NotNil(t, deliver(t, p, c, 2, 0, 1))
	p.complete(first, 1)
	require.Equal(t, []int64{1}, c.alone)
	first.acked.Store(time.Now().Add(-2 * p.session.ackEvery).UnixNano())
	breakConnection(p)
	require.NotNil(t, deliver(t, p, c, 1, 0, 1))
	require.Nil(t, deliver(t, p, c, 2, 0, 1))
	require.NotNil(t, deliver(t, p, c, 0, 0, 1), "another consumer's")
	require.Nil(t, deliver(t, p, c, 0, 0, 1))
}

// A chunked message has the position of its last chunk. Its first chunks may stand anywhere before,
// and so may those of another message.
func TestChunkedMessageIsRecognisedWhereverItsLastChunkStands(t *testing.T) {
	for name, last := range map[string]struct{ ledger, entry int64 }{
		"behind chunks":                    {1, 7},
		"directly behind another message":  {1, 5},
		"at the beginning of a ledger":     {2, 0},
		"behind chunks in the next ledger": {2, 3},
	} {
		t.Run(name, func(t *testing.T) {
			p, c := newTestPartition(true)
			p.complete(deliver(t, p, c, 4, 0, 1), 1)
			id := chunkedID{batchID{pulsar.NewMessageID(last.ledger, last.entry, 0, 0), 1}}
			p.complete(deliverMessage(t, p, c, &storedMessage{id: id}), 1)
			p.session.flushDue()
			require.Empty(t, c.upTo, "it would take first chunks of other messages along")
			require.Equal(t, []int64{4, last.entry}, c.alone)
		})
	}
}

func TestMessagesThatTheBrokerLeavesOutCountAsDone(t *testing.T) {
	for name, come := range map[string][]int32{
		"the first": {1, 2}, "the last": {0, 1}, "all but the first": {0}, "all but the last": {2},
	} {
		t.Run(name, func(t *testing.T) {
			p, c := newTestPartition(true)
			for _, index := range come { // the others were acknowledged one by one, before
				p.complete(deliver(t, p, c, 1, index, 3), 1)
			}
			p.session.flushDue()
			require.Empty(t, c.upTo)
			p.complete(deliver(t, p, c, 2, 0, 1), 1)
			p.session.flushDue()
			require.Equal(t, []int64{2}, c.upTo)
		})
	}
}

func TestMessagesLeftOutOfTheLastEntryCountAsDone(t *testing.T) {
	p, c := newTestPartition(true)
	first, last := stored(1, 1, 3), stored(1, 2, 3)
	p.session.arrivals.note(first)
	p.session.arrivals.note(last)
	e, ok := come(p, c, first)
	require.True(t, ok)
	p.complete(e, 1)
	p.completeLast()
	p.session.flushDue()
	require.Empty(t, c.upTo, "the last has arrived, and is to come")
	e, ok = come(p, c, last)
	require.True(t, ok)
	p.completeLast()
	p.session.flushDue()
	require.Empty(t, c.upTo, "it is not completed")
	p.complete(e, 1)
	p.session.flushDue()
	require.Equal(t, []int64{1}, c.upTo, "nothing follows")
	p.completeLast()
	p.session.flushDue()
	require.Equal(t, []int64{1}, c.upTo)
}

// A broker that was killed may have lost which messages of a batch were acknowledged one by one.
func TestMessagesThatWereLeftOutAndComeAfterAllCountOnce(t *testing.T) {
	p, c := newTestPartition(true)
	e := deliver(t, p, c, 1, 2, 4) // 0 and 1 were acknowledged before
	require.Same(t, e, deliver(t, p, c, 1, 3, 4))
	p.completeLast()
	breakConnection(p)
	for i := range int32(4) {
		if again := deliver(t, p, c, 1, i, 4); again != nil {
			p.complete(again, 1)
		}
	}
	p.session.flushDue()
	require.Empty(t, c.upTo, "2 and 3 are not completed")
	p.complete(e, 2)
	p.session.flushDue()
	require.Equal(t, []int64{1}, c.upTo)
}

// The first messages of a batch were acknowledged one by one before. The broker delivers the others
// by two connections.
func TestRestOfABatchThatComesTwiceIsNotTakenForDropped(t *testing.T) {
	for name, receivedTwice := range map[string]bool{"received both times": true, "received the second time": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, c := newTestPartition(true)
				for delivery := range 2 {
					rest := []*storedMessage{stored(1, 2, 4), stored(1, 3, 4)}
					for _, m := range rest {
						p.session.arrivals.note(m)
					}
					for _, m := range rest {
						if receivedTwice || delivery == 1 {
							_, ok := come(p, c, m)
							require.True(t, ok)
						}
					}
					if receivedTwice || delivery == 0 {
						breakConnection(p)
					}
				}
				time.Sleep(clientquirks.RedeliveryBegins)
				for range 2 {
					require.False(t, p.session.arrivals.droppedAtTheEnd(), "all has come")
				}
				m := stored(2, 0, 1)
				p.session.arrivals.note(m)
				_, ok := come(p, c, m)
				require.True(t, ok, "nothing is missing before it")
			})
		})
	}
}

func TestDroppedMessagesAreNoticed(t *testing.T) {
	for name, c := range map[string]struct {
		arrive []*storedMessage
		taken  []int
		last   int
	}{
		"an entry":            {[]*storedMessage{stored(1, 0, 1), stored(2, 0, 1), stored(3, 0, 1)}, []int{0}, 2},
		"the rest of a batch": {[]*storedMessage{stored(1, 0, 3), stored(1, 1, 3), stored(1, 2, 3), stored(2, 0, 1)}, []int{0, 1}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			p, consumer := newTestPartition(true)
			for _, m := range c.arrive {
				p.session.arrivals.note(m)
			}
			for _, i := range c.taken {
				e, ok := come(p, consumer, c.arrive[i])
				require.True(t, ok)
				require.NotNil(t, e)
			}
			_, ok := come(p, consumer, c.arrive[c.last])
			require.False(t, ok)
		})
	}
	t.Run("not when the broker delivers them again", func(t *testing.T) {
		p, consumer := newTestPartition(true)
		all := []*storedMessage{stored(1, 0, 1), stored(2, 0, 1), stored(3, 0, 1)}
		for _, m := range all {
			p.session.arrivals.note(m)
		}
		breakConnection(p)
		for i := range int64(3) {
			require.NotNil(t, deliver(t, p, consumer, i+1, 0, 1))
		}
	})
}

// A paused consumer receives nothing, and the broker delivers all of it again after each reconnect.
func TestReconnectsOfAPausedConsumerKeepNoMessages(t *testing.T) {
	const queue = 16
	p, c := newTestPartition(true)
	p.session.arrivals.channel = 4
	var first, last []*storedMessage
	for connection := range 100 {
		last = nil
		for i := range int64(queue) {
			last = append(last, stored(i, 0, 1))
			p.session.arrivals.note(last[i])
		}
		if connection == 0 {
			first = last
		}
		breakConnection(p)
	}
	kept := 0
	for _, a := range p.arrivals.waiting {
		if a.first != nil {
			kept++
		}
	}
	require.LessOrEqual(t, len(p.arrivals.waiting), 4*queue)
	require.LessOrEqual(t, kept, 2*queue)
	// The messages in the channel come first, then those of the latest connection.
	for i, m := range append(first[:p.session.arrivals.channel:p.session.arrivals.channel], last...) {
		e, ok := come(p, c, m)
		require.True(t, ok, "nothing was dropped")
		require.Equal(t, i < 4 || i >= 8, e != nil, "each is handled once")
	}
}

func TestAConnectionThatIsMadeTwiceEndsTheSession(t *testing.T) {
	p, _ := newTestPartition(true)
	connections := &p.session.arrivals.connections
	broken := 0
	connections.Broken = func() { broken++ }
	first := connections.Policy()
	first.Reset()
	connections.Policy().Reset()
	require.Zero(t, broken, "it broke twice")
	shaky := connections.Policy()
	shaky.Next() // it broke while it was made
	shaky.Reset()
	connections.Policy()
	require.Equal(t, 1, broken)
}

func TestAcknowledgedEntriesAreNotRememberedForEver(t *testing.T) {
	p, c := newTestPartition(false)
	p.session.partitions = 100
	held := deliver(t, p, c, 0, 0, 1)
	for i := int64(1); i < 100_000; i++ {
		p.complete(deliver(t, p, c, i, 0, 1), 1)
	}
	require.Less(t, len(p.unacked), 2*maxRemembered/100)
	require.Same(t, held, p.unacked[0])
	require.Nil(t, deliver(t, p, c, 0, 0, 1), "still known")
}

// An operator resets a running subscription to its latest message, or to the beginning of a topic
// that holds one.
func TestResetToTheLatestMessageIsHandled(t *testing.T) {
	t.Run("exclusive", func(t *testing.T) {
		p, c := newTestPartition(true)
		p.complete(deliver(t, p, c, 1, 0, 1), 1)
		p.session.flushDue()
		p.watermarks[0].sent = time.Now().Add(-time.Hour) // the broker has it
		breakConnection(p)
		e := deliver(t, p, c, 1, 0, 1)
		require.True(t, e != nil || p.rewound, "acknowledged unhandled")
	})
	t.Run("key_shared", func(t *testing.T) {
		p, c := newTestPartition(false)
		p.session.ordered, p.session.ackEvery = true, time.Millisecond
		e := deliver(t, p, c, 1, 0, 1)
		p.complete(e, 1)
		e.acked.Store(time.Now().Add(-time.Hour).UnixNano())
		breakConnection(p)
		require.NotNil(t, deliver(t, p, c, 1, 0, 1), "acknowledged unhandled")
	})
}

// Messages come that stand before the newest one received: after a reset, or delayed ones behind a
// newer one.
func TestOlderMessagesAreNotRememberedForEver(t *testing.T) {
	for name, ordered := range map[string]bool{"shared": false, "key_shared": true} {
		t.Run(name, func(t *testing.T) {
			p, c := newTestPartition(false)
			p.session.ordered, p.session.ackEvery = ordered, time.Millisecond
			p.complete(deliver(t, p, c, 1_000_000, 0, 1), 1)
			for i := range int64(200_000) {
				p.complete(deliver(t, p, c, i, 0, 1), 1)
			}
			require.Less(t, len(p.unacked), 2*maxRemembered)
		})
	}
}

// Key_Shared. Of a key the second message waited for the first, so that it was acknowledged later
// than what stands behind it. A broker that crashes has lost about the last second of
// acknowledgements, and delivers both again: the first, which was swept, and the second.
func TestBrokerThatGoesBackTakesNoKeyBack(t *testing.T) {
	p, c := newTestPartition(false)
	p.session.ordered, p.session.ackEvery = true, 100*time.Millisecond
	acked := func(e *entry, ago time.Duration) {
		p.complete(e, 1)
		e.acked.Store(time.Now().Add(-ago).UnixNano())
	}
	acked(deliver(t, p, c, 1, 0, 1), 900*time.Millisecond)
	second := deliver(t, p, c, 2, 0, 1)
	for i := range int64(200) { // of other keys
		acked(deliver(t, p, c, 3+i, 0, 1), 400*time.Millisecond)
	}
	acked(second, 100*time.Millisecond)
	breakConnection(p)
	first := deliver(t, p, c, 1, 0, 1)
	again := deliver(t, p, c, 2, 0, 1)
	require.False(t, first != nil && again == nil, "K is back at its first message")
}

// Where a partition ends is asked for with a back-off policy, too, by consumers that are connected.
func TestDrainThatAsksForEndsIsNotConnecting(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	s.CreateTopic("orders", 3)
	cfg := DefaultConsumerConfig()
	cfg.Topics, cfg.Subscription = []string{"orders"}, "sub"
	c, err := openConsumers(t, s.URL()).New(cfg)
	require.NoError(t, err)
	r, err := c.begin(func(context.Context, *record.Delivery) error { return nil }, false)
	require.NoError(t, err)
	defer c.end()
	r.drain = newDrain(r)
	r.stop, r.halt = context.WithCancelCause(t.Context())
	defer r.halt(nil)
	r.handlerCtx = r.stop
	session, err := r.subscribe(r.cfg.sources()[0])
	require.NoError(t, err)
	defer r.giveUp(session)
	connections := &session.arrivals.connections
	before := connections.Current.Load()
	require.NoError(t, r.drain.begin(session))
	require.Equal(t, before+3, connections.Current.Load(), "it was asked for")
	require.True(t, connections.Redelivering(), "what is dropped is noticed")
}
