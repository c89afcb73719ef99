package record

import "time"

// Record is one message to publish. Payload and Properties must not be changed before the outcome
// is known: Publish returned nil, or done was called.
type Record struct {
	// Key routes the record (records of one key keep their order) and is what
	// Key_Shared subscriptions and compaction look at. Empty means no key.
	Key string
	// OrderingKey takes the place of Key for Key_Shared subscriptions and for consumers that
	// keep [OrderKey]. It routes a record that has no Key. Empty means that Key serves for both.
	OrderingKey string
	// Payload is the body. Nil is a tombstone: a message with a null value.
	Payload []byte
	// Properties are the message's headers. Optional.
	Properties map[string]string
	// EventTime is when the event happened, kept with millisecond precision.
	// The zero time means unset.
	EventTime time.Time
	// DeliverAt asks the broker to hold the message back until then for Shared and Key_Shared
	// subscriptions. It needs a publisher without batches. The zero time means at once.
	DeliverAt time.Time
	// SequenceID identifies the record at a broker with deduplication: it drops one
	// whose id is not above the highest it has seen of the producer's name, and knows a
	// batch by its first record's id alone. Nil: the producer counts, see [ErrDeduplicated].
	SequenceID *int64
	// Partition is the target partition under [RouteExplicit]. Other routings ignore it.
	Partition int
	// SpreadHint divides records without a key: each number has its own runs over the partitions,
	// so that concurrent callers with different numbers do not wait for one another. Default: 0.
	SpreadHint int
}

// RecordOverhead is what one pending record costs beyond its own bytes, so that MaxPendingBytes
// bounds tiny records too.
const RecordOverhead = 64

// SizeOf is the number of bytes a pending record is charged for.
func SizeOf(r *Record) int64 {
	n := len(r.Payload) + len(r.Key) + len(r.OrderingKey) + RecordOverhead
	for k, v := range r.Properties {
		n += len(k) + len(v)
	}
	return int64(n)
}
