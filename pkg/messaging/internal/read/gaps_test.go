package read

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/record"
)

// readEntries notes single messages of a ledger.
func (g *gaps) readEntries(ledger int64, entries ...int64) {
	for _, entry := range entries {
		g.note(record.NewMessageID(record.EntryPlaceOf(ledger, entry), 0, 0, 1))
	}
}

func TestReaderGoesOnBeforeTheOldestGap(t *testing.T) {
	message := record.NewMessageID(record.EntryPlaceOf(9, 9), 0, 0, 1)
	at := func(g *gaps) record.EntryPlace { return record.FirstOf(g.position(message)) }
	var g gaps
	g.readEntries(1, 0, 1, 1, 2)
	require.Zero(t, at(&g))
	g.readEntries(1, 5, 7, 3)
	require.Equal(t, record.EntryPlaceOf(1, 3), at(&g))

	g = gaps{}
	g.readEntries(1, 1)
	require.Equal(t, record.EntryPlaceOf(1, 0), at(&g), "the topic's first entries")

	g.beginBehind(record.EntryPlaceOf(1, 4), true)
	require.Zero(t, at(&g))
	g.readEntries(1, 6)
	require.Equal(t, record.EntryPlaceOf(1, 5), at(&g))

	g.beginBehind(record.EntryPlaceOf(1, 4), true)
	g.readEntries(2, 0)
	require.Equal(t, record.EntryPlaceOf(1, 5), at(&g), "more may stand at the end of the ledger before")
}

func TestReaderForgetsOldGaps(t *testing.T) {
	var g gaps
	g.readEntries(1, 1, 3)
	for i := range int64(maxGapAge) - 2 {
		g.readEntries(1, 4+i)
	}
	first := g.gaps[0].from
	require.Equal(t, record.EntryPlaceOf(1, 0), first)
	g.readEntries(1, maxGapAge+2)
	require.Equal(t, record.EntryPlaceOf(1, 2), g.gaps[0].from, "what lies too far behind")
	g.readEntries(1, maxGapAge+4)
	g.readEntries(1, maxGapAge+4+maxUnshown)
	require.Equal(t, record.EntryPlaceOf(1, maxGapAge+3), g.gaps[0].from, "too many entries")
	require.Len(t, g.gaps, 2)
	g.readEntries(1, 1<<40)
	require.Empty(t, g.gaps)
	require.Zero(t, g.unshown)
}
