package proxy_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/stack"
)

// TestPublishCounts the subscribers, also those that came at the start, and after
// the cluster has got another primary.
func TestPublishCounts(t *testing.T) {
	t.Parallel()
	cl := stack.PrivateRedisCluster(t, 3, 1)
	e := startCluster(t, cl, nil)
	c := dial(t, e.addr)
	const subscribers = 20
	for range subscribers {
		require.Contains(t, dial(t, e.addr).ask(t, "subscribe", "a"), ":1\r\n")
	}
	counts := func() bool { return c.ask(t, "publish", "a", "m") == ":20\r\n" }
	require.True(t, counts())
	for i, srv := range cl.Nodes()[:3] {
		n, err := srv.Client(t).PubSubNumSub(t.Context(), "a").Result()
		require.NoError(t, err)
		if n["a"] > 0 { // these would be disconnected
			continue
		}
		require.NoError(t, cl.Nodes()[3+i].Client(t).ClusterFailover(t.Context()).Err())
		k := keyOf(t, cl, cl.Nodes()[3+i].Addr(), "k")
		require.Equal(t, "+OK\r\n", c.ask(t, "set", k, "1"), "Sonic knows")
		require.True(t, counts())
	}
}

// TestPublishInTransaction: a channel has no slot, so PUBLISH may be with any keys in a transaction.
func TestPublishInTransaction(t *testing.T) { inBothModes(t, testPublishInTransaction) }

func testPublishInTransaction(t *testing.T, startCluster clusterStarter) {
	t.Helper()
	e := startCluster(t, stack.PrivateRedisCluster(t, 2, 0), nil)
	c := dial(t, e.addr)
	c.send(t, "multi\r\nset a 1\r\npublish b m\r\npublish c m\r\nexec\r\n")
	for _, want := range []string{"+OK\r\n", "+QUEUED\r\n", "+QUEUED\r\n", "+QUEUED\r\n", "*3\r\n+OK\r\n:0\r\n:0\r\n"} {
		got, err := c.reply()
		assert.NoError(t, err)
		assert.Equal(t, want, got)
	}
}
