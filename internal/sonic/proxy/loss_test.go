package proxy_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/proxy"
	"github.com/aviaryhq/aviary/internal/sonic/script"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack"
)

// TestRedisIsLostInMidCommand kills Redis while it has commands: their clients are told that the
// outcome is unknown, none is sent again, and what comes later waits for the next Redis.
func TestRedisIsLostInMidCommand(t *testing.T) {
	t.Parallel()
	srv := opened(t)
	e := start(t, srv, nil)
	under, later, watching := dial(t, e.addr), dial(t, e.addr), dial(t, e.addr)
	require.Equal(t, "+OK\r\n", under.ask(t, "SET", "a", "1"))
	require.Equal(t, "+OK\r\n", watching.ask(t, "WATCH", "a"))
	require.NoError(t, srv.Pause()) // it takes commands, and runs none
	under.send(t, "incr n\r\nget n\r\nping\r\n")
	watching.send(t, "multi\r\nset a 2\r\nexec\r\n")
	for _, want := range []string{"+OK\r\n", "+QUEUED\r\n"} {
		got, err := watching.reply()
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	require.NoError(t, srv.Kill())
	for range 2 {
		got, err := under.reply()
		require.NoError(t, err)
		assert.Contains(t, got, "-ERR the connection to Redis was lost while this command ran")
	}
	got, err := under.reply()
	require.NoError(t, err)
	assert.Equal(t, "+PONG\r\n", got)
	got, err = watching.reply()
	require.NoError(t, err)
	assert.Contains(t, got, "-ERR the connection to Redis was lost")
	_, err = watching.reply()
	require.Error(t, err, "what Redis kept for the connection is gone, so it ends")

	later.send(t, "get a\r\n") // it waits
	require.NoError(t, srv.Start(t.Context()))
	got, err = later.reply()
	require.NoError(t, err)
	assert.Equal(t, "$-1\r\n", got, "this Redis has forgotten everything")
	got = later.ask(t, "SET", "a", "1")
	assert.True(t, strings.HasPrefix(got, "-"), "no Sonic has opened this Redis: %s", got)
	got = later.ask(t, "EVAL", "return redis.call('SET', KEYS[1], 'x')", "1", "s")
	assert.Contains(t, got, "-LOADING Sonic has not opened this Redis yet")
	assert.Equal(t, ":0\r\n", later.ask(t, "EXISTS", "s"), "the script did not run")
	open(t, srv)
	assert.Equal(t, "+OK\r\n", later.ask(t, "EVAL", "return redis.call('SET', KEYS[1], 'x')", "1", "s"))
	assert.Equal(t, "+OK\r\n", later.ask(t, "SET", "a", "1"))
	assert.Equal(t, "$-1\r\n", later.ask(t, "GET", "n"), "INCR was not sent again")
}

// TestAScriptWithoutItsLibrary: the library is loaded anew, by another version of Sonic for one,
// while a client's connection has passed the fence. Its script runs, which Redis cannot prevent.
// The answer says so, rather than that nothing ran.
func TestAScriptWithoutItsLibrary(t *testing.T) {
	t.Parallel()
	srv := opened(t)
	e := start(t, srv, nil)
	c := dial(t, e.addr)
	set := func() string { return c.ask(t, "EVAL", "return redis.call('INCR', KEYS[1])", "1", "n") }
	require.Equal(t, ":1\r\n", set())
	require.NoError(t, script.Replace(t.Context(), srv.Client(t)))
	assert.Contains(t, set(), "-ERR the script ran while no Sonic had opened this Redis")
	assert.Contains(t, set(), "-LOADING Sonic has not opened this Redis yet", "the fence stands again")
	assert.Equal(t, "$1\r\n2\r\n", c.ask(t, "GET", "n"))
	open(t, srv)
	assert.Equal(t, ":3\r\n", set())
}

// TestRedisStaysUnavailable bounds how long commands wait.
func TestRedisStaysUnavailable(t *testing.T) {
	t.Parallel()
	srv := opened(t)
	e := start(t, srv, func(c *proxy.Config) { c.Backend.Wait = 100 * time.Millisecond })
	e.awaitReady(t)
	c := dial(t, e.addr)
	require.Equal(t, "$-1\r\n", c.ask(t, "GET", "a"))
	require.NoError(t, srv.Kill())
	require.Eventually(t, func() bool { return e.Ready() != nil }, await.Patience, time.Millisecond)
	for range 3 {
		c.send(t, "get a\r\nset a 1\r\n")
		for range 2 {
			got, err := c.reply()
			require.NoError(t, err)
			assert.Contains(t, got, "-LOADING Redis cannot be reached")
		}
	}
	assert.Equal(t, "+PONG\r\n", c.ask(t, "PING"))
	require.NoError(t, srv.Start(t.Context()))
	require.Eventually(t, func() bool { return e.Ready() == nil }, await.Patience, time.Millisecond)
	assert.Equal(t, "$-1\r\n", c.ask(t, "GET", "a"))
}

// TestBlockedClientsOutliveRedis: they wait on, at the next Redis.
func TestBlockedClientsOutliveRedis(t *testing.T) {
	t.Parallel()
	srv := opened(t)
	e := start(t, srv, nil)
	c := dial(t, e.addr)
	c.send(t, "blpop l 0\r\n")
	e.awaitBlocked(t, 1)
	e.awaitTracked(t, 1)
	other := dial(t, e.addr)
	for range 2 { // the try that follows the tracking has ended before the second reply: one under way would be answered with an error
		require.Equal(t, "$-1\r\n", other.ask(t, "GET", "none"))
	}
	require.NoError(t, srv.Kill())
	require.NoError(t, srv.Start(t.Context()))
	open(t, srv)
	e.awaitTracked(t, 1)
	require.NoError(t, srv.Client(t).RPush(t.Context(), "l", "a").Err())
	got, err := c.reply()
	require.NoError(t, err)
	assert.Equal(t, "*2\r\n$1\r\nl\r\n$1\r\na\r\n", got)
}

// TestRedisBecomesAReplica follows Resolve to the new primary.
func TestRedisBecomesAReplica(t *testing.T) {
	t.Parallel()
	old := opened(t)
	next := opened(t)
	var primary atomic.Pointer[stack.RedisServer]
	primary.Store(old)
	e := start(t, old, func(c *proxy.Config) {
		c.Backend.Resolve = func(context.Context) (string, error) { return primary.Load().Addr(), nil }
	})
	c := dial(t, e.addr)
	require.Equal(t, "+OK\r\n", c.ask(t, "SET", "a", "1"))
	primary.Store(next)
	old.Follow(t, next)
	require.Eventually(t, func() bool { return c.ask(t, "SET", "a", "2") == "+OK\r\n" }, await.Patience, 10*time.Millisecond)
	require.Equal(t, "2", next.Client(t).Get(t.Context(), "a").Val())
}
