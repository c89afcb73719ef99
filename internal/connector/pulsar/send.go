package pulsar

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/aviaryhq/aviary/internal/connector/message"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// pendingMessage is one message that was published and has no receipt yet. The sink reuses them with
// their onReceipt, so that a message allocates no closure.
type pendingMessage struct {
	record    messaging.Record
	sink      *Sink
	users     *usage
	done      func(error)
	onReceipt func(messaging.MessageID, error)
}

// setRecord maps m to the record.
func (p *pendingMessage) setRecord(m *message.Message) {
	key, payload, properties := m.Pulsar()
	partition := int(m.From.Partition)
	p.record = messaging.Record{
		Key: key, OrderingKey: m.OrderingKey, Payload: payload, Properties: properties, EventTime: eventTime(m),
		// Partition counts where the destination's partition is the source's. Else SpreadHint does:
		// messages without a key from different pipelines go to different partitions.
		Partition: partition, SpreadHint: partition,
	}
}

// eventTime is m's time, or the zero time if Pulsar's event time cannot hold it.
func eventTime(m *message.Message) time.Time {
	if m.Time.UnixMilli() <= 0 {
		return time.Time{}
	}
	return m.Time
}

// finish returns p to the pool and calls done with the outcome.
func (p *pendingMessage) finish(_ messaging.MessageID, err error) {
	s, u, done := p.sink, p.users, p.done
	p.record, p.sink, p.users, p.done = messaging.Record{}, nil, nil, nil
	s.pendingMessages.put(p)
	u.release()
	done(pipelineOutcome(err))
}

// pendingPool keeps pendingMessages for reuse.
type pendingPool struct{ p sync.Pool }

func (l *pendingPool) get() *pendingMessage {
	if p, ok := l.p.Get().(*pendingMessage); ok {
		return p
	}
	p := new(pendingMessage)
	p.onReceipt = p.finish
	return p
}

func (l *pendingPool) put(p *pendingMessage) { l.p.Put(p) }

// usage counts the users of a topic or writer, and measures how long it has had none. acquire is
// called while a lock keeps the topic or writer from being closed.
type usage struct {
	count atomic.Int64
	total atomic.Int64

	mu        sync.Mutex
	lastTotal int64 // total at the last call of idle
	idleSince time.Time
}

func (u *usage) acquire() {
	u.count.Add(1)
	u.total.Add(1)
}

func (u *usage) release() { u.count.Add(-1) }

// markUsed restarts the idle time.
func (u *usage) markUsed(now time.Time) {
	u.mu.Lock()
	u.idleSince = now
	u.mu.Unlock()
}

// free reports whether there are no users.
func (u *usage) free() bool { return u.count.Load() == 0 }

// idle is how long there have been no users, as seen by the calls of idle; 0 while there are some.
func (u *usage) idle(now time.Time) time.Duration {
	u.mu.Lock()
	defer u.mu.Unlock()
	total := u.total.Load()
	if u.count.Load() > 0 || total != u.lastTotal {
		u.lastTotal, u.idleSince = total, now
		return 0
	}
	return now.Sub(u.idleSince)
}
