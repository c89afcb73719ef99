package record

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"

	"github.com/apache/pulsar-client-go/pulsar"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/clientquirks"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/protofield"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/topicname"
)

// MessageID names a stored message: partition, ledger, entry and index in its batch. It is a plain
// value; the zero MessageID names nothing. Ids of the same message are equal by ==, except the
// outcome of a record that was sent again ([MessageID.SentAgain]), an id that another client wrote
// without the size of the batch or the first chunk, and a position of [Reader.Positions].
// [MessageID.Compare] makes all of these equal.
type MessageID struct {
	ledger, entry int64
	// first is the first chunk of a message in chunks, whose entry is the last one.
	first EntryPlace
	// A message outside batches is number 0 of 1.
	batch, batchSize int32
	// partition is the index plus one; 0 for an id that names nothing.
	partition int32
	again     bool // sent again by another producer than its first
}

// IDOf converts raw. The client does not know the partition of a topic that is one partition.
func IDOf(raw pulsar.MessageID, partition int) MessageID {
	if raw == nil {
		return MessageID{}
	}
	id := MessageID{
		ledger: raw.LedgerID(), entry: raw.EntryID(),
		batch: raw.BatchIdx(), batchSize: raw.BatchSize(), partition: int32(partition) + 1,
	}
	if id.batch < 0 || id.batch == 0 && id.batchSize <= 1 {
		id.batch, id.batchSize = 0, 1
	}
	return id
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

// ReceivedID is IDOf for received messages: it has the first chunk, too. Chunks are not batched.
func ReceivedID(raw pulsar.MessageID, partition int, chunked *clientquirks.ChunkedIDs) MessageID {
	id := IDOf(raw, partition)
	if id.batchSize == 1 && chunked.Has(raw) {
		id.first = firstChunk(raw.Serialize())
	}
	return id
}

// ParseMessageID reads an id that [MessageID.Bytes] or another client of Pulsar wrote. No
// bytes are the zero MessageID.
func ParseMessageID(b []byte) (MessageID, error) {
	if len(b) == 0 {
		return MessageID{}, nil
	}
	raw, err := pulsar.DeserializeMessageID(b)
	if err != nil {
		return MessageID{}, fmt.Errorf("messaging: not a message id: %w", err)
	}
	id := IDOf(raw, max(int(raw.PartitionIdx()), 0))
	id.first = firstChunk(b)
	return id, nil
}

// IsZero reports whether the id names nothing.
func (m MessageID) IsZero() bool { return m.partition == 0 }

// SentAgain reports whether the record was handed to more than one producer, because the first was
// lost. The lost one may continue reading the payload after the outcome is known.
func (m MessageID) SentAgain() bool { return m.again }

// Deduplicated reports whether the broker, deduplicating, took the record for one that
// it has and dropped it. The id then does not say where that one is.
func (m MessageID) Deduplicated() bool { return !m.IsZero() && m.ledger < 0 }

// Partition is the index of the partition that holds the message, 0 on a topic
// without partitions, -1 when the id names nothing.
func (m MessageID) Partition() int { return int(m.partition) - 1 }

// Place returns the ledger, the entry in it, and the index in the entry's batch, 0 outside batches.
// Compared in this order they ascend within a partition. For an id that names nothing, and for a
// record that the broker took for a duplicate, ledger is less than 1.
func (m MessageID) Place() (ledger, entry int64, index int) {
	return m.ledger, m.entry, int(m.batch)
}

// InTopic is nil when the id says where in a topic a message is.
func InTopic(m MessageID) error {
	if m.IsZero() || m.Deduplicated() {
		return errors.New("the id names no message")
	}
	return nil
}

// Bytes is the id in Pulsar's own serialised form (MessageIdData), nil when it names nothing.
func (m MessageID) Bytes() []byte {
	if m.IsZero() {
		return nil
	}
	// Fields of MessageIdData: ledgerId = 1, entryId = 2, partition = 3, batch_index = 4,
	// batch_size = 6, all of them varints, and first_chunk_message_id = 7.
	field := func(b []byte, number byte, v int64) []byte {
		return binary.AppendUvarint(append(b, number<<3), uint64(v))
	}
	b := field(field(make([]byte, 0, 40), 1, m.ledger), 2, m.entry)
	b = field(b, 3, int64(m.Partition()))
	if m.batchSize != 1 {
		b = field(field(b, 4, int64(m.batch)), 6, int64(m.batchSize))
	}
	if !m.first.IsZero() {
		first := field(field(nil, 1, m.first.Ledger), 2, m.first.Entry())
		b = protowire.AppendBytes(append(b, 7<<3|byte(protowire.BytesType)), first)
	}
	return b
}

// String writes the id as ledger:entry:partition:batch-index, Pulsar's notation.
func (m MessageID) String() string {
	if m.IsZero() {
		return "none"
	}
	b := make([]byte, 0, 64) // not by fmt: a source calls it for each message
	for i, n := range [...]int64{m.ledger, m.entry, int64(m.Partition()), int64(m.batch)} {
		if i > 0 {
			b = append(b, ':')
		}
		b = strconv.AppendInt(b, n, 10)
	}
	return string(b)
}

// Compare orders two ids of the same partition: -1, 0 or +1, and ids of different partitions by
// partition. An id that names nothing comes first.
func (m MessageID) Compare(o MessageID) int {
	return cmp.Or(
		cmp.Compare(m.partition, o.partition),
		cmp.Compare(m.ledger, o.ledger),
		cmp.Compare(m.entry, o.entry),
		cmp.Compare(m.batch, o.batch),
	)
}

// SameEntry reports whether m and o are messages of one entry.
func SameEntry(m, o MessageID) bool {
	return m.partition == o.partition && m.ledger == o.ledger && m.entry == o.entry
}

// PartitionIndex is the index in topic's name (name-partition-3), else index: the client numbers a
// partition that is opened by its own name 0.
func PartitionIndex(topic string, index int) int {
	if _, own, ok := topicname.SplitPartition(topic); ok {
		return own
	}
	return max(index, 0)
}

// NewMessageID is the id of a message of an entry, the batch-th of batchSize.
func NewMessageID(at EntryPlace, partition int, batch, batchSize int32) MessageID {
	return MessageID{ledger: at.Ledger, entry: at.Entry(), batch: batch, batchSize: batchSize, partition: int32(partition) + 1}
}

// EntryOf is the entry that m is in.
func EntryOf(m MessageID) EntryPlace { return EntryPlaceOf(m.ledger, m.entry) }

// BatchOf is the message's index in its batch, and the batch's size: 0 of 1 outside batches.
func BatchOf(m MessageID) (index, size int32) { return m.batch, m.batchSize }

// StartingAt is m with another place where reading begins to have all of the message.
func StartingAt(m MessageID, first EntryPlace) MessageID {
	m.first = first
	return m
}

// MarkSentAgain makes [MessageID.SentAgain] true.
func MarkSentAgain(m MessageID) MessageID {
	m.again = true
	return m
}

// FirstOf is where reading begins, when that is before m's entry, and zero otherwise.
func FirstOf(m MessageID) EntryPlace { return m.first }

// StartOf is where reading begins to have all of the message.
func StartOf(m MessageID) EntryPlace {
	if m.first.IsZero() {
		return EntryPlaceOf(m.ledger, m.entry)
	}
	return m.first
}
