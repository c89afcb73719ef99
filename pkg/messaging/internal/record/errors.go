package record

import (
	"errors"
	"fmt"
)

var (
	// ErrClosed is returned by a client, publisher, reader or writer that was closed, and by what
	// uses a client that was closed.
	ErrClosed = errors.New("messaging: closed")
	// ErrQueueFull is returned under [FailFast] when a bound of the queue is hit.
	ErrQueueFull = errors.New("messaging: publish queue full")
	// ErrTooLarge is the outcome of a record that is larger than the broker takes. From
	// [Publisher.PublishAsync] it comes in a [TooLargeError].
	ErrTooLarge = errors.New("messaging: record larger than the broker accepts")
	// ErrTopicTerminated is the final outcome of records for a terminated topic.
	ErrTopicTerminated = errors.New("messaging: topic terminated")
	// ErrDeduplicated is the outcome of a record without a SequenceID that a broker with
	// deduplication took for a duplicate, at a publisher with a ProducerName. It is stored if the
	// client sent it twice after a reconnection, and not if another process used the name
	// meanwhile. Publish it again: then it is stored, once or twice. For a record with a
	// SequenceID see [MessageID.Deduplicated].
	ErrDeduplicated = errors.New("messaging: the broker took the record for a duplicate and may not have stored it")
	// ErrBadPartition is the outcome of a record whose explicit partition the
	// topic does not have.
	ErrBadPartition = errors.New("messaging: no such partition")
	// ErrDeliverAt is the outcome of a record with DeliverAt given to a publisher that batches.
	// Delayed messages overtake batches, with a lower sequence id, and a broker with
	// deduplication would drop the records of those.
	ErrDeliverAt = errors.New("messaging: DeliverAt needs a profile with batch_records: 1")
	// ErrProducerLost is the outcome of records that were not acknowledged when an owner (a
	// publisher without [SharedOwnership]) lost its producer, and of all that come later. Each
	// of them may be stored or not. Close the publisher and open another.
	ErrProducerLost = errors.New("messaging: producer lost")
	// ErrOwned says that a publisher with [ExclusiveOwnership] cannot open, or one with
	// [NamedOwnership] whose name is in use: another publisher has the topic.
	ErrOwned = errors.New("messaging: another publisher has the topic")
	// ErrInvalidTopic says that a name cannot be a topic's.
	ErrInvalidTopic = errors.New("messaging: invalid topic name")
	// ErrTopicNotFound says that a publisher cannot open: there is no such topic, or no such
	// namespace, and the broker does not create it. The admin API's is [ErrNotFound].
	ErrTopicNotFound = errors.New("messaging: topic not found")
	// ErrNamespaceNotFound says, with ErrTopicNotFound, that there is no such namespace either.
	// Only [Client.TryPublish] and [Client.TryConsume] tell.
	ErrNamespaceNotFound = errors.New("messaging: namespace not found")
	// ErrUnacknowledged is the outcome of a record that was accepted and not
	// acknowledged when the publisher closed. It may or may not be stored.
	ErrUnacknowledged = errors.New("messaging: not acknowledged before close")
)

// UnacknowledgedError is returned by [Publisher.Close] when its context ended
// before every accepted record was acknowledged.
type UnacknowledgedError struct {
	Count int // records whose outcome is unknown
}

func (e *UnacknowledgedError) Error() string {
	return fmt.Sprintf("messaging: closed with %d records not acknowledged", e.Count)
}

// Is makes errors.Is(err, ErrUnacknowledged) hold.
func (e *UnacknowledgedError) Is(target error) bool { return target == ErrUnacknowledged }

// TooLargeError is the outcome of a record that the broker refuses for its size. errors.Is finds
// [ErrTooLarge] in it.
type TooLargeError struct {
	Payload []byte // the slice of that record, so that a caller can find the record
	Err     error  // the client's reason
}

func (e *TooLargeError) Error() string { return ErrTooLarge.Error() + ": " + e.Err.Error() }

func (e *TooLargeError) Unwrap() []error { return []error{ErrTooLarge, e.Err} }

// ErrEncrypted ends a [Reader] at an encrypted message: the library has no keys. The error's text
// has the message's id. A consumer does not return it: it leaves the message in the subscription.
var ErrEncrypted = errors.New("messaging: the message is encrypted")
