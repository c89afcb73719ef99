package proxy_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/cluster"
	"github.com/aviaryhq/aviary/test/stack"
)

// TestWatchedKeyComesDuringMove: a watched key that did not exist is set at the next primary, while
// another one is still at the present one.
func TestWatchedKeyComesDuringMove(t *testing.T) {
	t.Parallel()
	cl := stack.PrivateRedisCluster(t, 2, 0)
	e := startCluster(t, cl, nil)
	k := keyOf(t, cl, cl.Addresses()[0], "k")
	c, d := dial(t, e.addr), dial(t, e.addr)
	require.Equal(t, "+OK\r\n", d.ask(t, "set", "{"+k+"}", "old"))
	for _, commands := range [][]string{{"set", "{" + k + "}", "new"}, {"publish", "a", "m"}} {
		require.Equal(t, "+OK\r\n", c.ask(t, "watch", "none{"+k+"}", k))
		cl.StartMove(t, cluster.Slot([]byte(k)), cl.Addresses()[1])
		require.Equal(t, "+OK\r\n", d.ask(t, "set", k, "1"))
		require.Equal(t, "+OK\r\n", c.ask(t, "multi"))
		require.Equal(t, "+QUEUED\r\n", c.ask(t, commands...))
		require.Equal(t, "*-1\r\n", c.ask(t, "exec"))
		cl.EndMove(t, cluster.Slot([]byte(k)))
		require.Equal(t, "+OK\r\n", c.ask(t, "watch", "none{"+k+"}", k))
		require.Equal(t, "+OK\r\n", c.ask(t, "watch", "none{"+k+"}2"))
		require.Equal(t, "+OK\r\n", c.ask(t, "multi"))
		require.Equal(t, "+QUEUED\r\n", c.ask(t, "get", k))
		require.Equal(t, "*1\r\n$1\r\n1\r\n", c.ask(t, "exec"))
		cl.MoveSlot(t, cluster.Slot([]byte(k)), cl.Addresses()[0])
		require.Equal(t, ":1\r\n", d.ask(t, "del", k))
	}
}
