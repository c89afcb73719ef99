package consume

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
// that one: what waits here is dropped, and what is completed here from then on is not
// acknowledged. When the partition comes back, the broker delivers from the first unacknowledged
// message on, and the other consumer may have handled some of what was handled here. So everything
// from there on is handled again, in its order. The same holds when the broker says that the
// partition is ours and it was before: we have connected again, and another consumer may have had
// the partition meanwhile.
type activity struct {
	losses atomic.Uint32 // counted

	// Guarded by activities.mu.
	active bool
	seen   uint32         // losses, as far as the receiver has got
	first  pulsar.Message // behind the event that ended the latest loss; nil until it arrives
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

// change notes an event, and returns the number of losses.
func (as *activities) change(topic string, active bool) (losses uint32) {
	as.mu.Lock()
	defer as.mu.Unlock()
	a := as.get(topic)
	if a.active || !active && a.losses.Load() == 0 {
		a.losses.Add(1)
	}
	a.active, a.first = active, nil
	as.noted.Store(nil)
	if a.awaits() {
		as.awaited.Store(true)
	}
	return a.losses.Load()
}

// awaits reports whether the first message behind a loss has not arrived. as.mu is held.
func (a *activity) awaits() bool { return a.active && a.first == nil && a.losses.Load() != a.seen }

// noteFirst notes the first message behind an event. It runs on the connection's reader goroutine,
// for every message while a partition's first has not arrived.
func (as *activities) noteFirst(m pulsar.Message) {
	topic := m.Topic()
	if noted := as.noted.Load(); noted != nil && *noted == topic {
		return
	}
	as.mu.Lock()
	defer as.mu.Unlock()
	if a := as.of[topic]; a != nil && a.awaits() {
		a.first = m
		awaited := false
		for _, a := range as.of {
			awaited = awaited || a.awaits()
		}
		as.awaited.Store(awaited)
	}
	as.noted.Store(&topic)
}

// BecameActive says that a Failover subscription delivers a partition to us from now on.
func (s *session) BecameActive(_ pulsar.Consumer, topic string, index int32) {
	losses := s.activities.change(topic, true)
	s.owned.gain(topic, int(index))
	if losses > 0 {
		go s.dropBefore(topic, losses) // takes a lock
	}
}

// BecameInactive says that it delivers the partition to another consumer from now on.
func (s *session) BecameInactive(_ pulsar.Consumer, topic string, _ int32) {
	losses := s.activities.change(topic, false)
	s.owned.lose(topic)
	go s.dropBefore(topic, losses) // takes a lock
}

// stale reports whether a message was received before its partition went to another consumer. It
// makes the partition start over at the first message behind that.
func (p *partition) stale(m pulsar.Message) bool {
	a := p.activity
	if a == nil || a.losses.Load() == p.losses {
		return false
	}
	losses, ok := p.session.activities.startOver(a, m)
	if !ok {
		return true
	}
	p.losses = losses
	p.forget()
	p.session.dropBefore(p.topic, losses) // saves failed attempts before their messages are taken again
	return false
}

// startOver records the latest loss as handled if m is the first message behind it, and reports
// whether it is.
func (as *activities) startOver(a *activity, m pulsar.Message) (losses uint32, ok bool) {
	as.mu.Lock()
	defer as.mu.Unlock()
	if !a.active || a.first != m {
		return 0, false
	}
	a.seen = a.losses.Load()
	return a.seen, true
}

// lost reports whether the partition went to another consumer after the entry was received.
func (e *entry) lost() bool {
	a := e.partition.activity
	return a != nil && a.losses.Load() != e.losses
}
