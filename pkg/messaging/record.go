package messaging

import (
	"time"

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

// Properties that copies on retry and dead-letter topics carry besides the original's own. Times
// are RFC 3339 in UTC, with nanoseconds.
//
// The original's own properties are kept under their names, except those that begin with
// "aviary_": these are kept under their name behind PropertyEscape, so that they can always be
// told from the copy's. [Delivery.DeadLetter] gives the original's back.
const (
	PropertyReason               = record.PropertyReason               // why the last attempt failed
	PropertyAttempts             = record.PropertyAttempts             // how many attempts were made
	PropertyFirstFailedAt        = record.PropertyFirstFailedAt        // when the first attempt failed
	PropertyOriginTopic          = record.PropertyOriginTopic          // the original's topic (partition)
	PropertyOriginID             = record.PropertyOriginID             // its message id, as hexadecimal MessageIdData
	PropertyOriginPublishedAt    = record.PropertyOriginPublishedAt    // when it was published
	PropertyOriginProducer       = record.PropertyOriginProducer       // the name of its producer
	PropertyOriginReplicatedFrom = record.PropertyOriginReplicatedFrom // the cluster that it came from
	PropertyDueAt                = record.PropertyDueAt                // no further attempt is made before
	PropertySubscription         = record.PropertySubscription         // whose consumer made the copy
	// PropertyTruncated is the size of the original's payload in bytes. Only a dead letter has
	// it, whose whole payload was too large for the brokers.
	PropertyTruncated = record.PropertyTruncated
	// PropertyEmpty is "true" on every message that this library publishes outside batches, a copy
	// or not, and whose payload is empty and not null. Deliveries do not show it. Other consumers
	// on pulsar-client-go v0.21.0 see some bytes in place of a compressed empty payload: it does
	// not decompress what was empty (consumer_partition.go, MessageReceived).
	PropertyEmpty = record.PropertyEmpty
	// PropertyEscape stands in front of the names of the original's own properties that begin
	// with "aviary_".
	PropertyEscape = record.PropertyEscape
)

// Position is a place in a topic, at which a subscription or a [Reader] continues. The zero
// Position is [Earliest]. It is a plain value.
type Position = record.Position

// Earliest is the first message that the topic still has.
func Earliest() Position { return record.Earliest() }

// Latest is behind the last message that the topic has when it is asked.
func Latest() Position { return record.Latest() }

// AtMessage is the message that id names: it is the next one. Where it no longer is, the
// next one is the first behind it. The place is an entry's: from the middle of a batch, the
// whole batch comes. That of a message in chunks is its first chunk: a subscription gets what
// stands between its chunks, too.
func AtMessage(id MessageID) Position { return record.AtMessage(id) }

// AtTime is the first message that was published at t or later, by the clock of its
// publisher, to the millisecond. A [Reader] begins behind a partition's last message when that is
// older, whatever stands before it.
func AtTime(t time.Time) Position { return record.AtTime(t) }

// StartAt is where a subscription that does not exist yet begins. To begin at a
// message or a time, set [ConsumerConfig].From or [ReaderConfig].From.
type StartAt = record.StartAt

const (
	// StartEarliest begins with the oldest message that the topic still has.
	StartEarliest = record.StartEarliest
	// StartLatest begins with the messages that are published after subscribing, or opening.
	StartLatest = record.StartLatest
)
