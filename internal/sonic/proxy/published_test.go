package proxy_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/proxy"
	"github.com/aviaryhq/aviary/test/await"
)

// TestAckPublished holds replies to writes, and those behind them, until the broker has the
// effects.
func TestAckPublished(t *testing.T) {
	t.Parallel()
	e := start(t, opened(t), func(c *proxy.Config) { c.AckPublished = true })
	last := func() string {
		entries, err := e.redis.Client(t).XRevRangeN(t.Context(), "{sonic:0}out", "+", "-", 1).Result()
		require.NoError(t, err)
		require.Len(t, entries, 1)
		return entries[0].ID
	}
	reader, writer := dial(t, e.addr), dial(t, e.addr)
	require.Equal(t, "$-1\r\n", writer.ask(t, "GET", "a"), "reads wait for nothing")
	writer.send(t, "set a 1\r\nget a\r\nping\r\ndel none\r\n")
	require.Eventually(t, func() bool { return reader.ask(t, "GET", "a") == "$1\r\n1\r\n" }, await.Patience, time.Millisecond)
	first := last()
	writer.send(t, "multi\r\nincr n\r\nincr n\r\nexec\r\nget n\r\n")
	require.Eventually(t, func() bool { return reader.ask(t, "GET", "n") == "$1\r\n2\r\n" }, await.Patience, time.Millisecond)
	require.NoError(t, writer.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
	_, err := writer.reply()
	require.ErrorContains(t, err, "timeout")
	require.NoError(t, writer.SetReadDeadline(time.Now().Add(await.Patience)))
	e.Published(first)
	for _, want := range []string{"+OK\r\n", "$1\r\n1\r\n", "+PONG\r\n", ":0\r\n", "+OK\r\n", "+QUEUED\r\n", "+QUEUED\r\n"} {
		got, err := writer.reply()
		require.NoError(t, err)
		assert.Equal(t, want, got)
	}
	require.NoError(t, writer.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
	_, err = writer.reply()
	require.ErrorContains(t, err, "timeout", "EXEC waits")
	require.NoError(t, writer.SetReadDeadline(time.Now().Add(await.Patience)))
	e.Published(last())
	for _, want := range []string{"*2\r\n:1\r\n:2\r\n", "$1\r\n2\r\n"} {
		got, err := writer.reply()
		require.NoError(t, err)
		assert.Equal(t, want, got)
	}
	assert.Equal(t, "-ERR value is not an integer or out of range\r\n", writer.ask(t, "INCRBY", "n", "x"), "errors wait for nothing")

	writer.send(t, "blpop l 0\r\n")
	e.awaitBlocked(t, 1)
	reader.send(t, "rpush l x\r\n")
	e.awaitBlocked(t, 0)
	e.Published("99999999999999-0")
	got, err := writer.reply()
	require.NoError(t, err)
	assert.Equal(t, "*2\r\n$1\r\nl\r\n$1\r\nx\r\n", got)
	got, err = reader.reply()
	require.NoError(t, err)
	assert.Equal(t, ":1\r\n", got)
}

// TestAckPublishedWithoutItsRedis: a write that waited for the broker when its Redis ended is not
// answered by what another Redis stores later, which may never have had it.
func TestAckPublishedWithoutItsRedis(t *testing.T) {
	t.Parallel()
	srv := opened(t)
	e := start(t, srv, func(c *proxy.Config) { c.AckPublished = true })
	reader, writer := dial(t, e.addr), dial(t, e.addr)
	writer.send(t, "set a 1\r\nget a\r\nincr n\r\nping\r\n")
	require.Eventually(t, func() bool { return reader.ask(t, "GET", "n") == "$1\r\n1\r\n" }, await.Patience, time.Millisecond)
	require.NoError(t, srv.Kill())
	for _, want := range []string{"-ERR the connection to Redis was lost before Pulsar", "$1\r\n1\r\n", "-ERR the connection to Redis was lost before Pulsar", "+PONG\r\n"} {
		got, err := writer.reply()
		require.NoError(t, err)
		assert.Contains(t, got, want)
	}
	require.NoError(t, srv.Start(t.Context()))
	open(t, srv)
	writer.send(t, "set a 2\r\n")
	require.Eventually(t, func() bool { return reader.ask(t, "GET", "a") == "$1\r\n2\r\n" }, await.Patience, time.Millisecond)
	e.Published("99999999999999-0")
	got, err := writer.reply()
	require.NoError(t, err)
	assert.Equal(t, "+OK\r\n", got)
}

func TestSetWrites(t *testing.T) {
	t.Parallel()
	e := start(t, opened(t), nil)
	c, other := dial(t, e.addr), dial(t, e.addr)
	e.SetWriteMode(proxy.WritesRefused, "the outbox is full")
	assert.Equal(t, "-ERR Sonic takes no writes: the outbox is full\r\n", c.ask(t, "SET", "a", "1"))
	assert.Equal(t, "$-1\r\n", c.ask(t, "GET", "a"))
	e.SetWriteMode(proxy.WritesDelayed, "")
	c.send(t, "get a\r\nset a 1\r\nget a\r\n")
	got, err := c.reply()
	require.NoError(t, err)
	assert.Equal(t, "$-1\r\n", got)
	for range 10 {
		require.Equal(t, "$-1\r\n", other.ask(t, "GET", "a"), "the write waits")
	}
	e.SetWriteMode(proxy.WritesOpen, "")
	for _, want := range []string{"+OK\r\n", "$1\r\n1\r\n"} {
		got, err := c.reply()
		require.NoError(t, err)
		assert.Equal(t, want, got)
	}
}
