package messaging

import (
	"github.com/aviaryhq/aviary/pkg/messaging/internal/record"
)

// Record is one message to publish.
type Record = record.Record

// Delivery is one attempt at one message, or a message that a [Reader] or [Client.Last] returns.
type Delivery = record.Delivery

// MessageID names a stored message: partition, ledger, entry and index in its batch.
type MessageID = record.MessageID

// ParseMessageID reads an id that MessageID.Bytes or another client of Pulsar wrote.
func ParseMessageID(b []byte) (MessageID, error) { return record.ParseMessageID(b) }

// ValidTopic reports whether name can be a topic's: a bare name, tenant/namespace/name, or the
// same behind persistent:// or non-persistent://.
func ValidTopic(name string) bool { return record.ValidTopic(name) }

// DeadLetter is a message of a dead-letter topic.
type DeadLetter = record.DeadLetter

// Properties of retry copies and dead letters. The names of the original's own properties are
// kept, except those that begin with "aviary_".
const (
	// PropertyAttempts is how many attempts were made.
	PropertyAttempts = record.PropertyAttempts
	// PropertyDueAt is the time before which no further attempt is to be made.
	PropertyDueAt = record.PropertyDueAt
	// PropertyEmpty is "true" on every message that this library publishes outside batches, a copy or
	// not, and whose payload is empty and not null.
	PropertyEmpty = record.PropertyEmpty
	// PropertyEscape stands in front of the names of the original's own properties that begin with
	// "aviary_".
	PropertyEscape = record.PropertyEscape
	// PropertyFirstFailedAt is when the first attempt failed.
	PropertyFirstFailedAt = record.PropertyFirstFailedAt
	// PropertyOriginID is the original's message id, as hexadecimal MessageIdData.
	PropertyOriginID = record.PropertyOriginID
	// PropertyOriginProducer is the name of the original's producer.
	PropertyOriginProducer = record.PropertyOriginProducer
	// PropertyOriginPublishedAt is when the original was published.
	PropertyOriginPublishedAt = record.PropertyOriginPublishedAt
	// PropertyOriginReplicatedFrom is the cluster that the original came from.
	PropertyOriginReplicatedFrom = record.PropertyOriginReplicatedFrom
	// PropertyOriginTopic is the topic (partition) of the original message.
	PropertyOriginTopic = record.PropertyOriginTopic
	// PropertyReason is why the last attempt failed.
	PropertyReason = record.PropertyReason
	// PropertySubscription is the subscription whose consumer made the copy.
	PropertySubscription = record.PropertySubscription
	// PropertyTruncated is the size of the original's payload in bytes.
	PropertyTruncated = record.PropertyTruncated
)
