package zones_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/cluster"
	"github.com/aviaryhq/aviary/internal/sonic/primaries"
	"github.com/aviaryhq/aviary/internal/sonic/redislib"
	"github.com/aviaryhq/aviary/internal/sonic/script"
	"github.com/aviaryhq/aviary/internal/sonic/zones"
	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/await"
)

// refused opens each primary as a Sonic does, and returns how many say that they were not filled to
// the end.
func (z *zone) refused() (n int) {
	z.t.Helper()
	ctx := z.t.Context()
	require.NoError(z.t, z.cluster.each(func(db *redis.Client, slots []int) error {
		conn := db.Conn()
		defer func() { _ = conn.Close() }()
		p := redislib.NewPrimary(conn, redislib.Config{Zone: z.Name(), Others: z.others, Default: "lww"})
		if err := p.Open(ctx, redislib.PrimaryState{}, false, 0); err != nil {
			return err
		}
		if _, err := p.MarkRecovery(ctx, slots, nil); redislib.Unfilled(err) {
			n++
			return nil
		} else if err != nil {
			return err
		}
		return errors.Join(p.Recovered(ctx, z.Name()), p.Recovered(ctx, z.others[0]))
	}))
	return n
}

// No primary of a Redis Cluster takes writes before all are filled to the end. The next run begins
// anew, and writes the markers.
func TestAClusterThatWasNotFilledToTheEnd(t *testing.T) {
	t.Parallel()
	w := newZones(t, "a", "b*")
	w.fill()
	require.ErrorContains(t, w.bootstrap("a", "b"), "holds keys")
	w.awaitEqual()
	b := w.zones["b"]
	b.lose()
	ctx, cancel := context.WithCancel(t.Context())
	half := zones.Bootstrap{Source: w.zones["a"].Zone, Target: b.Zone, Progress: func(zones.Progress) { cancel() }}
	require.ErrorIs(t, half.Run(ctx), context.Canceled)
	assert.Equal(t, 3, b.refused())
	b.behind(0, "SET", "left over", "v")

	id, err := messaging.ParseMessageID([]byte{8, 1, 16, 1})
	require.NoError(t, err)
	markers := map[string]primaries.Marker{"a": {Message: id, Watermark: 7}, "b": {Message: id, Watermark: 8}}
	whole := zones.Bootstrap{
		Source: w.zones["a"].Zone, Target: b.Zone, Timeout: await.Patience,
		Subscribe: func(context.Context) (zones.Subscribed, error) { return zones.Subscribed{Markers: markers}, nil },
	}
	require.NoError(t, whole.Run(t.Context()))
	require.NoError(t, b.cluster.each(func(db *redis.Client, slots []int) error {
		found, err := primaries.ReadMarkers(t.Context(), db, slots[0])
		assert.Equal(t, markers, found)
		return err
	}))
	assert.Zero(t, b.refused())
	b.recover()
	w.awaitEqual()
	assert.Zero(t, b.client.Exists(t.Context(), "left over").Val())
}

func TestAClusterHasNoOtherDatabases(t *testing.T) {
	t.Parallel()
	w := newZones(t, "a", "b*")
	w.zones["a"].write(1, "set", "k", "v")
	w.zones["b"].lose()
	require.ErrorContains(t, w.bootstrap("a", "b"), "zone a has keys in database 1")
}

// A primary that lost what it was filled with, and a slot that moved, are not taken for a copy.
func TestAClusterThatChangesWhileItIsFilled(t *testing.T) {
	t.Parallel()
	w := newZones(t, "a", "b*")
	w.fill()
	w.awaitEqual()
	b := w.zones["b"]
	b.lose()
	changes := map[string]func(){
		"a slot moves": func() {
			slot := cluster.Slot([]byte("str1"))
			to := b.cluster.Nodes()[0].Addr()
			if b.cluster.Owner(t, slot) == to {
				to = b.cluster.Nodes()[1].Addr()
			}
			b.cluster.StartMove(t, slot, to)
			b.cluster.MoveKeys(t, slot, 1000)
			b.cluster.EndMove(t, slot)
		},
		"a primary is restarted": func() {
			node := b.cluster.Nodes()[2]
			assert.NoError(t, node.Kill())
			assert.NoError(t, node.Start(context.Background()))
		},
	}
	for name, change := range changes {
		changed := false
		filling := zones.Bootstrap{Source: w.zones["a"].Zone, Target: b.Zone, Timeout: await.Patience, Progress: func(zones.Progress) {
			if !changed {
				changed = true
				change()
			}
		}}
		require.Eventually(t, func() bool { // the map may still be that before the last change
			err := filling.Run(t.Context())
			return assert.Error(t, err, name) && changed
		}, await.Patience, 50*time.Millisecond, name)
		assert.Positive(t, b.refused(), name)
	}
	require.Eventually(t, func() bool { return w.bootstrap("a", "b") == nil }, await.Patience, 50*time.Millisecond)
	b.recover()
	w.awaitEqual()
}

// What one Redis knows of a flush, each slot knows after the copy.
func TestAFlushIsCopiedToEachSlot(t *testing.T) {
	t.Parallel()
	w := newZones(t, "a", "b*")
	w.zones["a"].write(0, "set", "k", "v")
	w.awaitEqual()
	a, b := w.zones["a"], w.zones["b"]
	require.NoError(t, a.client.HSet(t.Context(), script.KeysOf(0).Versions, "f0", "5-1").Err())
	b.lose()
	require.NoError(t, w.bootstrap("a", "b"))
	for _, slot := range []int{0, 1, cluster.Slots - 1} {
		assert.Equal(t, "5-1@a", b.client.HGet(t.Context(), script.SlotKeys(slot).Versions, "f0").Val(), fmt.Sprint(slot))
	}
}
