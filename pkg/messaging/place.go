package messaging

import "github.com/apache/pulsar-client-go/pulsar"

// position is where an entry stands in its partition. Where messages of a batch are acknowledged
// one by one, each counts as an entry.
type position struct {
	ledger, entry int64
	batch         int32
}

// positionOf is the position of a message.
func positionOf(id pulsar.MessageID) position {
	return position{id.LedgerID(), id.EntryID(), id.BatchIdx()}
}

func (p position) less(o position) bool {
	if p.ledger != o.ledger {
		return p.ledger < o.ledger
	}
	if p.entry != o.entry {
		return p.entry < o.entry
	}
	return p.batch < o.batch
}

// gapBefore reports whether the topic has entries between p and a later position. The last entries
// of a ledger are not known.
func (p position) gapBefore(at position) bool {
	if p.ledger == at.ledger {
		return at.entry > p.entry+1
	}
	return p.ledger < at.ledger && at.entry > 0
}
