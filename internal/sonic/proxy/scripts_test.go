package proxy_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestScriptsLeaveWatchAlone: a script between WATCH and MULTI neither ends the WATCH nor is kept from running by it.
func TestScriptsLeaveWatchAlone(t *testing.T) {
	e := start(t, opened(t), nil)
	c, other := dial(t, e.addr), dial(t, e.addr)
	read := func() string { return c.ask(t, "EVAL", "return redis.call('GET', KEYS[1])", "1", "a") }
	for _, script := range []string{"before", "behind", "both"} {
		require.Equal(t, "+OK\r\n", other.ask(t, "SET", "a", "1"))
		require.Equal(t, "+OK\r\n", c.ask(t, "WATCH", "a"))
		if script != "behind" {
			require.Equal(t, "$1\r\n1\r\n", read())
		}
		require.Equal(t, "+OK\r\n", other.ask(t, "SET", "a", "2"))
		if script != "before" {
			require.Equal(t, "$1\r\n2\r\n", read(), "it runs")
		}
		require.Equal(t, "+OK\r\n", c.ask(t, "MULTI"))
		require.Equal(t, "+QUEUED\r\n", c.ask(t, "SET", "a", "3"))
		require.Equal(t, "*-1\r\n", c.ask(t, "EXEC"), "the key was changed")
	}
	c.send(t, "watch a\r\neval \"return redis.call('get', KEYS[1])\" 1 a\r\nping\r\nget a\r\nmulti\r\nset a 4\r\nexec\r\n")
	for _, want := range []string{"+OK\r\n", "$1\r\n2\r\n", "+PONG\r\n", "$1\r\n2\r\n", "+OK\r\n", "+QUEUED\r\n", "*1\r\n+OK\r\n"} {
		got, err := c.reply()
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}
