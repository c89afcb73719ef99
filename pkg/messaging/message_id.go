package messaging

import (
	"strconv"

	"github.com/apache/pulsar-client-go/pulsar"
)

// MessageID names a stored message: ledger, entry, batch index and partition.
// The zero MessageID names nothing.
type MessageID struct {
	id pulsar.MessageID
	// lane is the partition's index plus one where id does not know it: to a
	// partition's own producer its topic has no partitions. Else 0.
	lane int
	// again: the record was sent again by another producer than its first.
	again bool
}

// IsZero reports whether the id names nothing.
func (m MessageID) IsZero() bool { return m.id == nil }

// SentAgain reports whether the record was handed to more than one producer, because
// the first was lost. Until then nothing but that producer has read its payload, and
// it no longer does when the outcome is known; the lost one may.
func (m MessageID) SentAgain() bool { return m.again }

// Deduplicated reports whether the broker, deduplicating, took the record for one that
// it has and dropped it. The id then does not say where that one is.
func (m MessageID) Deduplicated() bool { return m.id != nil && m.id.LedgerID() < 0 }

// Partition is the index of the partition that holds the message, 0 on a topic
// without partitions, -1 when the id names nothing.
func (m MessageID) Partition() int {
	switch {
	case m.id == nil:
		return -1
	case m.lane > 0:
		return m.lane - 1
	default:
		return max(int(m.id.PartitionIdx()), 0)
	}
}

// Bytes is the id in Pulsar's own serialised form (MessageIdData).
func (m MessageID) Bytes() []byte {
	switch {
	case m.id == nil:
		return nil
	case m.lane > 0:
		return pulsar.NewMessageID(m.id.LedgerID(), m.id.EntryID(), m.id.BatchIdx(), int32(m.lane-1)).Serialize()
	default:
		return m.id.Serialize()
	}
}

// String writes the id as ledger:entry:partition:batch-index, Pulsar's notation.
func (m MessageID) String() string {
	if m.id == nil {
		return "none"
	}
	b := strconv.AppendInt(nil, m.id.LedgerID(), 10)
	b = append(b, ':')
	b = strconv.AppendInt(b, m.id.EntryID(), 10)
	b = append(b, ':')
	b = strconv.AppendInt(b, int64(m.Partition()), 10)
	b = append(b, ':')
	return string(strconv.AppendInt(b, int64(m.id.BatchIdx()), 10))
}

// Compare orders two ids of the same partition: -1, 0 or +1. Ids of different
// partitions have no order; Compare then orders them by partition.
func (m MessageID) Compare(o MessageID) int {
	switch {
	case m.id == nil && o.id == nil:
		return 0
	case m.id == nil:
		return -1
	case o.id == nil:
		return 1
	}
	for _, d := range [...]int64{
		int64(m.Partition()) - int64(o.Partition()),
		m.id.LedgerID() - o.id.LedgerID(),
		m.id.EntryID() - o.id.EntryID(),
		int64(m.id.BatchIdx()) - int64(o.id.BatchIdx()),
	} {
		if d < 0 {
			return -1
		}
		if d > 0 {
			return 1
		}
	}
	return 0
}
