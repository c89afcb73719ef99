package record

import (
	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/clientquirks"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/protofield"
)

// EntryPlace is an entry of a partition. The zero EntryPlace is none.
type EntryPlace struct {
	Ledger int64
	Number int64 // the entry's plus one
}

// EntryPlaceOf is an entry of a ledger.
func EntryPlaceOf(ledger, entry int64) EntryPlace {
	return EntryPlace{Ledger: ledger, Number: entry + 1}
}

// IsZero reports whether p is none.
func (p EntryPlace) IsZero() bool { return p == EntryPlace{} }

// Entry is its number in the ledger.
func (p EntryPlace) Entry() int64 { return p.Number - 1 }

// StartOf is where reading begins to have all of the message.
func StartOf(m MessageID) EntryPlace {
	if m.first.IsZero() {
		return EntryPlaceOf(m.ledger, m.entry)
	}
	return m.first
}

// firstChunk finds the first chunk in a serialised id; zero for a message that is not in chunks.
func firstChunk(serialised []byte) EntryPlace {
	const firstChunkMessageID, ledger, entry = 7, 1, 2
	outer, _ := protofield.Fields(serialised)
	id, found := outer[firstChunkMessageID]
	if !found {
		return EntryPlace{}
	}
	f, _ := protofield.Fields(id.Text)
	return EntryPlaceOf(int64(f[ledger].Number), int64(f[entry].Number))
}

// ReceivedID is IDOf for ids of received messages, which says where the chunks of a message
// begin. Chunks are not batched.
func ReceivedID(raw pulsar.MessageID, partition int, chunked *clientquirks.ChunkedIDs) MessageID {
	id := IDOf(raw, partition)
	if id.batchSize == 1 && chunked.Has(raw) {
		id.first = firstChunk(raw.Serialize())
	}
	return id
}
