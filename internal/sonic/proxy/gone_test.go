package proxy_test

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/proxy"
	"github.com/aviaryhq/aviary/test/await"
)

// end has the client say that it sends no more.
func (c *connection) end(t *testing.T) {
	t.Helper()
	half, ok := c.Conn.(*net.TCPConn)
	require.True(t, ok)
	require.NoError(t, half.CloseWrite())
}

// newcomer returns a client that the endpoint knows already.
func newcomer(t *testing.T, e *endpoint) *connection {
	t.Helper()
	c := dial(t, e.addr)
	require.Equal(t, "+PONG\r\n", c.ask(t, "PING"))
	return c
}

// awaitAlone waits until c is the only client.
func awaitAlone(t *testing.T, c *connection) {
	t.Helper()
	require.Eventually(t, func() bool { return strings.Count(c.ask(t, "CLIENT", "LIST"), "id=") == 1 }, await.Patience, 5*time.Millisecond)
}

// TestWritersThatGiveUp while writes wait, or while Pulsar holds their replies up, leave nothing:
// they would take the places of others for as long as Pulsar is unavailable.
func TestWritersThatGiveUp(t *testing.T) {
	t.Parallel()
	e := start(t, opened(t), nil)
	c := dial(t, e.addr)
	e.SetWriteMode(proxy.WritesDelayed, "")
	for _, text := range []string{"set a 1\r\n", "multi\r\nset a 1\r\nexec\r\n", "blpop l 0\r\n", "eval \"return 1\" 1 a\r\n"} {
		before := newcomer(t, e)
		before.send(t, text)
		require.Equal(t, "$-1\r\n", c.ask(t, "GET", "a"))
		before.end(t)
		awaitAlone(t, c)
		at := newcomer(t, e)
		at.send(t, text)
		at.end(t)
		awaitAlone(t, c)
	}
	e.SetWriteMode(proxy.WritesOpen, "")
	require.Equal(t, ":0\r\n", c.ask(t, "EXISTS", "a"), "none of them was run")

	held := start(t, opened(t), func(c *proxy.Config) { c.AckPublished, c.DrainTimeout = true, 300*time.Millisecond })
	c = dial(t, held.addr)
	writer := newcomer(t, held)
	writer.send(t, "set a 1\r\n")
	writer.end(t)
	awaitAlone(t, c)
	require.Equal(t, "$1\r\n1\r\n", c.ask(t, "GET", "a"))
	patient := start(t, held.redis, func(c *proxy.Config) { c.AckPublished, c.DrainTimeout = true, await.Patience })
	writer = newcomer(t, patient)
	writer.send(t, "set a 2\r\n")
	writer.end(t)
	require.Eventually(t, func() bool { return c.ask(t, "GET", "a") == "$1\r\n2\r\n" }, await.Patience, time.Millisecond)
	patient.Published("99999999999999-0")
	got, err := io.ReadAll(writer)
	require.NoError(t, err)
	require.Equal(t, "+OK\r\n", string(got), "it is in time")
}

// TestBlockedClientsThatAreGone take no element, also when they were gone before they were blocked.
func TestBlockedClientsThatAreGone(t *testing.T) {
	t.Parallel()
	e := start(t, opened(t), nil)
	c := dial(t, e.addr)
	require.Equal(t, "$-1\r\n", c.ask(t, "GET", "a"))
	for _, text := range []string{"get a\r\nselect 0\r\nget a\r\nblpop l 0\r\n", "get a\r\nselect 1\r\nselect 0\r\nblpop l 0\r\n", "get a\r\nxread block 0 streams s $\r\n"} {
		require.NoError(t, e.redis.Pause())
		gone := newcomer(t, e)
		gone.send(t, text)
		gone.end(t)
		require.Equal(t, "+PONG\r\n", c.ask(t, "PING"))
		require.NoError(t, e.redis.Resume())
		awaitAlone(t, c)
	}
	require.Equal(t, ":1\r\n", c.ask(t, "RPUSH", "l", "x"))
	require.Equal(t, ":1\r\n", c.ask(t, "LLEN", "l"))
	last := newcomer(t, e)
	last.send(t, "blpop l 0\r\n")
	last.end(t)
	got, err := io.ReadAll(last)
	require.NoError(t, err)
	require.Equal(t, "*2\r\n$1\r\nl\r\n$1\r\nx\r\n", string(got), "who need not wait is served, as by Redis")
}

// TestNoRoomForOwnConnections: Redis takes no more connections. Who needs one of its own gets an
// error, and all others are served.
func TestNoRoomForOwnConnections(t *testing.T) {
	t.Parallel()
	srv := opened(t)
	direct := dial(t, srv.Addr())
	e := start(t, srv, func(c *proxy.Config) { c.Backend.Wait = 200 * time.Millisecond })
	e.awaitReady(t)
	c := dial(t, e.addr)
	require.Equal(t, "$-1\r\n", c.ask(t, "GET", "a"))
	require.Equal(t, "+OK\r\n", direct.ask(t, "CONFIG", "SET", "maxclients", "1"))
	for _, text := range []string{"subscribe a\r\n", "watch a\r\n", "select 3\r\nget a\r\n"} {
		greedy := dial(t, e.addr)
		greedy.send(t, text)
		got, err := greedy.reply()
		if strings.HasPrefix(got, "+OK") {
			got, err = greedy.reply()
		}
		require.NoError(t, err)
		require.Contains(t, got, "-LOADING", text)
		require.NoError(t, e.Ready(), text)
		require.Equal(t, "$-1\r\n", c.ask(t, "GET", "a"))
	}
}

// TestBrowsersAreDisconnected: a web page could have its reader's browser send commands within a
// request.
func TestBrowsersAreDisconnected(t *testing.T) {
	t.Parallel()
	e := start(t, opened(t), nil)
	for _, text := range []string{"POST / HTTP/1.1\r\nHost: localhost\r\n\r\nset a 1\r\n", "GET / HTTP/1.1\r\nHost: localhost\r\n\r\nset a 1\r\n"} {
		c := dial(t, e.addr)
		c.send(t, text)
		all, _ := io.ReadAll(c)
		require.NotContains(t, string(all), "OK")
	}
	require.Equal(t, ":0\r\n", dial(t, e.addr).ask(t, "EXISTS", "a"))
}

// TestClientsByKind: CLIENT LIST and CLIENT KILL choose as in Redis.
func TestClientsByKind(t *testing.T) {
	t.Parallel()
	e := start(t, opened(t), nil)
	c, sub := dial(t, e.addr), dial(t, e.addr)
	sub.ask(t, "SUBSCRIBE", "a")
	list := func(kind string) int { return strings.Count(c.ask(t, "CLIENT", "LIST", "TYPE", kind), "id=") }
	require.Equal(t, 1, list("pubsub"))
	require.Equal(t, 1, list("NORMAL"))
	require.Equal(t, 0, list("master"))
	require.Equal(t, 0, list("slave"))
	for _, words := range [][]string{{"TYPE", "replica"}, {"ID", "99"}, {"ADDR", c.LocalAddr().String()}, {"USER", "default", "TYPE", "normal"}} {
		require.Equal(t, ":0\r\n", c.ask(t, append([]string{"CLIENT", "KILL"}, words...)...), "%q", words)
	}
	require.Equal(t, "-ERR syntax error\r\n", c.ask(t, "CLIENT", "KILL", "ID", "1", "TYPE"))
	require.Equal(t, "-ERR No such user 'x'\r\n", c.ask(t, "CLIENT", "KILL", "USER", "x"))
	require.Equal(t, ":1\r\n", c.ask(t, "CLIENT", "KILL", "TYPE", "pubsub", "SKIPME", "no"))
	_, err := sub.reply()
	require.Error(t, err)
	require.Equal(t, ":1\r\n", c.ask(t, "CLIENT", "KILL", "LADDR", c.RemoteAddr().String(), "SKIPME", "no"))
	_, err = c.reply()
	require.ErrorIs(t, err, io.EOF)
}

// TestReadsWithinTransactions: SORT and GEORADIUS that store nothing are those of Redis, with the
// types of RESP3.
func TestReadsWithinTransactions(t *testing.T) {
	t.Parallel()
	e := start(t, opened(t), nil)
	c := dial(t, e.addr)
	c.ask(t, "HELLO", "3")
	c.ask(t, "GEOADD", "g", "13.361389", "38.115556", "a")
	c.ask(t, "SADD", "s", "2", "1", "b", "3")
	for _, words := range [][]string{
		{"GEORADIUS", "g", "13", "38", "200", "km", "WITHCOORD", "WITHDIST"}, {"GEORADIUSBYMEMBER", "g", "a", "1", "km", "WITHCOORD"}, {"SORT", "s", "BY", "nosort"},
	} {
		want := c.ask(t, words...)
		require.Equal(t, "+OK\r\n", c.ask(t, "MULTI"))
		require.Equal(t, "+QUEUED\r\n", c.ask(t, words...))
		require.Equal(t, "*1\r\n"+want, c.ask(t, "EXEC"), "%q", words)
	}
	require.Equal(t, "+OK\r\n", c.ask(t, "MULTI"))
	require.Equal(t, "+QUEUED\r\n", c.ask(t, "SORT", "s", "ALPHA", "STORE", "l"))
	require.Equal(t, "*1\r\n:4\r\n", c.ask(t, "EXEC"))
}
