package proxy_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/stack"
)

// pipelined sends lines in one piece and returns n replies.
func (c *connection) pipelined(t *testing.T, n int, text string) []string {
	t.Helper()
	c.send(t, text)
	var all []string
	for range n {
		got, err := c.reply()
		require.NoError(t, err)
		all = append(all, got)
	}
	return all
}

// TestWritesInOneCall: writes of a pipeline have the replies of single ones, each error its own,
// and Redis gets them in few calls.
func TestWritesInOneCall(t *testing.T) {
	t.Parallel()
	srv := opened(t)
	e := start(t, srv, nil)
	c := dial(t, e.addr)
	calls := func() (n int) {
		info, err := srv.Client(t).Info(t.Context(), "commandstats").Result()
		require.NoError(t, err)
		if _, after, ok := strings.Cut(info, "cmdstat_fcall:calls="); ok {
			_, err := fmt.Sscanf(after, "%d", &n)
			require.NoError(t, err)
		}
		return n
	}
	before := calls()
	got := c.pipelined(t, 9, "set a 1\r\nincr a\r\nset b x\r\nincr b\r\nhset a f v\r\nget a\r\nset c 1 nx\r\nset c 2 nx\r\nset c 3 get\r\n")
	assert.Equal(t, []string{
		"+OK\r\n", ":2\r\n", "+OK\r\n", "-ERR value is not an integer or out of range\r\n",
		"-WRONGTYPE Operation against a key holding the wrong kind of value\r\n", "$1\r\n2\r\n", "+OK\r\n", "$-1\r\n", "$1\r\n1\r\n",
	}, got)
	assert.Equal(t, 3, calls()-before, "two calls of several writes, and SET with GET alone")

	var text strings.Builder
	const n = 300 // more than go in one call
	for range n {
		text.WriteString("incr n\r\n")
	}
	got = c.pipelined(t, n, text.String())
	assert.Equal(t, ":1\r\n", got[0])
	assert.Equal(t, ":300\r\n", got[n-1])
	large := strings.Repeat("v", 10<<10)
	assert.Equal(t, []string{"+OK\r\n", "+OK\r\n", "+OK\r\n"}, c.pipelined(t, 3, "set l "+large+"\r\nset l2 "+large+"\r\nset l3 "+large+"\r\n"))
	assert.Equal(t, "$10240\r\n"+large+"\r\n", c.ask(t, "GET", "l3"))
	require.Contains(t, c.ask(t, "HELLO", "3"), "proto")
	assert.Equal(t, []string{"+OK\r\n", "_\r\n", ":7\r\n"}, c.pipelined(t, 3, "set r 6\r\nset r 1 nx\r\nincr r\r\n"))
}

// TestRedisIsLostUnderManyWrites: each client of a call is told that the outcome is unknown, and
// none of the writes is sent again. Writes that come while Redis is unavailable wait for it.
func TestRedisIsLostUnderManyWrites(t *testing.T) {
	t.Parallel()
	srv := opened(t)
	e := start(t, srv, nil)
	c := dial(t, e.addr)
	require.Equal(t, "+OK\r\n", c.ask(t, "SET", "a", "1"))
	require.NoError(t, srv.Pause())
	c.send(t, "incr n\r\nincr n\r\nincr n\r\n")
	awaitUnread(t, srv)
	require.NoError(t, srv.Kill())
	for range 3 {
		got, err := c.reply()
		require.NoError(t, err)
		assert.Contains(t, got, "-ERR the connection to Redis was lost while this command ran")
	}
	c.send(t, "set a 2\r\nset b 3\r\n")
	require.NoError(t, srv.Start(t.Context()))
	for range 2 {
		got, err := c.reply()
		require.NoError(t, err)
		assert.Contains(t, got, "-LOADING Sonic has not opened this Redis yet")
	}
	open(t, srv)
	assert.Equal(t, []string{"+OK\r\n", ":1\r\n"}, c.pipelined(t, 2, "set a 2\r\nincr n\r\n"))
}

// TestWritesOfLongStringsNeedLittleMemory: only the first one ships the whole string.
func TestWritesOfLongStringsNeedLittleMemory(t *testing.T) {
	t.Parallel()
	const bound, n = 100 << 20, 64
	srv := opened(t, stack.Conf(map[string]string{"maxmemory": strconv.Itoa(bound)}))
	e := start(t, srv, nil)
	c := dial(t, e.addr)
	for _, row := range []struct{ key, write string }{{"a", "append a x\r\n"}, {"b", "setrange b 1 x\r\n"}, {"c", "setbit c 1 %d\r\n"}} {
		require.Equal(t, ":4194305\r\n", c.ask(t, "SETRANGE", row.key, strconv.Itoa(4<<20), "x"))
		var text strings.Builder
		for i := range n {
			text.WriteString(strings.ReplaceAll(row.write, "%d", strconv.Itoa(i%2)))
		}
		for _, reply := range c.pipelined(t, n, text.String()) {
			assert.Equal(t, ":", reply[:1], "%s of %s", reply, row.write)
		}
		memory, err := srv.Client(t).InfoMap(t.Context(), "memory").Result()
		require.NoError(t, err)
		peak, err := strconv.Atoi(memory["Memory"]["used_memory_peak"])
		require.NoError(t, err)
		assert.Less(t, peak, 2*bound, "after %s", row.write)
		require.NoError(t, srv.Client(t).XTrimMaxLen(t.Context(), "{sonic:0}out", 0).Err())
		require.NoError(t, srv.Client(t).Del(t.Context(), row.key).Err())
	}
}
