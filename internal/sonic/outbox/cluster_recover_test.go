package outbox

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/cluster"
	"github.com/aviaryhq/aviary/internal/sonic/primaries"
	"github.com/aviaryhq/aviary/internal/sonic/redislib"
	"github.com/aviaryhq/aviary/test/await"
)

// A primary comes back without its last effects, and one of its slots moves to another primary before
// it has recovered. They are there again before the slot takes writes.
func TestClusterSlotMovesFromAPrimaryThatHasNotRecovered(t *testing.T) {
	t.Parallel()
	const key = "{x}key"
	slot := cluster.Slot([]byte(key))
	for name, at := range map[string]struct{ started, ended string }{
		"after it is opened": {"opened", "opened"}, "since before it was killed": {"running", "opened"}, "before it is opened": {"killed", "killed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			w := newClusterFixture(t, 2, 0)
			s, stop, ended := w.shipper(w.dial())
			require.NoError(t, w.set(ctx, key, "first", ""))
			w.await(map[string][]string{key: {"first"}})
			w.emptied()
			from, to := w.redis.Nodes()[0], w.redis.Nodes()[1]
			if w.redis.Owner(t, slot) != from.Addr() {
				from, to = to, from
			}
			move := func(now string) {
				if at.started == now {
					w.redis.StartMove(t, slot, to.Addr())
				}
				if at.ended == now {
					w.redis.MoveKeys(t, slot, 100)
					w.redis.EndMove(t, slot)
				}
			}
			slots := primaries.SlotsOf(w.primaries.Map(), from.Addr())
			require.NoError(t, from.Client(t).Save(ctx).Err())
			require.NoError(t, w.set(ctx, key, "second", ""))
			require.NoError(t, w.set(ctx, "{x}lost", "1", ""))
			w.await(map[string][]string{key: {"first", "second"}, "{x}lost": {"1"}})
			stop()
			require.NoError(t, <-ended)
			move("running")
			require.NoError(t, from.Kill())
			require.NoError(t, from.Start(ctx))
			require.Eventually(t, func() bool {
				return strings.Contains(from.Client(t).ClusterInfo(ctx).Val(), "cluster_state:ok") &&
					strings.Contains(to.Client(t).ClusterInfo(ctx).Val(), "cluster_state:ok")
			}, await.Patience, 10*time.Millisecond)
			move("killed")

			// A process opens it, and ends before it has recovered it.
			conn := from.Client(t).Conn()
			defer func() { require.NoError(t, conn.Close()) }()
			r := &primaryReader{clusterOwner: newClusterOwner(s, nil), library: redislib.NewPrimary(conn, s.cfg.Library), slots: slots}
			state, err := r.library.Look(ctx)
			require.NoError(t, err)
			require.NoError(t, r.library.Open(ctx, state, false, 0))
			require.NoError(t, r.markMissing(ctx, slots))
			move("opened")
			require.Equal(t, to.Addr(), w.redis.Owner(t, slot))
			assert.Equal(t, "first", to.Client(t).Get(ctx, key).Val())
			other := w.primaries.At(to.Addr())
			require.Error(t, other.Do(ctx, "FCALL", "sonic_set", 1, slotOf(key).Outbox, "0", key, "v").Err())

			_, _, _ = w.shipper(w.dial())
			require.NoError(t, w.set(ctx, "{x}next", "2", ""))
			assert.Equal(t, "second", to.Client(t).Get(ctx, key).Val())
			assert.Equal(t, "1", to.Client(t).Get(ctx, "{x}lost").Val())
			w.await(map[string][]string{key: {"first", "second"}, "{x}lost": {"1"}, "{x}next": {"2"}})
			w.emptied()
			for _, n := range w.redis.Nodes() {
				require.Eventually(t, func() bool {
					marks, err := n.Client(t).Keys(ctx, "*recovery").Result()
					return err == nil && len(marks) == 0
				}, await.Patience, 10*time.Millisecond)
			}
		})
	}
}
