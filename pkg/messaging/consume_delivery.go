package messaging

import (
	"context"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/schedule"
)

// Handler handles one message. What it returns is the verdict:
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
type Handler func(ctx context.Context, d *Delivery) error

// Delivery is one attempt at one message, or a message that a [Reader] or
// [Client.Last] returns. It belongs to the handler and may be
// kept after the handler returned; note that the payloads of a batch share one
// buffer, so a kept Payload keeps its batch in memory. It must not be changed
// unless the verdict is nil: retries and dead letters are made of it.
//
// A message's sequence id is not here: pulsar-client-go v0.21.0 does not give it to
// consumers. A publisher whose readers need it stores it as a property.
type Delivery struct {
	// Topic is the topic (of a partitioned one: the partition) that the message was
	// published to, Partition its partition's index, 0 without partitions. On a
	// retry they are those of the original message, as are all other fields.
	Topic     string
	Partition int
	// ID is the message's place in its topic. It stays the same over all attempts.
	ID MessageID
	// Key is empty for a message without one.
	Key string
	// OrderingKey takes the place of Key where order is kept. Empty for a message without one.
	OrderingKey string
	// Payload is nil for a null value (a tombstone), and empty but not nil for an
	// empty one.
	Payload []byte
	// Properties may be nil.
	Properties map[string]string
	// EventTime is zero when the producer set none.
	EventTime time.Time
	// PublishTime is the time at which the producer sent the message, by its own clock.
	PublishTime time.Time
	// ProducerName is the producer's, ReplicatedFrom the cluster that the message
	// was replicated from, empty when it was published to this one.
	ProducerName   string
	ReplicatedFrom string
	// RedeliveryCount is how often the broker delivered the message before, as far
	// as it remembers: always 0 on exclusive and failover subscriptions.
	RedeliveryCount int
	// Attempt counts from 1. On retry topics it survives restarts. A Reader's is always 1.
	Attempt int
	// FirstFailed is when the first attempt failed, zero on the first attempt.
	FirstFailed time.Time
}

// task is a delivery with what the consumer has to know of it. Handlers see the
// delivery only: they may keep it, and copy it at any time.
type task struct {
	schedule.Item // QueueKey is what order is kept by
	*Delivery

	session *session
	entry   *entry
	at      position       // where it was received: of a retry, the copy's place
	owned   *ownedInterval // nil when nobody asked for it
	copying *copyJob       // non-nil once the verdict is a copy to another topic
	simple  bool           // handled at the first attempt: nobody knows of the task once it has ended

	// In RunAsync: see consume_async.go.
	pending atomic.Uint32
	handed  atomic.Int64 // when, Unix nanoseconds
	verdict error        // set before pendingCompleted is
}

// taskOf is the delivery of a scheduler's item.
func taskOf(it *schedule.Item) *task {
	d, _ := it.Owner.(*task) // prepare sets it
	return d
}

// void reports whether the broker delivers the message again, or has it delivered to another
// consumer: nothing is to be started for it any more.
func (d *task) void() bool { return d.session.over() || d.entry.lost() }

// copyStored reports whether d's verdict is a copy that is stored: d is only to be acknowledged.
func (d *task) copyStored() bool { return d.copying != nil && d.copying.stored }

// deliveryOverhead is what one message costs in memory beyond its own bytes,
// roughly: the underlying client's structures and ours.
const deliveryOverhead = 512

// slab allocates the deliveries of small messages several at a time. Those of one slab live as long
// as the last of them, as the payloads of one batch do.
type slab struct {
	free      []Delivery
	topic     string // of the latest message
	partition int
	plain     reflect.Type // see receivedID
}

const (
	slabDeliveries = 31 // of 256 bytes each: as many as the allocator's class of 8 KiB holds
	slabPayload    = 4 << 10
)

func (l *slab) next(payload int) *Delivery {
	if payload > slabPayload {
		return new(Delivery)
	}
	if len(l.free) == 0 {
		l.free = make([]Delivery, slabDeliveries)
	}
	d := &l.free[0]
	l.free = l.free[1:]
	return d
}

// delivery makes a delivery of a received message.
func (l *slab) delivery(raw pulsar.Message) *Delivery {
	id := raw.ID()
	payload := raw.Payload()
	d := l.next(len(payload))
	// Field by field: this is where the time goes, and d is zero.
	d.Topic = raw.Topic()
	if d.Topic != l.topic { // seldom: strings of one place in memory are equal at once
		l.topic, l.partition = d.Topic, partitionIndex(d.Topic, int(id.PartitionIdx()))
	}
	d.Partition = l.partition
	d.ID = receivedID(id, l.partition, &l.plain)
	d.Key = raw.Key()
	d.OrderingKey = raw.OrderingKey()
	d.Payload = payload
	d.Properties = raw.Properties()
	d.PublishTime = raw.PublishTime()
	d.ProducerName = raw.ProducerName()
	d.ReplicatedFrom = raw.GetReplicatedFrom()
	d.RedeliveryCount = int(raw.RedeliveryCount())
	d.Attempt = 1
	if t := raw.EventTime(); t.UnixMilli() > 0 { // the client makes unset the epoch
		d.EventTime = t
	}
	switch {
	case raw.IsNullValue():
		d.Payload = nil
	case d.Payload == nil:
		d.Payload = []byte{}
	default:
		d.unmarkEmpty()
	}
	return d
}

// prepare fills in what a new task has to know of its delivery.
func (d *task) prepare(s *session, e *entry, id pulsar.MessageID) {
	d.session, d.entry, d.at = s, e, positionOf(id)
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
		if d := taskOf(it); d.simple {
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
