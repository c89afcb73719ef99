package zones_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/cluster"
	"github.com/aviaryhq/aviary/internal/sonic/zones"
)

// A comparison waits for slots that are moving: their keys are at two primaries, and none of them is
// missed or found twice.
func TestSlotsMoveDuringAComparison(t *testing.T) {
	t.Parallel()
	w := newZones(t, "a", "b*")
	w.fill()
	require.Empty(t, w.differences("a", "b"))
	b := w.zones["b"]
	b.behind(0, "SET", "str1", "other")
	b.behind(0, "SET", "{str2}only in b", "v")
	moved := map[int]string{}
	for _, key := range []string{"str1", "str2", "hash3"} {
		slot, to := cluster.Slot([]byte(key)), b.cluster.Nodes()[0].Addr()
		if b.cluster.Owner(t, slot) == to {
			to = b.cluster.Nodes()[1].Addr()
		}
		b.cluster.StartMove(t, slot, to)
		b.cluster.MoveKeys(t, slot, 1)
		moved[slot] = to
	}
	type result struct {
		found []zones.Difference
		err   error
	}
	ended := make(chan result, 1)
	check := w.check("a", "b")
	go func() {
		found, err := check.Run(context.WithoutCancel(t.Context()))
		ended <- result{found, err}
	}()
	for slot := range moved {
		b.cluster.EndMove(t, slot)
	}
	r := <-ended
	require.NoError(t, r.err)
	var names []string
	for _, d := range r.found {
		names = append(names, d.Name)
	}
	assert.Equal(t, []string{"str1", "{str2}only in b"}, names)
	for slot, to := range moved {
		assert.Equal(t, to, b.cluster.Owner(t, slot))
	}
}
