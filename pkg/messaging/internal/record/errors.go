package record

import (
	"errors"
	"fmt"
)

// Package messaging, which exports the errors, documents them.
var (
	ErrClosed            = errors.New("messaging: closed")
	ErrQueueFull         = errors.New("messaging: publish queue full")
	ErrTooLarge          = errors.New("messaging: record larger than the broker accepts")
	ErrTopicTerminated   = errors.New("messaging: topic terminated")
	ErrDeduplicated      = errors.New("messaging: the broker took the record for a duplicate and may not have stored it")
	ErrBadPartition      = errors.New("messaging: no such partition")
	ErrDeliverAt         = errors.New("messaging: DeliverAt needs a profile with batch_records: 1")
	ErrProducerLost      = errors.New("messaging: producer lost")
	ErrOwned             = errors.New("messaging: another publisher has the topic")
	ErrInvalidTopic      = errors.New("messaging: invalid topic name")
	ErrTopicNotFound     = errors.New("messaging: topic not found")
	ErrNamespaceNotFound = errors.New("messaging: namespace not found")
	ErrUnacknowledged    = errors.New("messaging: not acknowledged before close")
	ErrEncrypted         = errors.New("messaging: the message is encrypted")
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
