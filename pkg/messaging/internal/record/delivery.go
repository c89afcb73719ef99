package record

import (
	"time"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/clientquirks"
)

// Delivery is one attempt at one message, or a message that a [Reader] or [Client.Last] returns.
// The handler may keep it; a kept Payload keeps its whole batch in memory. It must not be changed
// unless the verdict is nil: retries and dead letters are made of it.
//
// It lacks the message's sequence id, which pulsar-client-go v0.21.0 does not give to consumers.
type Delivery struct {
	// Topic is the topic, or partition, that the message was published to, and Partition its
	// index, 0 without partitions. On a retry all fields are those of the original message.
	Topic     string
	Partition int
	// ID is the message's place in its topic. It stays the same over all attempts.
	ID MessageID
	// Key is empty for a message without one.
	Key string
	// OrderingKey takes the place of Key where order is kept. Empty for a message without one.
	OrderingKey string
	// Payload is nil for a null value (a tombstone) only.
	Payload []byte
	// Properties may be nil.
	Properties map[string]string
	// EventTime is zero when the producer set none.
	EventTime time.Time
	// PublishTime is the time at which the producer sent the message, by its own clock.
	PublishTime time.Time
	// ReplicatedFrom is the cluster that the message was replicated from, empty when it was
	// published to this one.
	ProducerName   string
	ReplicatedFrom string
	// RedeliveryCount is how often the broker remembers to have delivered the message before:
	// always 0 on exclusive and failover subscriptions.
	RedeliveryCount int
	// Attempt counts from 1. On retry topics it survives restarts. A Reader's is always 1.
	Attempt int
	// FirstFailed is when the first attempt failed, zero on the first attempt.
	FirstFailed time.Time
}

// Slab allocates the deliveries of small messages several at a time. Those of one slab live as long
// as the last of them, as the payloads of one batch do.
type Slab struct {
	free      []Delivery
	topic     string // of the latest message
	partition int
	chunked   clientquirks.ChunkedIDs
}

const (
	slabDeliveries = 31 // of 256 bytes each: as many as the allocator's class of 8 KiB holds
	slabPayload    = 4 << 10
)

func (l *Slab) next(payload int) *Delivery {
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

// Delivery makes a delivery of a received message.
func (l *Slab) Delivery(raw pulsar.Message) *Delivery {
	id := raw.ID()
	payload := raw.Payload()
	d := l.next(len(payload))
	// Field by field: this is where the time goes, and d is zero.
	d.Topic = raw.Topic()
	if d.Topic != l.topic { // seldom: strings of one place in memory are equal at once
		l.topic, l.partition = d.Topic, PartitionIndex(d.Topic, int(id.PartitionIdx()))
	}
	d.Partition = l.partition
	d.ID = ReceivedID(id, l.partition, &l.chunked)
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

// unmarkEmpty makes d as it was published. A service that copies properties can put the mark on
// another payload, which stays.
func (d *Delivery) unmarkEmpty() {
	if d.Properties[PropertyEmpty] == "true" && d.ID.batchSize == 1 && clientquirks.CompressedNothing(d.Payload) {
		delete(d.Properties, PropertyEmpty)
		d.Payload = []byte{}
	}
}

// LeftByCompaction reports whether m is what compaction leaves of a removed message when it keeps
// others of its batch. The client does not show the broker's mark for these (compacted_out).
func LeftByCompaction(m pulsar.Message) bool {
	return m.ID().BatchSize() > 1 && m.Key() == "" && len(m.Payload()) == 0 && len(m.Properties()) == 0
}

// DeadLetter is a message of a dead-letter topic. Its Delivery is the original's: topic, id, key,
// properties and times are those that the message had before it failed, and Attempt is the number
// of attempts that were made. Only RedeliveryCount is the dead letter's own.
type DeadLetter struct {
	Delivery
	// Reason is why the last attempt failed, at most 1 KiB of it.
	Reason string
	// Subscription is the one whose consumer gave the message up.
	Subscription string
	// Truncated is the size of the original's payload in bytes when Payload is only the beginning
	// of it, because the whole was too large for the brokers; else 0.
	Truncated int
}

// DeadLetter reads a delivery of a dead-letter topic. ok is false when no consumer of this library
// made the message. d does not change.
func (d *Delivery) DeadLetter() (letter DeadLetter, ok bool) {
	p, ok := ReadProvenance(d.Properties)
	if !ok {
		return DeadLetter{}, false
	}
	letter = DeadLetter{Delivery: *d, Reason: p.Reason, Subscription: p.Subscription, Truncated: p.Truncated}
	p.Restore(&letter.Delivery)
	letter.Attempt = p.Attempts
	return letter, true
}
