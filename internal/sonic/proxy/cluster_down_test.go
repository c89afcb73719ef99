package proxy_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/cluster"
	"github.com/aviaryhq/aviary/internal/sonic/proxy"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack"
)

// keyOn returns a key whose slot a primary has.
func keyOn(t *testing.T, servers *stack.RedisCluster, address string) string {
	t.Helper()
	for i := range 1000 {
		if key := fmt.Sprintf("key:%d", i); servers.Owner(t, cluster.Slot([]byte(key))) == address {
			return key
		}
	}
	require.Fail(t, "no key")
	return ""
}

// TestClusterFailover kills a primary. Commands for its slots wait until its replica has taken over;
// those for others do not.
func TestClusterFailover(t *testing.T) { inBothModes(t, testClusterFailover) }

func testClusterFailover(t *testing.T, startCluster clusterStarter) {
	t.Helper()
	servers := stack.PrivateRedisCluster(t, 3, 1, "cluster-require-full-coverage no")
	e := startCluster(t, servers, nil)
	c, other, third := e.client(t, 2), e.client(t, 3), e.client(t, 2)
	victim := servers.Nodes()[1]
	lost, kept := keyOn(t, servers, victim.Addr()), keyOn(t, servers, servers.Nodes()[0].Addr())
	for _, key := range []string{lost, kept} {
		require.NoError(t, c.Set(t.Context(), key, "before", 0).Err())
	}
	direct := victim.Client(t)
	require.NoError(t, direct.Do(t.Context(), "WAIT", 1, 0).Err())
	require.NoError(t, direct.Close())
	require.NoError(t, third.Ping(t.Context()).Err())
	require.NoError(t, victim.Kill())
	require.Eventually(t, func() bool { return e.Unreachable()[victim.Addr()] != nil }, await.Patience, time.Millisecond)
	answered := make(chan error, 1)
	go func() {
		got, err := c.Get(context.Background(), lost).Result()
		if err == nil && got != "before" {
			err = fmt.Errorf("got %q", got)
		}
		answered <- err
	}()
	inTx := make(chan error, 1)
	go func() {
		_, err := third.TxPipelined(context.Background(), func(p redis.Pipeliner) error {
			p.Incr(context.Background(), "{"+lost+"}tx")
			return nil
		})
		inTx <- err
	}()
	require.NoError(t, other.Set(t.Context(), kept, "meanwhile", 0).Err())
	require.NoError(t, <-answered, "a read waits for the replica")
	require.NoError(t, <-inTx, "a transaction, too")
	require.NoError(t, c.Set(t.Context(), lost, "after", 0).Err())
	assert.Equal(t, "after", other.Get(t.Context(), lost).Val())
	require.Eventually(t, func() bool { return len(e.Unreachable()) == 0 }, await.Patience, time.Millisecond)
	require.NoError(t, e.Ready())
}

// TestClusterPartDown: without a replica to take over, commands for the slots of a primary that has
// ended get an error, and the others are executed.
func TestClusterPartDown(t *testing.T) { inBothModes(t, testClusterPartDown) }

func testClusterPartDown(t *testing.T, startCluster clusterStarter) {
	t.Helper()
	servers := stack.PrivateRedisCluster(t, 3, 0, "cluster-require-full-coverage no")
	e := startCluster(t, servers, func(cfg *proxy.Config) { cfg.Backend.Wait = 100 * time.Millisecond })
	c := e.client(t, 2)
	victim := servers.Nodes()[1]
	lost, kept := keyOn(t, servers, victim.Addr()), keyOn(t, servers, servers.Nodes()[2].Addr())
	require.NoError(t, c.Set(t.Context(), kept, "x", 0).Err())
	require.NoError(t, victim.Kill())
	for range 20 {
		err := c.Get(t.Context(), lost).Err()
		var reply redis.Error
		require.ErrorAs(t, err, &reply)
		require.Regexp(t, "^CLUSTERDOWN", reply.Error())
		require.Equal(t, "x", c.Get(t.Context(), kept).Val())
		require.NoError(t, c.Publish(t.Context(), "channel", "x").Err(), "commands without keys go to a primary that runs")
	}
	err := c.MGet(t.Context(), lost, kept).Err()
	require.ErrorContains(t, err, "CLUSTERDOWN")
	require.NoError(t, e.Ready(), "the rest works")
	assert.Contains(t, e.Unreachable(), victim.Addr())
	require.NoError(t, victim.Start(t.Context()))
	require.Eventually(t, func() bool { return c.Set(t.Context(), lost, "y", 0).Err() == nil }, await.Patience, time.Millisecond)
	require.Eventually(t, func() bool { return len(e.Unreachable()) == 0 }, await.Patience, time.Millisecond)
}
