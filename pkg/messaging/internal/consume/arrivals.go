package consume

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/clientquirks"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/record"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/topicname"
)

// arrivals follows the messages of one partition on the connection's reader goroutine.
type arrivals struct {
	topic string
	epoch atomic.Uint32 // of a Failover subscription's partition: see activity.go

	mu      sync.Mutex
	head    int       // of waiting
	waiting []arrival // entries that arrived and that the receiver has not come to
}

// arrival is an entry, as it arrived.
type arrival struct {
	at         record.Place
	first      pulsar.Message // nil once it cannot come to the receiver any more
	messages   int32          // of it that arrived
	last       int32          // the batch index of the last of these
	received   int32          // of these, to the receiver
	connection uint32         // that it came by
	epoch      uint32         // in which it came
	batch      bool
}

// arrivalLog is the arrivals of a session's partitions.
type arrivalLog struct {
	connections clientquirks.Connections
	latest      atomic.Pointer[arrivals] // of the latest message

	channel int // how many messages wait for the receiver at most, outside the underlying queues

	mu     sync.Mutex
	of     map[string]*arrivals     // by partition's topic
	before map[string]missingBefore // the same
}

func (l *arrivalLog) find(topic string) *arrivals {
	if a := l.latest.Load(); a != nil && a.topic == topic {
		return a
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.of[topic]
	if a == nil {
		if l.of == nil {
			l.of = make(map[string]*arrivals)
		}
		a = &arrivals{topic: topic}
		l.of[topic] = a
	}
	l.latest.Store(a)
	return a
}

// topics are those of which messages or events have arrived, without their partitions.
func (l *arrivalLog) topics() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	found := make(map[string]struct{})
	for topic := range l.of {
		found[topicname.WithoutPartition(topic)] = struct{}{}
	}
	return slices.Collect(maps.Keys(found))
}

// note notes a message that arrives.
func (l *arrivalLog) note(m pulsar.Message) {
	id := m.ID()
	at := record.Place{Ledger: id.LedgerID(), Entry: id.EntryID()}
	a := l.find(m.Topic())
	a.mu.Lock()
	defer a.mu.Unlock()
	n, connection, epoch, index := len(a.waiting), l.connections.Current.Load(), a.currentEpoch(), id.BatchIdx()
	if n > a.head && index > 0 {
		if latest := &a.waiting[n-1]; latest.at == at && latest.connection == connection && latest.epoch == epoch && index > latest.last {
			latest.messages++
			latest.last = index
			return
		}
	}
	if n > a.head && a.waiting[n-1].connection != connection {
		a.reconnected(at, l.channel)
	}
	a.waiting = append(a.waiting, arrival{
		at: at, first: m, messages: 1, last: index, connection: connection, epoch: epoch, batch: id.BatchSize() > 1,
	})
}

// reconnected is called for the first message that arrives by another connection. The underlying
// client has emptied its queue: earlier messages that are not in the channel to the receiver do
// not come, and the broker delivers again from the message's position on. a.mu is
// held.
func (a *arrivals) reconnected(at record.Place, channel int) {
	kept, ahead := a.waiting[:a.head], 0
	for i, p := range a.waiting[a.head:] {
		switch {
		case i == 0, p.first != nil && ahead <= channel:
			ahead += int(p.messages)
			kept = append(kept, p)
		case p.at.Less(at):
			p.first = nil
			kept = append(kept, p)
		}
	}
	clear(a.waiting[len(kept):])
	a.waiting = kept
}

// received is called for every message that the receiver comes to. For one that begins an entry it
// returns how that arrived, and those that arrived before it and that the receiver has not come to
// since the last one: the first of these is the entry that it was at.
func (a *arrivals) received(m pulsar.Message, at record.Place, index int32) (begun arrival, passed []arrival, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	waiting := a.waiting[a.head:]
	if index > 0 && len(waiting) > 0 && waiting[0].at == at && !a.copied(m) {
		waiting[0].received++
		return arrival{}, nil, false
	}
	for i, p := range waiting {
		if p.first == m {
			if i > 1 || i == 1 && waiting[0].batch {
				passed = append(passed, waiting[:i]...)
			}
			waiting[i].received = 1
			clear(waiting[:i])
			a.head += i
			a.trim()
			return p, passed, true
		}
	}
	return arrival{}, nil, false
}

// copied reports whether a message begins another copy of the entry that the receiver is at: one
// that has come by another connection, or in another epoch. a.mu is held.
func (a *arrivals) copied(m pulsar.Message) bool {
	waiting := a.waiting[a.head:]
	if last := waiting[len(waiting)-1]; waiting[0].connection == last.connection && waiting[0].epoch == last.epoch {
		return false
	}
	return slices.ContainsFunc(waiting[1:], func(p arrival) bool { return p.first == m })
}

// trim forgets entries before the head.
func (a *arrivals) trim() {
	if a.head <= len(a.waiting)/2 {
		return
	}
	n := copy(a.waiting, a.waiting[a.head:])
	clear(a.waiting[n:])
	a.waiting, a.head = a.waiting[:n], 0
}

// missing is how many messages have arrived, and the receiver has not come to, and the entry that
// arrived last.
func (a *arrivals) missing() (n int, last record.Place) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range a.waiting[a.head:] {
		n += int(p.messages - p.received)
		last = p.at
	}
	return n, last
}

// missingBefore has the messages of a partition that were missing at the last look.
type missingBefore struct {
	n    int
	last record.Place
}

// droppedAtTheEnd reports whether messages are missing that nothing follows. It is called from time
// to time while no message waits for the receiver: messages that are still missing were
// dropped, once no connection is being made.
func (l *arrivalLog) droppedAtTheEnd() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.before == nil {
		l.before = make(map[string]missingBefore)
	}
	dropped := false
	for topic, a := range l.of {
		n, last := a.missing()
		now := missingBefore{n, last}
		dropped = dropped || n > 0 && l.before[topic] == now && l.connections.Redelivering()
		l.before[topic] = now
	}
	return dropped
}

// errDropped ends a session whose underlying consumer has dropped messages.
var errDropped = errors.New("messages were dropped while connecting again")

// errRewound ends a session whose broker delivers acknowledged messages again.
var errRewound = errors.New("the broker delivers from an earlier position: the subscription was reset, or the broker lost its position")
