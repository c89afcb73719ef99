package messaging

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/apache/pulsar-client-go/pulsar"
)

// partition is what a session knows of one partition: the entries that it received and whose
// acknowledgement the broker has not confirmed.
//
// After a reconnect that the underlying client does by itself, a broker delivers again from the
// first entry on whose acknowledgement it does not have. Such an entry is recognised here. What of
// it is unfinished goes on, and nothing of it is handled twice: that would take its keys back in
// time. What of it is completed is acknowledged again.
//
// An entry that the broker delivers again although it has confirmed the acknowledgement is another
// matter: the subscription was reset, or the broker lost its position, or it comes from another
// consumer. Where order is kept, the partition then starts over: everything that is delivered from
// there on is handled, in its order.
type partition struct {
	session  *session
	topic    string
	arrivals *arrivals

	// The receiver's own.
	high     position // of the last new entry
	current  *entry   // of the latest message
	arrived  position // entry of the latest message
	latest   position // with acknowledgement per message: of the latest message
	copies   uint32   // the same: how often the broker went back
	live     []*entry // not confirmed, by position; some may be confirmed meanwhile
	slab     []entry
	losses   uint32    // of activity, as far as the receiver has got
	activity *activity // of a Failover subscription's partition, else nil

	confirmed atomic.Int64 // entries of live

	acks struct {
		mu      sync.Mutex
		ready   []*entry // complete and to be acknowledged
		sending bool     // a goroutine sends them
		flush   bool     // and is to go on with what became ready meanwhile
		dirty   bool     // in the session's list of partitions to flush
	}
}

// position is where an entry stands in its partition. Where messages of a batch are acknowledged
// one by one, each counts as an entry.
type position struct {
	ledger, entry int64
	batch         int32
}

// positionOf is the position of a message.
func positionOf(id pulsar.MessageID) position {
	return position{id.LedgerID(), id.EntryID(), id.BatchIdx()}
}

func (p position) less(o position) bool {
	if p.ledger != o.ledger {
		return p.ledger < o.ledger
	}
	if p.entry != o.entry {
		return p.entry < o.entry
	}
	return p.batch < o.batch
}

// entry is what the broker stores and acknowledges as one: a message, or a batch of messages.
type entry struct {
	partition *partition
	at        position
	size      int32
	untaken   int32        // messages not received; the receiver's own
	taken     []uint64     // bit per message of a batch that was received; the receiver's own
	left      atomic.Int32 // messages not completed
	losses    uint32       // of the partition, when it was received
	confirmed atomic.Bool  // the broker has the acknowledgement
	confirm   uint64       // the number of its confirmation, set before confirmed
	acking    atomic.Bool  // in acks.ready, or being sent
	source    pulsar.Consumer
	id        pulsar.MessageID // to acknowledge it by
	copies    uint32           // of the delivery that id is of; with acknowledgement per message
}

const (
	// entrySlab is how many entries are allocated together.
	entrySlab = 32
	// compactAfter is from how many confirmed entries on live is compacted.
	compactAfter = 64
)

// receive returns the entry of a received message, or nil when the message is a repetition. again
// reports whether the broker delivers something again that it delivered before in this session.
func (p *partition) receive(m *pulsar.ConsumerMessage, perMessage bool) (e *entry, again bool) {
	id := m.ID()
	index, size := max(id.BatchIdx(), 0), max(id.BatchSize(), 1)
	at := position{ledger: id.LedgerID(), entry: id.EntryID()}
	if perMessage {
		at.batch, index, size = index, 0, 1
		if !p.latest.less(at) {
			p.copies++
		}
		p.latest = at
	}
	if stored := (position{ledger: at.ledger, entry: at.entry}); p.arrived != stored {
		p.arrived = stored
		if p.arrivals.received(stored, p.entryHigh()) {
			p.session.dropped = true
			p.session.OnConsumerClose(nil, errDropped)
			return nil, false
		}
	}
	e = p.current
	if e == nil || e.at != at {
		if e, again = p.find(at); e == nil {
			e = p.add(at, size, m)
		}
		p.current = e
	}
	if e.take(index) {
		return e, again
	}
	if perMessage {
		e.rebind(id)
	}
	// It is here unfinished, or completed.
	if e.left.Load() == 0 {
		p.session.acknowledge(e)
	}
	return nil, true
}

// entryHigh is the last new entry.
func (p *partition) entryHigh() position { return position{ledger: p.high.ledger, entry: p.high.entry} }

// find returns the entry at a position, nil when it is to be handled. again reports whether the
// broker went back.
func (p *partition) find(at position) (e *entry, again bool) {
	if p.high.less(at) {
		if last := p.current; last != nil && p.session.sole && last.at == p.high && last.untaken > 0 {
			// The broker left these out: they were acknowledged one by one before.
			p.complete(last, last.untaken)
			last.untaken = 0
		}
		return nil, false
	}
	i, found := slices.BinarySearchFunc(p.live, at, func(e *entry, at position) int {
		switch {
		case e.at.less(at):
			return -1
		case at.less(e.at):
			return 1
		default:
			return 0
		}
	})
	if found && (!p.live[i].confirmed.Load() || !p.arrivals.before(p.live[i].confirm)) {
		return p.live[i], true
	}
	if p.session.ordered {
		p.forget()
	} else if found {
		p.live = slices.Delete(p.live, i, i+1)
		p.confirmed.Add(-1)
	}
	return nil, true
}

// forget makes the partition start over: what is delivered from now on is handled.
func (p *partition) forget() {
	p.live, p.current, p.high, p.arrived = nil, nil, position{ledger: -1}, position{ledger: -1}
	p.confirmed.Store(0)
}

// add makes an entry at a position where there is none.
func (p *partition) add(at position, size int32, m *pulsar.ConsumerMessage) *entry {
	if len(p.slab) == 0 {
		p.slab = make([]entry, entrySlab)
	}
	e := &p.slab[0]
	p.slab = p.slab[1:]
	id := m.ID()
	if size > 1 {
		// The whole entry. The underlying client completes an entry by the copy of it that
		// was received, so that one which came twice would never be complete.
		id = pulsar.NewMessageID(at.ledger, at.entry, -1, id.PartitionIdx())
		e.taken = make([]uint64, (size+63)/64)
	}
	e.partition, e.at, e.size, e.untaken, e.source, e.id = p, at, size, size, m.Consumer, id
	e.losses, e.copies = p.losses, p.copies
	e.left.Store(size)
	if p.high.less(at) {
		p.high = at
		p.compact()
		p.live = append(p.live, e)
		return e
	}
	i, _ := slices.BinarySearchFunc(p.live, at, func(e *entry, at position) int {
		if e.at.less(at) {
			return -1
		}
		return 1
	})
	p.live = slices.Insert(p.live, i, e)
	return e
}

// compact drops confirmed entries when they are most of live.
func (p *partition) compact() {
	n := p.confirmed.Load()
	if n < compactAfter || int(n) < len(p.live)/2 {
		return
	}
	p.confirmed.Store(0)
	p.live = slices.DeleteFunc(p.live, func(e *entry) bool { return e.confirmed.Load() })
}

// take notes that a message of the entry was received, and reports whether it was not before.
func (e *entry) take(index int32) bool {
	if e.size == 1 {
		first := e.untaken > 0
		e.untaken = 0
		return first
	}
	if index >= e.size {
		return false
	}
	word, bit := &e.taken[index/64], uint64(1)<<(index%64)
	if *word&bit != 0 {
		return false
	}
	*word |= bit
	e.untaken--
	return true
}

// rebind makes a message that was delivered again be acknowledged by its latest copy: the
// underlying client says for each copy of a batch which of its messages are acknowledged.
func (e *entry) rebind(id pulsar.MessageID) {
	e.partition.acks.mu.Lock()
	defer e.partition.acks.mu.Unlock()
	e.id, e.copies = id, e.partition.copies
}

// complete notes that n messages of an entry need no more handling, and has the entry
// acknowledged behind its last.
func (p *partition) complete(e *entry, n int32) {
	if e.left.Add(-n) == 0 {
		p.session.acknowledge(e)
	}
}
