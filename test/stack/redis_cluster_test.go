package stack

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/await"
)

func TestPrivateRedisCluster(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	c := PrivateRedisCluster(t, 3, 1, "cluster-require-full-coverage no", "requirepass secret")
	addresses := c.Addresses()
	require.Len(t, addresses, 6)
	for _, srv := range c.Nodes() {
		conf, err := srv.Client(t).ConfigGet(ctx, "cluster-require-full-coverage").Result()
		require.NoError(t, err)
		assert.Equal(t, "no", conf["cluster-require-full-coverage"])
	}
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addresses, Password: "secret"})
	defer client.Close()

	const slot = 12182 // of "foo", which the third primary has
	require.Equal(t, addresses[2], c.Owner(t, slot))
	const keys = 250 // more than are moved at once
	key := func(i int) string { return fmt.Sprintf("{foo}%d", i) }
	for i := range keys {
		require.NoError(t, client.Set(ctx, key(i), i, 0).Err())
	}
	inSlot := func(address string) int64 {
		return c.Node(t, address).Client(t).ClusterCountKeysInSlot(ctx, slot).Val()
	}

	t.Run("a slot is half moved", func(t *testing.T) {
		c.StartMove(t, slot, addresses[0])
		assert.Equal(t, 101, c.MoveKeys(t, slot, 101))
		assert.EqualValues(t, 101, inSlot(addresses[0]))
		assert.Equal(t, addresses[2], c.Owner(t, slot))
		require.ErrorContains(t, c.Node(t, addresses[2]).Client(t).Get(ctx, "{foo}none").Err(), fmt.Sprintf("ASK %d %s", slot, addresses[0]))
		c.EndMove(t, slot)
		assert.Equal(t, addresses[0], c.Owner(t, slot))
		assert.EqualValues(t, keys, inSlot(addresses[0]))
		assert.Zero(t, inSlot(addresses[2]))
	})
	t.Run("a slot moves under load", func(t *testing.T) {
		ctx, stop := context.WithCancel(ctx)
		var rounds atomic.Int64
		written := make(chan error, 1)
		go func() {
			for ; ctx.Err() == nil; rounds.Add(1) {
				for i := range 2 * keys { // half of them are new at first
					if err := client.Set(t.Context(), key(i), i, 0).Err(); err != nil {
						written <- err
						return
					}
				}
			}
			written <- nil
		}()
		for _, to := range []string{addresses[1], addresses[2], addresses[1]} {
			before := rounds.Load()
			c.MoveSlot(t, slot, to)
			require.Eventually(t, func() bool { return rounds.Load() > before || len(written) > 0 }, await.Patience, time.Millisecond)
		}
		stop()
		require.NoError(t, <-written)
		assert.Equal(t, addresses[1], c.Owner(t, slot))
		assert.EqualValues(t, 2*keys, inSlot(addresses[1]))
		assert.Zero(t, inSlot(addresses[0]))
	})
	t.Run("a replica takes over, and the killed one follows it", func(t *testing.T) {
		killed := c.Nodes()[1]
		require.NoError(t, client.Set(ctx, "foo", "bar", 0).Err())
		require.NoError(t, c.Nodes()[4].awaitSync(ctx, t, killed))
		require.NoError(t, killed.Kill())
		assert.Empty(t, c.Owner(t, slot))
		require.Eventually(t, func() bool { return c.Owner(t, slot) == addresses[4] }, await.Patience, 50*time.Millisecond)
		assert.Equal(t, "bar", c.Nodes()[4].Client(t).Get(ctx, "foo").Val())
		require.NoError(t, killed.Start(ctx))
		require.Eventually(t, func() bool { return inSlot(addresses[1]) == inSlot(addresses[4]) }, await.Patience, 50*time.Millisecond)
		assert.Equal(t, addresses[4], c.Owner(t, slot))
	})
}
