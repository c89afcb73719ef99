package consume

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/record"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/retry"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/schedule"
)

// Handler handles one message. Its result is the verdict:
//
//   - nil: done; the message is acknowledged.
//   - [Reject]: never; the message goes to the dead-letter topic.
//   - [RetryAfter] or any other error, or a panic: again later, see [Retry].
//
// ctx carries the values of Run's context but ends only StopTimeout after it, so
// that a handler in flight can finish. With [OnOwned] it also ends when the consumer
// loses the message's partition.
//
// Handlers run in several goroutines, up to Concurrency at once.
type Handler func(ctx context.Context, d *record.Delivery) error

// task is a delivery with the consumer's data about it. Handlers see the
// delivery only: they may keep it, and copy it at any time.
type task struct {
	schedule.Item // QueueKey is what order is kept by
	*record.Delivery

	session  *session
	entry    *entry
	at       record.Place   // where it was received: of a retry, the copy's place
	owned    *ownedInterval // nil when nobody asked for it
	copying  *retry.CopyJob // non-nil once the verdict is a copy to another topic
	reusable bool           // handled at the first attempt: nothing refers to the task once it has ended

	// In RunAsync: see async.go.
	pending  atomic.Uint32
	handedAt atomic.Int64 // when, Unix nanoseconds
	verdict  error        // set before pendingCompleted is
}

// taskOf is the delivery of a scheduler's item.
func taskOf(it *schedule.Item) *task {
	d, _ := it.Owner.(*task) // prepare sets it
	return d
}

// void reports whether the broker delivers the message again, or has it delivered to another
// consumer: nothing is to be started for it any more.
func (d *task) void() bool { return d.session.Over() || d.entry.lost() }

// copyStored reports whether d's verdict is a copy that is stored: d is only to be acknowledged.
func (d *task) copyStored() bool { return d.copying != nil && d.copying.Stored }

// deliveryOverhead is what one message costs in memory beyond its own bytes,
// roughly: the underlying client's structures and ours.
const deliveryOverhead = 512

// prepare sets the consumer's data of a new task.
func (d *task) prepare(s *session, e *entry, id pulsar.MessageID) {
	d.session, d.entry, d.at = s, e, record.PlaceOf(id)
	d.Owner, d.Group = d, &s.Group
	d.Size = int64(len(d.Payload) + len(d.Key) + deliveryOverhead)
	if d.QueueKey = d.OrderingKey; d.QueueKey == "" {
		d.QueueKey = d.Key
	}
}

// taskPool keeps tasks for use again. It is safe for concurrent use.
type taskPool struct {
	mu   sync.Mutex
	free []*task
}

// maxPooled bounds the tasks that wait for use: as many as may end while one receiver waits.
const maxPooled = 1024

// take moves some tasks to dst, which is empty, as many as it has room for at most.
func (p *taskPool) take(dst []*task) []*task {
	p.mu.Lock()
	defer p.mu.Unlock()
	rest := max(len(p.free)-cap(dst), 0)
	dst = append(dst, p.free[rest:]...)
	clear(p.free[rest:])
	p.free = p.free[:rest]
	return dst
}

// give takes the simple ones of tasks that have ended. They refer to nothing from then on.
func (p *taskPool) give(ended []*schedule.Item) {
	if len(ended) == 0 {
		return
	}
	for i, it := range ended {
		if d := taskOf(it); d.reusable {
			*d = task{}
			d.Owner = d
		} else {
			ended[i] = nil
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, it := range ended {
		if it != nil && len(p.free) < maxPooled {
			p.free = append(p.free, taskOf(it))
		}
	}
}

// spareTasks is a receiver's part of a pool. It belongs to the receiving goroutine.
type spareTasks struct {
	pool *taskPool
	own  []*task
}

func (s *spareTasks) next() *task {
	if len(s.own) == 0 {
		if s.own == nil {
			s.own = make([]*task, 0, schedule.ChunkSize)
		}
		if s.own = s.pool.take(s.own[:0]); len(s.own) == 0 {
			return new(task)
		}
	}
	last := len(s.own) - 1
	d := s.own[last]
	s.own[last], s.own = nil, s.own[:last]
	return d
}

// restore makes a delivery from a retry topic look like its original. One that another
// subscription's consumer made is to be acknowledged and no more: several subscriptions may share
// a retry topic.
func (d *task) restore(subscription string) {
	p, ok := record.ReadProvenance(d.Properties)
	if !ok {
		return
	}
	if p.Subscription != "" && p.Subscription != subscription {
		d.copying = &retry.CopyJob{Stored: true}
		return
	}
	p.Restore(d.Delivery)
	d.Attempt = p.Attempts + 1
	// Brokers deliver up to a tick (1 s) early unless configured to be strict, and at once
	// where delayed delivery is switched off: the rest is waited for here.
	if time.Until(p.Due) > 0 {
		d.Due = p.Due
	}
}
