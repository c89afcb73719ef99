package pulsar

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/aviaryhq/aviary/internal/connector/message"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// sending is one message on its way to the broker. They are used again, with their
// receipt: a message costs no closure.
type sending struct {
	record  messaging.Record
	sink    *Sink
	users   *users
	done    func(error)
	receipt func(messaging.MessageID, error)
}

// fill maps m.
func (p *sending) fill(m *message.Message) {
	key, payload, properties := m.Pulsar()
	partition := int(m.From.Partition)
	p.record = messaging.Record{
		Key: key, OrderingKey: m.OrderingKey, Payload: payload, Properties: properties, EventTime: eventTime(m),
		// One of the two counts: where the source's partition names the destination's, or lanes
		// do not share the runs of messages without a key.
		Partition: partition, SpreadHint: partition,
	}
}

// eventTime is what Pulsar's field for it can hold of m's.
func eventTime(m *message.Message) time.Time {
	if m.Time.UnixMilli() <= 0 {
		return time.Time{}
	}
	return m.Time
}

// finish hands the outcome on.
func (p *sending) finish(_ messaging.MessageID, err error) {
	s, u, done := p.sink, p.users, p.done
	p.record, p.sink, p.users, p.done = messaging.Record{}, nil, nil, nil
	s.sends.put(p)
	u.leave()
	done(outcome(err))
}

// pool keeps sendings for use again.
type pool struct{ p sync.Pool }

func (l *pool) get() *sending {
	if p, ok := l.p.Get().(*sending); ok {
		return p
	}
	p := new(sending)
	p.receipt = p.finish
	return p
}

func (l *pool) put(p *sending) { l.p.Put(p) }

// users counts who uses something, and knows how long nobody has. enter is called
// while it cannot be closed.
type users struct {
	count atomic.Int64
	total atomic.Int64

	mu    sync.Mutex
	seen  int64 // total at the last look
	since time.Time
}

func (u *users) enter() {
	u.count.Add(1)
	u.total.Add(1)
}

func (u *users) leave() { u.count.Add(-1) }

// used notes a use.
func (u *users) used(now time.Time) {
	u.mu.Lock()
	u.since = now
	u.mu.Unlock()
}

// free reports whether it has no users.
func (u *users) free() bool { return u.count.Load() == 0 }

// idle is how long it has been without users, by what looks at it have shown; 0 while it has some.
func (u *users) idle(now time.Time) time.Duration {
	u.mu.Lock()
	defer u.mu.Unlock()
	total := u.total.Load()
	if u.count.Load() > 0 || total != u.seen {
		u.seen, u.since = total, now
		return 0
	}
	return now.Sub(u.since)
}
