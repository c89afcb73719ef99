package messaging

import (
	"reflect"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/protofield"
)

// entryPlace is an entry of a partition. The zero entryPlace is none.
type entryPlace struct {
	ledger int64
	number int64 // the entry's plus one
}

func entryPlaceOf(ledger, entry int64) entryPlace {
	return entryPlace{ledger: ledger, number: entry + 1}
}

func (p entryPlace) isZero() bool { return p == entryPlace{} }
func (p entryPlace) entry() int64 { return p.number - 1 }

// startOf is where reading begins to have all of the message.
func startOf(m MessageID) entryPlace {
	if m.first.isZero() {
		return entryPlaceOf(m.ledger, m.entry)
	}
	return m.first
}

// firstChunk finds the first chunk of a message in chunks in the serialised form of its id, which
// is the last chunk's otherwise. It is zero for all others. What is not well formed ends the
// search.
func firstChunk(serialised []byte) entryPlace {
	const firstChunkMessageID, ledger, entry = 7, 1, 2
	outer, _ := protofield.Fields(serialised)
	id, found := outer[firstChunkMessageID]
	if !found {
		return entryPlace{}
	}
	f, _ := protofield.Fields(id.Text)
	return entryPlaceOf(int64(f[ledger].Number), int64(f[entry].Number))
}

// receivedID is messageID for ids of received messages, which says where the chunks of a message
// begin. plain is the type of ids of messages that are whole entries, as far as it is known. Chunks
// are not batched.
func receivedID(raw pulsar.MessageID, partition int, plain *reflect.Type) MessageID {
	id := messageID(raw, partition)
	if kind := reflect.TypeOf(raw); id.batchSize == 1 && kind != *plain {
		if id.first = firstChunk(raw.Serialize()); id.first.isZero() {
			*plain = kind
		}
	}
	return id
}
