package adminapi

import (
	"bytes"
	"encoding/binary"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/auth"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/cluster"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/record"
	"github.com/aviaryhq/aviary/test/await"
)

// Calls that end close no connection of calls that continue.
func TestCallsSideBySide(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNoContent) // as the broker answers who makes a subscription
	}))
	t.Cleanup(s.Close)
	c, err := newClient(cluster.Config{AdminURL: s.URL, ConnectTimeout: await.Patience}, auth.NewFaults(zap.NewNop()))
	require.NoError(t, err)
	var calls sync.WaitGroup
	for range 8 {
		calls.Go(func() {
			for range 1000 {
				done := c.use()
				err := c.do(t.Context(), http.MethodPut, "/", nil, nil)
				done()
				if !assert.NoError(t, err) {
					return
				}
			}
		})
	}
	calls.Wait()
}

// single is a message of a batch.
func single(payload string, more ...byte) []byte {
	meta := protowire.AppendVarint(protowire.AppendTag(nil, 3, protowire.VarintType), uint64(len(payload)))
	meta = append(meta, more...)
	return append(append(binary.BigEndian.AppendUint32(nil, uint32(len(meta))), meta...), payload...)
}

func TestBatchWithoutWhatCompactionDropped(t *testing.T) {
	dropped := protowire.AppendVarint(protowire.AppendTag(nil, 4, protowire.VarintType), 1)
	data := append(append(single("one"), single("", dropped...)...), single("three")...)
	got, err := decodeBatch(PeekedMessage{ID: record.NewMessageID(record.EntryPlaceOf(7, 9), 2, 0, 1), Payload: data, Producer: "p"}, 3, 3)
	require.NoError(t, err)
	require.Equal(t, []PeekedMessage{
		{ID: record.NewMessageID(record.EntryPlaceOf(7, 9), 2, 0, 3), Payload: []byte("one"), Producer: "p"},
		{ID: record.NewMessageID(record.EntryPlaceOf(7, 9), 2, 2, 3), Payload: []byte("three"), Producer: "p"},
	}, got)
}

// An entry of empty messages is small, and they are not: only those that are wanted are decoded.
func TestBatchIsDecodedAsFarAsWanted(t *testing.T) {
	const messages = 100_000
	data := bytes.Repeat(single(""), messages)
	got, err := decodeBatch(PeekedMessage{ID: record.NewMessageID(record.EntryPlaceOf(7, 9), 2, 0, 1), Payload: data}, messages, 2)
	require.NoError(t, err)
	require.Equal(t, []PeekedMessage{
		{ID: record.NewMessageID(record.EntryPlaceOf(7, 9), 2, 0, messages), Payload: []byte{}},
		{ID: record.NewMessageID(record.EntryPlaceOf(7, 9), 2, 1, messages), Payload: []byte{}},
	}, got)
	require.LessOrEqual(t, testing.AllocsPerRun(1, func() {
		_, err = decodeBatch(PeekedMessage{ID: record.NewMessageID(record.EntryPlaceOf(7, 9), 2, 0, 1), Payload: data}, messages, 2)
	}), 10.0)
	require.NoError(t, err)
}

func FuzzDecodeBatch(f *testing.F) {
	const maxDecoded = 3
	f.Add(append(single("one"), single("two")...), 2)
	f.Add([]byte{0, 0, 0, 2, 24, 200}, 1)
	f.Add([]byte{255, 255, 255, 255}, 1)
	f.Fuzz(func(t *testing.T, data []byte, n int) {
		got, err := decodeBatch(PeekedMessage{ID: record.NewMessageID(record.EntryPlaceOf(7, 9), 2, 0, 1), Payload: data}, n, maxDecoded)
		if err != nil {
			require.Empty(t, got)
		}
		require.LessOrEqual(t, len(got), maxDecoded)
		size := 0
		for _, m := range got {
			size += len(m.Payload)
		}
		require.LessOrEqual(t, size, len(data))
	})
}

// A subscription that is to begin at a message in chunks begins at its first chunk.
func TestPositionOfAMessageInChunks(t *testing.T) {
	at, err := wireIDOf(record.StartingAt(record.NewMessageID(record.EntryPlaceOf(7, 9), 2, 0, 1), record.EntryPlaceOf(6, 300)))
	require.NoError(t, err)
	require.Equal(t, wireID{Ledger: 6, Entry: 300, Partition: 2, Batch: -1}, at)
}
