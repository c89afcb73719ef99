package proxy_test

import (
	"errors"
	"io"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/proxy"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/access"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
	"github.com/aviaryhq/aviary/test/await"
)

func TestUsers(t *testing.T) {
	t.Parallel()
	e := start(t, opened(t), func(c *proxy.Config) {
		c.Users = []access.User{
			{Name: "default", Password: "secret"},
			{Name: "reader", Password: "r", ReadOnly: true, Keys: []string{"pub:"}},
		}
	})
	c := dial(t, e.addr)
	for _, row := range [][]string{
		{"-NOAUTH Authentication required.\r\n", "GET", "a"},
		{"-EXECABORT Transaction discarded because of: NOAUTH Authentication required.\r\n", "EXEC"},
		{"-ERR unknown command 'x', with args beginning with: \r\n", "x"},
		{"-WRONGPASS invalid username-password pair or user is disabled.\r\n", "AUTH", "wrong"},
		{"-WRONGPASS invalid username-password pair or user is disabled.\r\n", "AUTH", "nobody", "secret"},
		{"-NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option can be used " +
			"to authenticate the client and select the RESP protocol version at the same time\r\n", "HELLO", "3"},
		{"+OK\r\n", "AUTH", "secret"},
		{"+OK\r\n", "SET", "pub:a", "1"},
		{"+RESET\r\n", "RESET"},
		{"-NOAUTH Authentication required.\r\n", "GET", "a"},
		{"+OK\r\n", "AUTH", "reader", "r"},
		{"$6\r\nreader\r\n", "ACL", "WHOAMI"},
		{"$1\r\n1\r\n", "GET", "pub:a"},
		{"-NOPERM this user has no permissions to access one of the keys used as arguments\r\n", "MGET", "pub:a", "b"},
		{"-NOPERM this user has no permissions to access one of the keys used as arguments\r\n", "GET", "b"},
		{"-NOPERM this user has no permissions to run the 'set' command\r\n", "SET", "pub:a", "2"},
		{"-NOPERM this user has no permissions to run the 'eval' command\r\n", "EVAL", "x", "0"},
		{"+OK\r\n", "MULTI"},
		{"-NOPERM this user has no permissions to run the 'set' command\r\n", "SET", "pub:a", "2"},
		{"-EXECABORT Transaction discarded because of previous errors.\r\n", "EXEC"},
	} {
		require.Equal(t, row[0], c.ask(t, row[1:]...), "%q", row[1:])
	}
}

func TestStateKeysAreHidden(t *testing.T) {
	t.Parallel()
	e := start(t, opened(t), nil)
	c := dial(t, e.addr)
	require.Equal(t, "+OK\r\n", c.ask(t, "SET", "a", "1"))
	for _, words := range [][]string{
		{"GET", "{sonic:0}out"}, {"DEL", "a", "{sonic:0}ver"}, {"XRANGE", "{sonic:0}out", "-", "+"}, {"RENAME", "a", "{sonic:0}x"},
		{"EVAL", "return 1", "1", "{sonic:0}cur"}, {"SORT", "a", "STORE", "{sonic:0}x"}, {"XREAD", "STREAMS", "{sonic:0}out", "0"}, {"DUMP", "{sonic:0}meta"},
	} {
		require.Contains(t, c.ask(t, words...), "-NOPERM keys that begin with {sonic: belong to Sonic", "%q", words)
	}
	assert.Equal(t, "-ERR Function not found\r\n", c.ask(t, "FCALL", "sonic_set", "1", "a", "0", "a", "2"))
	assert.Equal(t, "-ERR Function not found\r\n", c.ask(t, "FCALL_RO", "SONIC_version", "0"))
	assert.Contains(t, c.ask(t, "FUNCTION", "LOAD", "REPLACE", "#!lua name=sonic\nredis.register_function('x', function() end)"), "-ERR Sonic refuses")
	assert.Equal(t, ":1\r\n", c.ask(t, "DBSIZE"))
	assert.Equal(t, "*1\r\n$1\r\na\r\n", c.ask(t, "KEYS", "*"))
	assert.Equal(t, "*2\r\n$1\r\n0\r\n*1\r\n$1\r\na\r\n", c.ask(t, "SCAN", "0", "COUNT", "1000"))
	for range 20 {
		require.Equal(t, "$1\r\na\r\n", c.ask(t, "RANDOMKEY"))
	}
	for range 20 {
		c.send(t, "multi\r\nrandomkey\r\nexec\r\n")
		for _, want := range []string{"+OK\r\n", "+QUEUED\r\n", "*1\r\n$1\r\na\r\n"} {
			got, err := c.reply()
			require.NoError(t, err)
			require.Equal(t, want, got)
		}
	}
	c.send(t, "multi\r\nkeys *\r\ndbsize\r\nexec\r\n")
	for _, want := range []string{"+OK\r\n", "+QUEUED\r\n", "+QUEUED\r\n", "*2\r\n*1\r\n$1\r\na\r\n:1\r\n"} {
		got, err := c.reply()
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for _, name := range []string{"FLUSHALL", "SHUTDOWN", "MONITOR", "SWAPDB 0 1", "CONFIG SET maxmemory 1", "DEBUG SLEEP 0", "WAIT 0 0"} {
		require.Contains(t, c.ask(t, strings.Fields(name)...), "-ERR Sonic refuses", name)
	}
}

func TestLimits(t *testing.T) {
	t.Parallel()
	e := start(t, opened(t), func(c *proxy.Config) {
		c.Limits = proxy.Limits{Clients: 2, BulkBytes: 1000, Arguments: 20, OutputBytes: 8 << 20, QueryBytes: 3000}
	})
	c := dial(t, e.addr)
	require.Equal(t, "+PONG\r\n", c.ask(t, "PING"))
	_ = dial(t, e.addr)
	third := dial(t, e.addr)
	got, err := third.reply()
	require.NoError(t, err)
	assert.Equal(t, "-ERR max number of clients reached\r\n", got)
	require.Equal(t, "-ERR Protocol error: invalid bulk length\r\n", c.ask(t, "SET", "a", strings.Repeat("x", 1001)))
	_, err = c.reply()
	require.ErrorIs(t, err, io.EOF)
	require.Eventually(t, func() bool {
		c = dial(t, e.addr)
		c.send(t, "*21\r\n")
		got, _ := c.reply()
		return got == "-ERR Protocol error: invalid multibulk length\r\n"
	}, await.Patience, 10*time.Millisecond)
}

func TestLimitsBeforeLogin(t *testing.T) {
	t.Parallel()
	srv := opened(t)
	users := []access.User{{Name: "default", Password: "secret"}}
	patient := start(t, srv, func(c *proxy.Config) { c.Users, c.Limits.AuthTimeout = users, await.Patience })
	for text, want := range map[string]string{
		"*11\r\n":          "-ERR Protocol error: unauthenticated multibulk length\r\n",
		"*1\r\n$16385\r\n": "-ERR Protocol error: unauthenticated bulk length\r\n",
	} {
		c := dial(t, patient.addr)
		c.send(t, text)
		got, err := c.reply()
		require.NoError(t, err)
		require.Equal(t, want, got)
	}

	const limit = 200 * time.Millisecond
	e := start(t, srv, func(c *proxy.Config) { c.Users, c.Limits.AuthTimeout = users, limit })
	_, err := dial(t, e.addr).reply()
	require.ErrorIs(t, err, io.EOF, "it did not log in in time")
	inTime(t, func() bool {
		c := dial(t, e.addr)
		_, _ = c.Write(resp.AppendCommand(nil, "AUTH", "secret"))
		if got, err := c.reply(); err != nil || got != "+OK\r\n" {
			return false
		}
		require.NoError(t, c.SetReadDeadline(time.Now().Add(2*limit)))
		_, err := c.reply()
		require.ErrorIs(t, err, os.ErrDeadlineExceeded, "who has logged in stays")
		return true
	})
}

// TestClientThatNeverReads is not read on, others are served, and memory stays bounded.
func TestClientThatNeverReads(t *testing.T) {
	e := start(t, opened(t), nil)
	other := dial(t, e.addr)
	require.Equal(t, "+OK\r\n", other.ask(t, "SET", "a", strings.Repeat("x", 100_000)))
	deaf := dial(t, e.addr)
	require.NoError(t, deaf.SetWriteDeadline(time.Now().Add(time.Second)))
	text := []byte(strings.Repeat("get a\r\n", 1000))
	var err error
	for err == nil {
		_, err = deaf.Write(text)
	}
	require.ErrorContains(t, err, "timeout", "it cannot send on")
	var stats runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&stats)
	assert.Less(t, stats.HeapAlloc, uint64(256<<20), "what is due is bounded by the commands in flight")
	for range 100 {
		require.Equal(t, "+PONG\r\n", other.ask(t, "PING"))
		require.Len(t, other.ask(t, "GET", "a"), 100_000+11)
	}
}

// TestClientBeyondItsOutput is disconnected.
func TestClientBeyondItsOutput(t *testing.T) {
	t.Parallel()
	e := start(t, opened(t), func(c *proxy.Config) { c.Limits.OutputBytes = 1 << 20 })
	other, deaf := dial(t, e.addr), dial(t, e.addr)
	require.Equal(t, "+OK\r\n", other.ask(t, "SET", "a", strings.Repeat("x", 100_000)))
	deaf.send(t, strings.Repeat("get a\r\n", 500))
	n, err := io.Copy(io.Discard, onlyAfter{deaf, other, t})
	_ = err // reset or the end
	assert.Less(t, n, int64(500*100_000))
	require.Equal(t, "+PONG\r\n", other.ask(t, "PING"))
}

// TestRepliesBeyondTheOutputAreNotKept: those that the endpoint reads as a whole, of a transaction
// or a script, end their client before they are in memory.
func TestRepliesBeyondTheOutputAreNotKept(t *testing.T) {
	e := start(t, opened(t), func(c *proxy.Config) { c.Limits.OutputBytes = 2 << 20 })
	other := dial(t, e.addr)
	require.Equal(t, "+OK\r\n", other.ask(t, "SET", "a", strings.Repeat("x", 1<<20)))
	for _, text := range []string{
		"multi\r\n" + strings.Repeat("get a\r\n", 64) + "exec\r\n",
		"eval \"return string.rep('x', 64 * 1024 * 1024)\" 1 a\r\n",
		"watch a\r\nmulti\r\n" + strings.Repeat("get a\r\n", 64) + "exec\r\n",
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		c := dial(t, e.addr)
		c.send(t, text)
		for err := error(nil); err == nil; {
			_, err = c.reply()
		}
		for _, want := range []string{"$1\r\n1\r\n", "*0\r\n"} { // behind it on the same connection
			require.Equal(t, want, other.ask(t, "EVAL", map[bool]string{true: "return '1'", false: "return {}"}[want[0] == '$'], "1", "b"))
		}
		runtime.ReadMemStats(&after)
		assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(32<<20), "%.30q", text)
	}
}

// onlyAfter reads once the other client sees that the first one is gone.
type onlyAfter struct {
	*connection
	other *connection
	t     *testing.T
}

func (o onlyAfter) Read(b []byte) (int, error) {
	require.Eventually(o.t, func() bool { return strings.Count(o.other.ask(o.t, "CLIENT", "LIST"), "id=") == 1 }, await.Patience, time.Millisecond)
	return o.Conn.Read(b)
}

func TestLargeValues(t *testing.T) {
	t.Parallel()
	e := start(t, opened(t), nil)
	c := dial(t, e.addr)
	value := strings.Repeat("0123456789abcdef", 4<<20/16)
	for range 3 {
		require.Equal(t, "+OK\r\n", c.ask(t, "SET", "a", value))
		require.Equal(t, string(resp.AppendBulk(nil, value)), c.ask(t, "GET", "a"))
	}
}

// TestCommandsInPieces sends single bytes.
func TestCommandsInPieces(t *testing.T) {
	t.Parallel()
	e := start(t, opened(t), nil)
	c := dial(t, e.addr)
	for _, b := range resp.AppendCommand(nil, "SET", "a", "hello") {
		c.send(t, string(b))
	}
	got, err := c.reply()
	require.NoError(t, err)
	require.Equal(t, "+OK\r\n", got)
	c.send(t, "*2\r\n$3\r\nGE")
	require.Equal(t, "+PONG\r\n", dial(t, e.addr).ask(t, "PING"), "others are served meanwhile")
	c.send(t, "T\r\n$1\r\na\r\n")
	got, err = c.reply()
	require.NoError(t, err)
	require.Equal(t, "$5\r\nhello\r\n", got)
	half := dial(t, e.addr)
	half.send(t, "get a\r\n*2\r\n$3\r\nGET\r\n$1")
	require.NoError(t, half.Close())
}

// TestHalfClosed still gets its replies, as from a shell's pipe.
func TestHalfClosed(t *testing.T) {
	t.Parallel()
	e := start(t, opened(t), nil)
	c := dial(t, e.addr)
	c.send(t, "set a 1\r\nget a\r\n")
	half, ok := c.Conn.(interface{ CloseWrite() error })
	require.True(t, ok)
	require.NoError(t, half.CloseWrite())
	all, err := io.ReadAll(c)
	require.NoError(t, err)
	require.Equal(t, "+OK\r\n$1\r\n1\r\n", string(all))
}

func TestIdleTimeout(t *testing.T) {
	t.Parallel()
	e := start(t, opened(t), func(c *proxy.Config) { c.Limits.IdleTimeout = 200 * time.Millisecond })
	inTime(t, func() bool {
		c := dial(t, e.addr)
		_, _ = c.Write([]byte("ping\r\n"))
		if got, err := c.reply(); err != nil || got != "+PONG\r\n" {
			return false
		}
		_, err := c.reply()
		require.ErrorIs(t, err, io.EOF)
		return true
	})
	inTime(t, func() bool {
		blocked := dial(t, e.addr)
		_, _ = blocked.Write([]byte("blpop l 0.6\r\n"))
		got, _ := blocked.reply()
		return got == "*-1\r\n" // who waits is not idle
	})
}

// TestWhoWaitsForPulsarIsNotIdle: for the outbox to have room, or for a write to be stored.
func TestWhoWaitsForPulsarIsNotIdle(t *testing.T) {
	t.Parallel()
	const idle = 100 * time.Millisecond
	for _, published := range []bool{false, true} {
		e := start(t, opened(t), func(c *proxy.Config) { c.Limits.IdleTimeout, c.AckPublished = idle, published })
		if !published {
			e.SetWriteMode(proxy.WritesDelayed, "")
		}
		var c *connection
		inTime(t, func() bool {
			c = dial(t, e.addr)
			_, _ = c.Write([]byte("set a 1\r\n"))
			require.NoError(t, c.SetReadDeadline(time.Now().Add(4*idle)))
			_, err := c.reply()
			return errors.Is(err, os.ErrDeadlineExceeded) // it waits
		})
		require.NoError(t, c.SetReadDeadline(time.Now().Add(await.Patience)))
		if !published {
			e.SetWriteMode(proxy.WritesOpen, "")
		} else {
			e.Published("9000000000000-0")
		}
		got, err := c.reply()
		require.NoError(t, err)
		require.Equal(t, "+OK\r\n", got)
		_, err = c.reply()
		require.ErrorIs(t, err, io.EOF, "now it is")
	}
}
