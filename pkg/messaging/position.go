package messaging

import (
	"time"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/record"
)

// Position is a place in a topic, from which a subscription or a [Reader] goes on. The zero
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
	// StartLatest begins with what is published after subscribing, or opening.
	StartLatest = record.StartLatest
)
