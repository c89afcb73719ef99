package record

import (
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

// Position is a place in a topic, from which a subscription or a [Reader] continues. The zero
// Position is [Earliest]. It is a plain value.
type Position struct {
	kind PositionKind
	id   MessageID
	time time.Time
}

// PositionKind says what a Position is given by.
type PositionKind int

// The kinds of positions.
const (
	EarliestKind PositionKind = iota
	LatestKind
	MessageKind
	TimeKind
)

// KindOf returns what p is given by, and its id or time where that is the kind.
func KindOf(p Position) (kind PositionKind, id MessageID, at time.Time) { return p.kind, p.id, p.time }

// Earliest is the first message that the topic still has.
func Earliest() Position { return Position{} }

// Latest is behind the last message that the topic has when it is asked.
func Latest() Position { return Position{kind: LatestKind} }

// AtMessage is the message that id names, or the first behind it.
func AtMessage(id MessageID) Position { return Position{kind: MessageKind, id: id} }

// AtTime is the first message that was published at t or later.
func AtTime(t time.Time) Position { return Position{kind: TimeKind, time: t} }

// StartAt is where a subscription that does not exist yet begins.
type StartAt string

// The places to begin at.
const (
	StartEarliest StartAt = "earliest"
	StartLatest   StartAt = "latest"
)

// InitialPosition is a as the underlying client has it.
func InitialPosition(a StartAt) pulsar.SubscriptionInitialPosition {
	if a == StartLatest {
		return pulsar.SubscriptionPositionLatest
	}
	return pulsar.SubscriptionPositionEarliest
}
