package proxy_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack"
)

// TestTransactionDuringFailover: a transaction that waits for a primary is sent to the one that takes
// over.
func TestTransactionDuringFailover(t *testing.T) {
	t.Parallel()
	cl := stack.PrivateRedisCluster(t, 3, 1)
	e := startCluster(t, cl, nil)
	k := keyOf(t, cl, cl.Nodes()[0].Addr(), "k")
	c := dial(t, e.addr)
	require.Equal(t, "$-1\r\n", c.ask(t, "get", k))
	require.NoError(t, cl.Nodes()[0].Kill())
	require.Eventually(t, func() bool { return len(e.Unreachable()) == 1 }, await.Patience, time.Millisecond)
	c.send(t, with(k, "multi\r\nincr K\r\nexec\r\nincr K\r\n"))
	for _, want := range []string{"+OK\r\n", "+QUEUED\r\n", "*1\r\n:1\r\n", ":2\r\n"} {
		require.Equal(t, want, c.next(t))
	}
}
