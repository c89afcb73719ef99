package messaging

import (
	"time"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/admin"
)

// Position is a place in a topic, from which a subscription or a [Reader] goes on. The zero
// Position is [Earliest]. It is a plain value.
type Position struct {
	kind positionKind
	id   MessageID
	time time.Time
}

type positionKind int

const (
	atEarliest positionKind = iota
	atLatest
	atMessage
	atTime
)

// Earliest is the first message that the topic still has.
func Earliest() Position { return Position{} }

// Latest is behind the last message that the topic has when it is asked.
func Latest() Position { return Position{kind: atLatest} }

// AtMessage is the message that id names: it is the next one. Where it no longer is, the
// next one is the first behind it. The place is an entry's: from the middle of a batch, the
// whole batch comes. That of a message in chunks is its first chunk: a subscription gets what
// stands between its chunks, too.
func AtMessage(id MessageID) Position { return Position{kind: atMessage, id: id} }

// AtTime is the first message that was published at t or later, by the clock of its
// publisher, to the millisecond. A [Reader] begins behind a partition's last message when that is
// older, whatever stands before it.
func AtTime(t time.Time) Position { return Position{kind: atTime, time: t} }

// adminID is an id as the admin API takes it.
func adminID(id MessageID) (admin.MessageID, error) {
	if err := id.inTopic(); err != nil {
		return admin.MessageID{}, err
	}
	from := id.start()
	return admin.MessageID{Ledger: from.ledger, Entry: from.entry(), Partition: int32(id.Partition()), Batch: -1}, nil
}

// peekedID is the id of a message that the admin API gave.
func peekedID(m admin.Message) MessageID {
	return MessageID{ledger: m.ID.Ledger, entry: m.ID.Entry, batch: m.ID.Batch, batchSize: m.BatchSize, partition: m.ID.Partition + 1}
}
