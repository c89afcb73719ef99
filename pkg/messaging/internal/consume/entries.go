package consume

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/clientquirks"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/record"
)

// partition is what a session knows of one partition: the entries that it received and that are
// not acknowledged for sure.
//
// After a reconnect that the underlying client does by itself, a broker delivers again from the
// first entry on whose acknowledgement it does not have. Such an entry is recognised here. What of
// it is unfinished continues, and nothing of it is handled twice: that would take its keys back in
// time. What of it is completed is acknowledged again.
//
// An entry that the broker delivers again although it had the acknowledgement is another matter:
// the subscription was reset, or the broker lost its position. Everything from there on is to be
// handled again, in its order. Where the subscription delivers a partition to one consumer at a
// time, the session ends (rewound): acknowledgements of later entries may be on their way, and the
// broker would skip what they cover. The next session begins where the broker then is.
type partition struct {
	session  *session
	topic    string
	arrivals *arrivals

	// The receiver's own.
	lastPlace      record.Place // of the last new entry
	lastConnection uint32       // the connection that it came by
	current        *entry       // of the latest message
	ackedBefore    record.Place // up to there the broker had the acknowledgement when that connection began
	rewound        bool         // the broker delivers again what it had the acknowledgement for
	chunked        clientquirks.ChunkedIDs
	slab           []entry
	epoch          uint32 // that the receiver has got to: see activity.go
	arrivedIn      uint32 // the epoch of the latest entry

	connection   atomic.Uint32 // that the latest entry came by; the receiver sets it
	completed    atomic.Int64  // entries
	dirty        atomic.Bool   // in the session's list of partitions to flush
	individual   atomic.Bool   // entries are acknowledged individually: some before them may not have come
	acking       chan struct{} // holds one item while acknowledgements are sent
	waitingSince time.Time     // since when acknowledgements wait for a redelivery; guarded by acking

	mu             sync.Mutex
	unacked        []*entry     // by position
	sweepAt        int          // so long unacked is swept
	last           *entry       // up to which all is acknowledged
	ackDue         bool         // last is to be acknowledged (again)
	individualFrom record.Place // the position of the switch to individual
	watermarks     []watermark
}

func newPartition(s *session, topic string) *partition {
	p := &partition{session: s, topic: topic, arrivals: s.arrivals.find(topic), epoch: firstEpoch, acking: make(chan struct{}, 1)}
	p.startOver()
	return p
}

// nowhere is before every message.
func nowhere() record.Place { return record.Place{Ledger: -1} }

// entry is what the broker stores and acknowledges as one: a message, or a batch of messages.
type entry struct {
	partition   *partition
	at          record.Place
	size        int32
	unreceived  int32        // messages not received; the receiver's own
	received    []uint64     // bit per message of a batch that was received; the receiver's own
	uncompleted atomic.Int32 // messages not completed
	acked       atomic.Int64 // when it was acknowledged by itself, Unix nanoseconds; 0: it was not
	epoch       uint32       // of the partition, when it was received
	source      pulsar.Consumer
	id          pulsar.MessageID // to acknowledge it by
}

const (
	// entrySlab is how many entries are allocated together.
	entrySlab = 32
	// maxRemembered bounds the entries that a session without one consumer per partition remembers
	// although they are acknowledged, over all partitions; minRemembered is each partition's.
	maxRemembered = 64 << 10
	minRemembered = 64
)

// receive returns the entry of a received message, or nil when the message is a repetition. again
// reports whether the broker delivers something again that it delivered before in this session.
func (p *partition) receive(m *pulsar.ConsumerMessage, perMessage bool) (e *entry, again bool) {
	id := m.ID()
	index, size := max(id.BatchIdx(), 0), max(id.BatchSize(), 1)
	at := record.Place{Ledger: id.LedgerID(), Entry: id.EntryID()}
	if perMessage {
		at.Batch, index, size = index, 0, 1
	}
	e = p.current
	if e == nil || e.at != at {
		var done bool
		if e, again, done = p.find(at); done {
			if p.individual.Load() && !p.rewound {
				p.session.acknowledgeIndividually(m.Consumer, id)
			}
			return nil, true
		}
		if e == nil {
			e = p.add(at, size, m)
		}
		p.current = e
	}
	if e.take(index) {
		return e, again
	}
	// It is here unfinished, or completed.
	if e.uncompleted.Load() == 0 {
		p.acknowledgeAgain(e, m)
	}
	return nil, true
}

// acknowledgeAgain acknowledges a completed entry that was delivered again.
func (p *partition) acknowledgeAgain(e *entry, m *pulsar.ConsumerMessage) {
	id := e.id
	if e.size == 1 {
		id = m.ID() // the chunks of the copy before are forgotten
	}
	p.mu.Lock()
	acked := e.acked.Load() != 0
	if i, waits := p.search(e.at); waits && p.individual.Load() && !acked && p.unacked[i] == e {
		e.id = id // advance takes it once its turn comes
	}
	p.ackDue = p.ackDue || p.last != nil && !p.last.at.Less(e.at)
	p.mu.Unlock()
	if !p.session.singleConsumer || !acked {
		p.session.acknowledge(e)
		return
	}
	if !e.lost() { // else another consumer gets it
		e.acked.Store(time.Now().UnixNano())
		p.session.acknowledgeIndividually(m.Consumer, id)
	}
}

// arrive is called for every message that is taken from the underlying client, before anything else
// is looked at. It reports false when the client has dropped messages before it: it empties its
// queue when it connects again, and a broker that takes the consumer for connected does not deliver
// that again.
func (p *partition) arrive(m pulsar.Message) bool {
	id := m.ID()
	at := record.Place{Ledger: id.LedgerID(), Entry: id.EntryID()}
	begun, passed, ok := p.arrivals.received(m, at, id.BatchIdx())
	if !ok {
		return true
	}
	p.arrivedIn = begun.epoch
	for i, a := range passed {
		if i == 0 {
			if p.finishEntry(a, at) {
				return false
			}
			continue
		}
		if p.lastPlace.Less(a.at) && a.at.Less(at) {
			return false
		}
	}
	if begun.connection > p.connection.Load() {
		p.ackedBefore = p.acknowledged()
		p.connection.Store(begun.connection)
		p.current = nil // find says what to do with another copy of it
	}
	return true
}

// finishEntry is called when the receiver continues from an entry to the one at next. It reports
// whether some of the entry was dropped: it had arrived, and did not come.
func (p *partition) finishEntry(a arrival, next record.Place) (dropped bool) {
	e := p.current
	if e == nil || p.session.perMessage || e.unreceived == 0 || e.at != a.at || !e.at.Less(next) {
		return false
	}
	if a.messages > e.size-e.unreceived {
		return true
	}
	p.completeRest(e)
	return false
}

// completeRest completes the messages of an entry that the broker has left out: they were
// acknowledged one by one before.
func (p *partition) completeRest(e *entry) {
	left := e.unreceived
	e.unreceived = 0
	for i := range e.received { // should they come after all
		e.received[i] = ^uint64(0)
	}
	p.complete(e, left)
}

// completeLast is called when nothing has arrived for a time: nothing more comes of the receiver's
// present entry.
func (p *partition) completeLast() {
	e := p.current
	if e == nil || p.session.perMessage || e.unreceived == 0 {
		return
	}
	if n, last := p.arrivals.missing(); n == 0 && last == e.at {
		p.completeRest(e)
	}
}

// acknowledged is up to where the broker had cumulative acknowledgements when the latest connection
// ended.
func (p *partition) acknowledged() record.Place {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range slices.Backward(p.watermarks) {
		if !p.session.arrivals.connections.Lost(w.sent) {
			return w.at
		}
	}
	return nowhere()
}

// find returns the entry at a position, nil when it is to be handled. again reports whether the
// broker went back, and done whether all of it is completed.
func (p *partition) find(at record.Place) (e *entry, again, done bool) {
	if p.lastPlace.Less(at) {
		return nil, false, false
	}
	p.mu.Lock()
	i, found := p.search(at)
	if found {
		e = p.unacked[i]
	}
	passed := p.last != nil && !p.last.at.Less(at)
	p.mu.Unlock()
	switch sent := p.sent(e); {
	case found && sent.IsZero(), found && p.session.arrivals.connections.Lost(sent):
		return e, true, false
	case !found && passed && p.ackedBefore.Less(at):
		p.mu.Lock()
		p.ackDue = true
		p.mu.Unlock()
		p.session.flushLater(p)
		return nil, true, true
	case p.session.singleConsumer:
		p.startOver() // so that nothing of it is acknowledged any more
		p.rewound = true
		return nil, true, true
	case p.session.ordered && (found || p.lastConnection != p.connection.Load()):
		// What is not found may have been swept; without a new connection the broker has not gone
		// back, and it is another consumer's that has left, or was delayed.
		p.startOver()
	case found:
		p.mu.Lock()
		p.unacked = slices.Delete(p.unacked, i, i+1) // nobody else takes from it without order
		p.mu.Unlock()
	}
	return nil, true, false
}

// sent is when the acknowledgement of an entry by itself was sent, the zero time when it was not.
func (p *partition) sent(e *entry) time.Time {
	if e == nil {
		return time.Time{}
	}
	acked := e.acked.Load()
	if acked == 0 {
		return time.Time{}
	}
	return time.Unix(0, acked).Add(p.session.ackEvery)
}

// search finds an entry of unacked. p.mu is held.
func (p *partition) search(at record.Place) (int, bool) {
	return slices.BinarySearchFunc(p.unacked, at, func(e *entry, at record.Place) int {
		switch {
		case e.at.Less(at):
			return -1
		case at.Less(e.at):
			return 1
		default:
			return 0
		}
	})
}

// startOver makes the partition begin again: what is delivered from now on is handled.
func (p *partition) startOver() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unacked, p.last, p.ackDue, p.watermarks, p.individualFrom = nil, nil, false, nil, nowhere()
	p.current, p.lastPlace, p.ackedBefore = nil, nowhere(), nowhere()
}

// switchToIndividual ends cumulative acknowledgement: entries before at may not have been received.
func (p *partition) switchToIndividual(at record.Place) {
	if !p.session.singleConsumer || p.individual.Load() {
		return // without one consumer per partition they always are
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.individualFrom = at
	p.individual.Store(true)
}

// add makes an entry at a position where there is none.
func (p *partition) add(at record.Place, size int32, m *pulsar.ConsumerMessage) *entry {
	if len(p.slab) == 0 {
		p.slab = make([]entry, entrySlab)
	}
	e := &p.slab[0]
	p.slab = p.slab[1:]
	id := m.ID()
	if size > 1 {
		// The whole entry. The underlying client completes an entry by the copy of it that
		// was received, so that one which came twice would never be complete.
		id = pulsar.NewMessageID(at.Ledger, at.Entry, -1, id.PartitionIdx())
		e.received = make([]uint64, (size+63)/64)
	}
	e.partition, e.at, e.size, e.unreceived, e.source, e.id = p, at, size, size, m.Consumer, id
	e.epoch = p.epoch
	e.uncompleted.Store(size)
	if size == 1 && p.session.singleConsumer && p.chunked.Has(id) { // chunks are not batched
		p.switchToIndividual(at)
	}
	if p.lastPlace != nowhere() && p.lastPlace.GapBefore(at) {
		p.switchToIndividual(at)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lastPlace.Less(at) {
		p.lastPlace, p.lastConnection = at, p.connection.Load()
		p.unacked = append(p.unacked, e)
	} else {
		i, _ := p.search(at)
		p.unacked = slices.Insert(p.unacked, i, e)
	}
	if !p.session.singleConsumer && len(p.unacked) > p.sweepAt {
		p.sweep()
	}
	return e
}

// sweep forgets the entries whose acknowledgement the broker has by now, and, when that is not
// enough, the older ones whose acknowledgement it may have. p.mu is held.
func (p *partition) sweep() {
	landed := time.Now().Add(-p.session.ackEvery - 2*clientquirks.AckLanding).UnixNano()
	p.unacked = slices.DeleteFunc(p.unacked, func(e *entry) bool {
		acked := e.acked.Load()
		return e.uncompleted.Load() == 0 && acked != 0 && acked < landed
	})
	most := max(maxRemembered/max(p.session.partitions, len(p.session.parts), 1), minRemembered)
	if len(p.unacked) > most {
		p.dropAcked()
	}
	p.sweepAt = max(2*len(p.unacked), minRemembered)
}

// dropAcked forgets the older half of the entries that were acknowledged one by one. p.mu is held.
func (p *partition) dropAcked() {
	most := len(p.unacked) / 2
	p.unacked = slices.DeleteFunc(p.unacked, func(e *entry) bool {
		most--
		return most >= 0 && e.uncompleted.Load() == 0 && e.acked.Load() != 0
	})
}

// take notes that a message of the entry was received, and reports whether it was not before.
func (e *entry) take(index int32) bool {
	if e.size == 1 {
		first := e.unreceived > 0
		e.unreceived = 0
		return first
	}
	if index >= e.size {
		return false
	}
	word, bit := &e.received[index/64], uint64(1)<<(index%64)
	if *word&bit != 0 {
		return false
	}
	*word |= bit
	e.unreceived--
	return true
}

// complete notes that n messages of an entry need no more handling, and has the entry
// acknowledged behind its last.
func (p *partition) complete(e *entry, n int32) {
	if e.uncompleted.Add(-n) == 0 {
		p.session.acknowledge(e)
	}
}
