package primaries_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/primaries"
	"github.com/aviaryhq/aviary/internal/sonic/script"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// A primary keeps its marker when its slots leave, the lowest ones first.
func TestTheMarkerStaysWhenSlotsLeave(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	c, _ := start(t, 2, 0)
	from, to := c.Nodes()[0].Client(t), c.Nodes()[1]
	require.NoError(t, script.Load(ctx, from))
	require.NoError(t, from.Do(ctx, "FCALL", "sonic_open_primary", 0, "a", "r", "0-0", 1, "b", "lww").Err())
	var slots []int
	for slot := range 16384 {
		if c.Owner(t, slot) == c.Nodes()[0].Addr() {
			slots = append(slots, slot)
		}
		if len(slots) == 3 { // the others make no difference
			break
		}
	}
	id, err := messaging.ParseMessageID([]byte{8, 1, 16, 2})
	require.NoError(t, err)
	for _, watermark := range []uint64{6, 1006} { // in different slots
		require.NoError(t, primaries.WriteMarker(ctx, from, slots, "a", primaries.Marker{Message: id, Watermark: watermark}))
	}
	for _, slot := range slots {
		held, err := primaries.ReadMarker(ctx, from, []int{slot}, "a")
		require.NoError(t, err)
		assert.EqualValues(t, 1006, held.Watermark, "each slot gets a marker")
	}
	c.StartMove(t, slots[0], to.Addr())
	c.MoveKeys(t, slots[0], 100)
	id, err = messaging.ParseMessageID([]byte{8, 1, 16, 3})
	require.NoError(t, err)
	later := primaries.Marker{Message: id, Watermark: 2006}
	err = primaries.WriteMarker(ctx, from, slots, "a", later)
	require.True(t, primaries.Moving(err), err)
	c.EndMove(t, slots[0])
	got, err := primaries.ReadMarker(ctx, from, slots, "a")
	require.NoError(t, err)
	assert.Equal(t, later, got)
}
