package engine

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging"
)

func TestWindow(t *testing.T) {
	room := &windowRoom{most: 100}
	w := newWindow(time.Minute, room)
	start := time.UnixMilli(1_000_000)
	seen := func(id string, position int64, after time.Duration) bool {
		again, forgotten := w.seen(identityOf("s", id), position, start.Add(after))
		assert.Zero(t, forgotten)
		return again
	}
	assert.False(t, seen("a", 1, 0))
	assert.True(t, seen("a", 2, 30*time.Second))
	assert.False(t, seen("b", 3, 30*time.Second))
	assert.False(t, seen("a", 1, 0), "it is delivered again")
	assert.True(t, seen("a", 2, 30*time.Second), "so is this one")
	assert.True(t, seen("a", 4, 80*time.Second), "the one before stands no longer before it")
	assert.False(t, seen("b", 5, 90*time.Second), "it does here")
	assert.True(t, seen("b", 6, 89*time.Second), "clocks differ")
	assert.False(t, seen("a", 7, time.Hour))
	assert.EqualValues(t, 1, room.used.Load(), "what is old is forgotten")
	w.close()
	assert.Zero(t, room.used.Load())
	assert.NotEqual(t, identityOf("a", "bc"), identityOf("ab", "c"))
}

func TestTheRoomOfWindowsIsBounded(t *testing.T) {
	room := &windowRoom{most: 1000}
	a, b := newWindow(time.Hour, room), newWindow(time.Hour, room)
	now := time.Now()
	forgotten := 0
	for i := range int64(5000) {
		w := a
		if i%2 == 1 {
			w = b
		}
		_, n := w.seen(identityOf("s", fmt.Sprint(i)), i, now)
		forgotten += n
	}
	assert.Equal(t, 4000, forgotten)
	assert.EqualValues(t, 1000, room.used.Load())
	assert.Len(t, a.by, 500)
	assert.LessOrEqual(t, cap(a.order), 4096)
	again, _ := a.seen(identityOf("s", "4998"), 9999, now)
	assert.True(t, again, "the newest are remembered")
	again, _ = a.seen(identityOf("s", "0"), 10000, now)
	assert.False(t, again)
}

func TestPositionsAscend(t *testing.T) {
	id := func(ledger, entry uint64, index byte) messaging.MessageID {
		b := []byte{1 << 3}
		for ; ledger > 127; ledger >>= 7 {
			b = append(b, byte(ledger)|128)
		}
		b = append(b, byte(ledger), 2<<3)
		for ; entry > 127; entry >>= 7 {
			b = append(b, byte(entry)|128)
		}
		b = append(b, byte(entry), 3<<3, 0, 4<<3, index, 6<<3, 100)
		m, err := messaging.ParseMessageID(b)
		require.NoError(t, err)
		return m
	}
	last := int64(-1)
	for _, m := range []messaging.MessageID{id(0, 0, 0), id(0, 0, 1), id(0, 1, 0), id(0, 1<<20-1, 99), id(1, 0, 0), id(1<<30-1, 1<<20-1, 99)} {
		position, err := positionOf(m)
		require.NoError(t, err)
		assert.Greater(t, position, last)
		last = position
	}
	assert.Less(t, last, int64(1)<<61)
	for _, m := range []messaging.MessageID{id(1<<30, 0, 0), id(1, 1<<20, 0), {}} {
		_, err := positionOf(m)
		assert.ErrorContains(t, err, "managedLedgerMaxEntriesPerLedger")
	}
	position, err := storedPosition(&messaging.Delivery{Properties: map[string]string{PropertyPosition: "12"}})
	require.NoError(t, err)
	assert.EqualValues(t, 12, position)
	position, err = storedPosition(&messaging.Delivery{})
	require.NoError(t, err)
	assert.EqualValues(t, -1, position)
	_, err = storedPosition(&messaging.Delivery{Properties: map[string]string{PropertyPosition: "x"}})
	assert.Error(t, err)
}
