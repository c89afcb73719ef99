package consume

import "github.com/apache/pulsar-client-go/pulsar"

// Which consumer of a Failover subscription has a partition. The broker's events arrive on the
// connection's reader goroutine, in order with the messages. Each event begins another epoch of the
// partition: odd while the partition is ours. A message arrives in an epoch, and waits in queues
// before the receiver takes it.
//
// When the partition goes to another consumer, the broker delivers everything unacknowledged to
// that one: messages of earlier epochs are dropped here, and completed ones are not
// acknowledged. When the partition comes back, the broker delivers from the first unacknowledged
// message on, and the other consumer may have handled some of the same messages. So everything
// from there on is handled again, in its order. The same holds when the broker says that the
// partition is ours and it was before: we have connected again, and another consumer may have had
// the partition meanwhile.

// firstEpoch is that of a partition of which no event has come: it is ours.
const firstEpoch = 1

// currentEpoch may be called from any goroutine.
func (a *arrivals) currentEpoch() uint32 { return max(a.epoch.Load(), firstEpoch) }

// changeEpoch notes an event. It runs on the connection's reader goroutine.
func (a *arrivals) changeEpoch(active bool) (epoch uint32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	epoch = a.epoch.Load()
	epoch += epoch % 2 // the next even number
	if active {
		epoch++
	} else {
		epoch = max(epoch, firstEpoch+1)
	}
	a.epoch.Store(epoch)
	return epoch
}

// BecameActive says that a Failover subscription delivers a partition to us from now on.
func (s *session) BecameActive(_ pulsar.Consumer, topic string, index int32) {
	epoch := s.arrivals.find(topic).changeEpoch(true)
	s.owned.gain(topic, int(index))
	if epoch > firstEpoch {
		go s.dropBefore(topic, epoch) // takes a lock
	}
}

// BecameInactive says that it delivers the partition to another consumer from now on.
func (s *session) BecameInactive(_ pulsar.Consumer, topic string, _ int32) {
	epoch := s.arrivals.find(topic).changeEpoch(false)
	s.owned.lose(topic)
	go s.dropBefore(topic, epoch) // takes a lock
}

// stale reports whether the message that the receiver is at arrived in an earlier epoch, or while
// another consumer had the partition. The first message of a new epoch makes the partition start
// over.
func (p *partition) stale() bool {
	epoch := p.arrivals.currentEpoch()
	if epoch == p.epoch {
		return false
	}
	if epoch%2 == 0 || p.arrivedIn != epoch {
		return true
	}
	p.epoch = epoch
	p.startOver()
	p.session.dropBefore(p.topic, epoch) // saves failed attempts before their messages are taken again
	return false
}

// lost reports whether the partition went to another consumer after the entry was received.
func (e *entry) lost() bool { return e.partition.arrivals.currentEpoch() != e.epoch }
