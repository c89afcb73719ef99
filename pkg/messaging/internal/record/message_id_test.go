package record

import (
	"testing"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/stretchr/testify/require"
)

func TestMessageIDFromItsBytes(t *testing.T) {
	for name, id := range map[string]MessageID{
		"nothing":         {},
		"single message":  IDOf(pulsar.NewMessageID(7, 9, -1, 2), 2),
		"in a batch":      {ledger: 7, entry: 9, batch: 3, batchSize: 10, partition: 1},
		"first of many":   {ledger: 7, entry: 9, batchSize: 10, partition: 1},
		"before an entry": {ledger: 7, entry: -1, batchSize: 1, partition: 1},
		"in chunks":       {ledger: 7, entry: 9, batchSize: 1, partition: 1, first: EntryPlaceOf(6, 0)},
		"deduplicated":    {ledger: -1, entry: -1, batchSize: 1, partition: 4},
	} {
		t.Run(name, func(t *testing.T) {
			again, err := ParseMessageID(id.Bytes())
			require.NoError(t, err)
			require.Equal(t, id, again)
			require.Zero(t, again.Compare(id))
			require.Equal(t, id.String(), again.String())
			require.Len(t, map[MessageID]bool{id: true, again: true}, 1)
		})
	}
	for _, bad := range []string{"x", "\x08\x01", "\xff\xff\xff"} {
		_, err := ParseMessageID([]byte(bad))
		require.ErrorContains(t, err, "messaging: not a message id", "%q", bad)
	}
}

// The underlying client understands the bytes, and we understand its.
func TestMessageIDIsPulsars(t *testing.T) {
	id := MessageID{ledger: 7, entry: 9, batch: 3, batchSize: 10, partition: 3}
	raw, err := pulsar.DeserializeMessageID(id.Bytes())
	require.NoError(t, err)
	require.Equal(t, []int64{7, 9, 3, 10, 2}, []int64{
		raw.LedgerID(), raw.EntryID(), int64(raw.BatchIdx()), int64(raw.BatchSize()), int64(raw.PartitionIdx()),
	})
	again, err := ParseMessageID(raw.Serialize())
	require.NoError(t, err)
	require.Equal(t, id, again)
	require.Equal(t, "7:9:2:3", id.String())

	alone, err := ParseMessageID(pulsar.NewMessageID(7, 9, -1, -1).Serialize())
	require.NoError(t, err)
	require.Equal(t, IDOf(pulsar.NewMessageID(7, 9, 0, 0), 0), alone, "a topic without partitions")
}

// Bytes that are no message id do not become a first chunk.
func TestFirstChunkOfDamagedBytes(t *testing.T) {
	whole := MessageID{ledger: 7, entry: 9, batchSize: 1, partition: 1, first: EntryPlaceOf(6, 300)}.Bytes()
	require.Equal(t, EntryPlaceOf(6, 300), firstChunk(whole))
	for n := range whole {
		require.Zero(t, firstChunk(whole[:n]), n)
	}
}

func TestPartitionIndex(t *testing.T) {
	for topic, want := range map[string]int{
		"persistent://public/default/orders":                           5,
		"persistent://public/default/orders-partition-12":              12,
		"persistent://public/default/orders-partition-x":               5,
		"persistent://public/default/orders-partition-":                5,
		"persistent://public/default/orders-partition-9999999999999":   5,
		"persistent://public/default/orders-partition-1-partition-007": 7,
	} {
		require.Equal(t, want, PartitionIndex(topic, 5), topic)
	}
	require.Zero(t, PartitionIndex("orders", -1))
}
