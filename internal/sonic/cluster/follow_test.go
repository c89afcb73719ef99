package cluster_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zaptest"

	"github.com/aviaryhq/aviary/internal/sonic/cluster"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack"
)

// follow runs a Cluster until the test ends.
func follow(t *testing.T, cfg cluster.Config) (c *cluster.Cluster, changes *atomic.Int64) {
	t.Helper()
	c, changes = cluster.New(cfg, zaptest.NewLogger(t)), new(atomic.Int64)
	c.OnChange(func() { changes.Add(1) })
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-ended)
	})
	return c, changes
}

func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	require.Eventually(t, done, await.Patience, 10*time.Millisecond, what)
}

func TestFollowsACluster(t *testing.T) {
	t.Parallel()
	nodes := stack.PrivateRedisCluster(t, 3, 1, "requirepass secret")
	addresses := nodes.Addresses()
	c, changes := follow(t, cluster.Config{Addresses: addresses[5:], Password: "secret"}) // a replica

	eventually(t, "found from one address", func() bool { return changes.Load() > 0 })
	assert.EqualValues(t, 1, changes.Load())
	require.NoError(t, c.Err())
	const slot = 12182
	primaries := make(map[string]bool)
	for _, p := range c.Map().Primaries() {
		primaries[p.Address] = true
		assert.InDelta(t, cluster.Slots/3, c.Map().Count(p.Address), 1)
	}
	assert.Equal(t, map[string]bool{addresses[0]: true, addresses[1]: true, addresses[2]: true}, primaries)
	assert.Equal(t, addresses[2], c.Map().Owner(slot))

	nodes.MoveSlot(t, slot, addresses[0])
	eventually(t, "a slot has moved", func() bool {
		c.Refresh()
		return c.Map().Owner(slot) == addresses[0]
	})
	eventually(t, "it is told", func() bool { return changes.Load() > 1 })

	require.NoError(t, nodes.Nodes()[0].Kill())
	eventually(t, "a failover", func() bool {
		c.Refresh()
		return c.Map().Owner(slot) == addresses[3]
	})
	assert.Len(t, c.Map().Primaries(), 3)
	require.NoError(t, c.Err())

	for _, srv := range nodes.Nodes() {
		require.NoError(t, srv.Kill())
	}
	eventually(t, "nobody answers", func() bool {
		c.Refresh()
		return c.Err() != nil
	})
	assert.ErrorContains(t, c.Err(), addresses[5])
	assert.Len(t, c.Map().Primaries(), 3, "the last known ones")
	require.NoError(t, nodes.Nodes()[3].Start(t.Context()))
	eventually(t, "one answers", func() bool { return c.Err() == nil && c.Map().Owner(slot) == addresses[3] })
}

// TestNodesThatKnowNoSlots: they are in no cluster, and do not win over those that are.
func TestNodesThatKnowNoSlots(t *testing.T) {
	t.Parallel()
	nodes := stack.PrivateRedisCluster(t, 1, 0)
	alone := stack.PrivateRedisCluster(t, 1, 0).Nodes()[0]
	require.NoError(t, alone.Client(t).ClusterResetHard(t.Context()).Err())
	none := stack.PrivateRedis(t)

	c, _ := follow(t, cluster.Config{Addresses: []string{none.Addr(), alone.Addr()}})
	eventually(t, "nobody knows slots", func() bool { return c.Err() != nil })
	assert.ErrorContains(t, c.Err(), none.Addr()+": ERR This instance has cluster support disabled")
	assert.ErrorContains(t, c.Err(), alone.Addr()+": it reports no slots")
	assert.Nil(t, c.Map())

	c, _ = follow(t, cluster.Config{Addresses: append([]string{none.Addr(), alone.Addr()}, nodes.Addresses()...)})
	eventually(t, "found", func() bool { return c.Map() != nil })
	// A node that has met no other does not know its own address.
	assert.Equal(t, nodes.Addresses()[0], c.Map().Owner(0))
	require.NoError(t, c.Err())
}
