package messaging

import (
	"sync"
	"sync/atomic"

	"github.com/apache/pulsar-client-go/pulsar"
)

// activity follows whether a Failover subscription delivers a partition to this consumer. The
// broker's events arrive on the connection's reader goroutine, in order with the messages. The
// messages wait in queues after that, so the receiver learns of an event by the first message
// behind it.
//
// When the partition goes to another consumer, the broker delivers everything unacknowledged to
// that one: what waits here is dropped. When the partition comes (back), the broker delivers from
// the first unacknowledged message on, and another consumer may have handled some of what was
// handled here. So everything from there on is handled again, in its order.
type activity struct {
	epoch atomic.Uint32 // counts the events

	// Guarded by activities.mu.
	active bool
	lost   bool           // inactive since the receiver saw the latest first
	first  pulsar.Message // behind the latest event; nil until it arrives
}

// activities are those of a session's partitions.
type activities struct {
	mu sync.Mutex
	of map[string]*activity // by partition's topic

	awaited atomic.Bool            // a first message is awaited; changed under mu
	noted   atomic.Pointer[string] // the last topic that awaits none; nil after a change
}

func (as *activities) find(topic string) *activity {
	as.mu.Lock()
	defer as.mu.Unlock()
	return as.get(topic)
}

func (as *activities) get(topic string) *activity {
	a := as.of[topic]
	if a == nil {
		if as.of == nil {
			as.of = make(map[string]*activity)
		}
		a = new(activity)
		as.of[topic] = a
	}
	return a
}

// change notes an event, and returns the epoch that begins with it.
func (as *activities) change(topic string, active bool) uint32 {
	as.mu.Lock()
	defer as.mu.Unlock()
	a := as.get(topic)
	a.active, a.first = active, nil
	a.lost = a.lost || !active
	as.noted.Store(nil)
	if active {
		as.awaited.Store(true)
	}
	return a.epoch.Add(1)
}

// noteFirst notes the first message behind an event. It runs on the connection's reader goroutine,
// for every message while a partition's first has not arrived.
func (as *activities) noteFirst(m pulsar.Message) {
	topic := m.Topic()
	if noted := as.noted.Load(); noted != nil && *noted == topic {
		return
	}
	as.mu.Lock()
	defer as.mu.Unlock()
	if a := as.of[topic]; a != nil && a.active && a.first == nil {
		a.first = m
		awaited := false
		for _, a := range as.of {
			awaited = awaited || a.active && a.first == nil
		}
		as.awaited.Store(awaited)
	}
	as.noted.Store(&topic)
}

// BecameActive says that a Failover subscription delivers a partition to us from now on.
func (s *session) BecameActive(_ pulsar.Consumer, topic string, index int32) {
	s.activities.change(topic, true)
	s.owned.gain(topic, int(index))
}

// BecameInactive says that it delivers the partition to another consumer from now on.
func (s *session) BecameInactive(_ pulsar.Consumer, topic string, _ int32) {
	epoch := s.activities.change(topic, false)
	s.owned.lose(topic)
	go s.dropBefore(topic, epoch) // takes a lock
}

// stale reports whether a message was received before its partition went to another consumer. It
// makes the partition start over at the first message behind an event.
func (p *partition) stale(m pulsar.Message) bool {
	a := p.activity
	if a == nil || a.epoch.Load() == p.epoch {
		return false
	}
	as := &p.session.activities
	as.mu.Lock()
	active, first, epoch := a.active, a.first == m, a.epoch.Load()
	if !active || !first {
		lost := a.lost
		as.mu.Unlock()
		// Without a loss in between, those from before the event are in order.
		return lost
	}
	a.lost = false
	as.mu.Unlock()
	p.epoch = epoch
	p.forget()
	p.session.dropBefore(p.topic, epoch)
	return false
}
