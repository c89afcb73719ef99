package messaging

import (
	"errors"
	"sync"
	"sync/atomic"

	"github.com/apache/pulsar-client-go/pulsar"
)

// arrivals follows the messages of one partition on the connection's reader goroutine, where they
// are in order with the broker's confirmations of acknowledgements. When the broker goes back, a
// copy of an entry that was confirmed before means that the subscription was reset; of one that is
// confirmed afterwards, that the copy and the acknowledgement crossed.
type arrivals struct {
	topic string

	mu            sync.Mutex
	last          position
	head          int        // of waiting
	waiting       []position // entries that arrived and that the receiver has not come to
	confirmations uint64     // requests that the broker has confirmed
	wentBack      uint64     // confirmations when the broker went back for the last time
}

// arrivalLog is the arrivals of a session's partitions.
type arrivalLog struct {
	latest atomic.Pointer[arrivals] // of the latest message

	mu sync.Mutex
	of map[string]*arrivals // by partition's topic
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
		a = &arrivals{topic: topic, last: position{ledger: -1}}
		l.of[topic] = a
	}
	l.latest.Store(a)
	return a
}

// note notes a message that arrives. Only the first message of a batch says more than the others.
func (l *arrivalLog) note(m pulsar.Message) {
	id := m.ID()
	if id.BatchIdx() > 0 {
		return
	}
	a := l.find(m.Topic())
	at := position{ledger: id.LedgerID(), entry: id.EntryID()}
	a.mu.Lock()
	if !a.last.less(at) {
		a.wentBack = a.confirmations
	}
	a.last = at
	a.waiting = append(a.waiting, at)
	a.mu.Unlock()
}

// received is called for the first message of an entry that the receiver comes to. It reports
// whether the underlying client has dropped a new entry that arrived before: it empties its queue
// when it connects again, and a broker that takes the consumer for connected does not deliver
// that again.
func (a *arrivals) received(at, high position) (dropped bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, p := range a.waiting[a.head:] {
		if p == at {
			a.head += i + 1
			if a.head > len(a.waiting)/2 {
				n := copy(a.waiting, a.waiting[a.head:])
				a.waiting, a.head = a.waiting[:n], 0
			}
			return dropped
		}
		dropped = dropped || high.less(p) && p.less(at)
	}
	return false // it was passed before: the broker has delivered it twice
}

// errDropped ends a session whose underlying consumer has dropped messages.
var errDropped = errors.New("messages were dropped while connecting again")

// confirm numbers a confirmed request.
func (a *arrivals) confirm() uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.confirmations++
	return a.confirmations
}

// before reports whether a request was confirmed before the broker went back for the last time.
func (a *arrivals) before(confirmation uint64) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return confirmation <= a.wentBack
}
