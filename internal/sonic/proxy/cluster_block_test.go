package proxy_test

import (
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/resp"
	"github.com/aviaryhq/aviary/test/stack"
)

// TestBlockedInClusterWhoSendNoMore: who need not wait is served, as by Redis. Who has to wait is
// disconnected, and takes nothing.
func TestBlockedInClusterWhoSendNoMore(t *testing.T) {
	t.Parallel()
	cl := stack.PrivateRedisCluster(t, 2, 0)
	e := startCluster(t, cl, nil)
	k := keyOf(t, cl, cl.Addresses()[0], "k")
	d := dial(t, e.addr)
	require.Equal(t, ":3\r\n", d.ask(t, "rpush", k, "x", "x", "x"))
	last := newcomer(t, e)
	last.send(t, with(k, "blpop K 0\r\nblpop K 0\r\nget none{K}\r\nblpop K 0\r\n"))
	last.end(t)
	got, err := io.ReadAll(last)
	require.NoError(t, err)
	pop := "*2\r\n" + bulk(k) + bulk("x")
	require.Equal(t, pop+pop+"$-1\r\n"+pop, string(got))
	for _, text := range []string{"blpop K 0\r\n", "xread block 0 streams x{K} $\r\n", "get none{K}\r\nbrpop K 0\r\nget none{K}\r\n"} {
		gone := newcomer(t, e)
		gone.send(t, with(k, text))
		gone.end(t)
		awaitAlone(t, d)
		gone = newcomer(t, e)
		gone.send(t, with(k, text))
		awaitBlocked(t, cl.Nodes()[0], 1)
		gone.end(t)
		awaitAlone(t, d)
	}
	awaitBlocked(t, cl.Nodes()[0], 0)
	require.Equal(t, ":1\r\n", d.ask(t, "rpush", k, "x"))
	require.Equal(t, ":1\r\n", d.ask(t, "llen", k))
}

func bulk(text string) string { return string(resp.AppendBulk(nil, text)) }
