package outbox

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/wire"
)

// While nothing is stored, primaries without writes do not fill the queue. A watermark stays behind
// the entries that it is for.
func TestClocksOfTheClusterQueue(t *testing.T) {
	t.Parallel()
	q, a, b := newClusterQueue(), &primaryReader{}, &primaryReader{}
	group := clusterItem{reader: a, group: wire.Group{Slot: 1, Entries: []wire.Entry{{ID: wire.ID{Ms: 1}}}}, bytes: 1}
	for ms := range uint64(10) {
		require.NoError(t, q.put(t.Context(), []clusterItem{{reader: a, watermark: primaryWatermark{ms: ms + 1}}}))
		require.NoError(t, q.put(t.Context(), []clusterItem{{reader: b, watermark: primaryWatermark{ms: ms + 1}}}))
	}
	require.NoError(t, q.put(t.Context(), []clusterItem{group}))
	require.NoError(t, q.put(t.Context(), []clusterItem{{reader: a, watermark: primaryWatermark{ms: 11}}}))
	require.NoError(t, q.put(t.Context(), []clusterItem{{reader: b, watermark: primaryWatermark{ms: 12}}}))
	want := []clusterItem{{reader: a, watermark: primaryWatermark{ms: 10}}, {reader: b, watermark: primaryWatermark{ms: 12}}, group, {reader: a, watermark: primaryWatermark{ms: 11}}}
	assert.Equal(t, want, q.take())
}
