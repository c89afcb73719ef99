package outbox

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/message"
)

// While nothing is stored, primaries without writes do not fill the queue. A clock stays behind what
// was put before it.
func TestClocksOfTheClusterQueue(t *testing.T) {
	t.Parallel()
	q, a, b := newClusterQueue(), &primaryReader{}, &primaryReader{}
	group := clusterItem{reader: a, group: message.Group{Slot: 1, Entries: []message.Entry{{ID: message.ID{Ms: 1}}}}, bytes: 1}
	for ms := range uint64(10) {
		require.NoError(t, q.put(t.Context(), []clusterItem{{reader: a, clock: clock{ms: ms + 1}}}))
		require.NoError(t, q.put(t.Context(), []clusterItem{{reader: b, clock: clock{ms: ms + 1}}}))
	}
	require.NoError(t, q.put(t.Context(), []clusterItem{group}))
	require.NoError(t, q.put(t.Context(), []clusterItem{{reader: a, clock: clock{ms: 11}}}))
	require.NoError(t, q.put(t.Context(), []clusterItem{{reader: b, clock: clock{ms: 12}}}))
	want := []clusterItem{{reader: a, clock: clock{ms: 10}}, {reader: b, clock: clock{ms: 12}}, group, {reader: a, clock: clock{ms: 11}}}
	assert.Equal(t, want, q.take())
}
