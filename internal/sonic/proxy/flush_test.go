package proxy_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/proxy"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/access"
)

// TestFlush: what FLUSHDB and FLUSHALL do is configured, alone and in transactions.
func TestFlush(t *testing.T) {
	t.Parallel()
	for flush, entries := range map[proxy.Flush]int64{proxy.FlushRefused: 2, proxy.FlushZone: 2, proxy.FlushReplicated: 6} {
		srv := opened(t)
		c := dial(t, start(t, srv, func(c *proxy.Config) { c.Flush = flush }).addr)
		require.Equal(t, "+OK\r\n", c.ask(t, "SET", "k", "1"))
		require.Equal(t, "+OK\r\n", c.ask(t, "SELECT", "3"))
		require.Equal(t, "+OK\r\n", c.ask(t, "SET", "k", "1"))
		steps := [][2]string{
			{"FLUSHDB", "+OK\r\n"}, {"DBSIZE", ":0\r\n"}, {"MULTI", "+OK\r\n"}, {"FLUSHALL", "+QUEUED\r\n"}, {"DBSIZE", "+QUEUED\r\n"},
			{"EXEC", "*2\r\n+OK\r\n:0\r\n"},
		}
		if flush == proxy.FlushRefused {
			const refused = " refuses 'flushdb': it would delete the keys of every zone, see flush in the configuration\r\n"
			steps = [][2]string{
				{"FLUSHDB", "-ERR Sonic" + refused}, {"DBSIZE", ":1\r\n"}, {"MULTI", "+OK\r\n"}, {"FLUSHDB", "-ERR Sonic" + refused},
				{"EXEC", "-EXECABORT Transaction discarded because of previous errors.\r\n"},
			}
		}
		for _, step := range steps {
			require.Equal(t, step[1], c.ask(t, step[0]), step[0])
		}
		if flush != proxy.FlushRefused {
			require.Equal(t, "-ERR syntax error\r\n", c.ask(t, "FLUSHALL", "later"))
			require.Equal(t, "-ERR syntax error\r\n", c.ask(t, "FLUSHDB", "ASYNC", "ASYNC"))
			require.Equal(t, "+OK\r\n", c.ask(t, "FLUSHDB", "async"))
			require.Equal(t, "+OK\r\n", c.ask(t, "SELECT", "0"))
			require.Equal(t, ":0\r\n", c.ask(t, "DBSIZE"))
		}
		require.Equal(t, entries, srv.Client(t).XLen(t.Context(), "{sonic:0}out").Val())
	}
}

// TestUsersWithLimitsMayNotFlush: a flush changes data, and names no keys.
func TestUsersWithLimitsMayNotFlush(t *testing.T) {
	t.Parallel()
	e := start(t, opened(t), func(c *proxy.Config) {
		c.Flush = proxy.FlushReplicated
		c.Users = []access.User{
			{Name: "default", Password: "p"}, {Name: "reader", Password: "p", ReadOnly: true}, {Name: "some", Password: "p", Keys: []string{"pub:"}},
		}
	})
	for _, user := range []string{"reader", "some"} {
		c := dial(t, e.addr)
		require.Equal(t, "+OK\r\n", c.ask(t, "AUTH", user, "p"))
		for _, name := range []string{"flushdb", "flushall"} {
			require.Equal(t, "-NOPERM this user has no permissions to run the '"+name+"' command\r\n", c.ask(t, name))
		}
	}
	c := dial(t, e.addr)
	require.Equal(t, "+OK\r\n", c.ask(t, "AUTH", "p"))
	require.Equal(t, "+OK\r\n", c.ask(t, "FLUSHALL"))
}
