package proxy_test

import (
	"bytes"
	"fmt"
	"net"
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

// TestStateKeysCannotBeWritten: Redis takes the last of several STORE, and reads names of options
// up to a zero byte.
func TestStateKeysCannotBeWritten(t *testing.T) {
	t.Parallel()
	e := start(t, opened(t), nil)
	c := dial(t, e.addr)
	require.Equal(t, ":1\r\n", c.ask(t, "GEOADD", "g", "1", "1", "m"))
	require.Equal(t, ":1\r\n", c.ask(t, "RPUSH", "l", "1"))
	for _, words := range [][]string{
		{"GEORADIUS", "g", "1", "1", "1", "km", "STORE", "a", "STORE", "{sonic:0}out"},
		{"GEORADIUSBYMEMBER", "g", "m", "1", "km", "STORE", "a", "STOREDIST", "{sonic:0}out"},
		{"SORT", "l", "STORE", "a", "STORE", "{sonic:0}out"},
		{"XREADGROUP", "COUNT", "1", "GROUP", "g", "STREAMS", "STREAMS", "{sonic:0}out", ">"},
	} {
		require.Contains(t, c.ask(t, words...), "-NOPERM keys that begin with {sonic:", "%q", words)
	}
	for _, words := range [][]string{
		{"SORT", "l", "STORE\x00", "{sonic:0}out"}, {"SORT", "l", "STORE\x00x", "a"}, {"GEORADIUS", "g", "1", "1", "1", "km", "STORE\x00", "a"},
		{"SET", "k", "v", "GET\x00"}, {"ZADD", "z", "GT\x00", "1", "m"}, {"COPY", "l", "k", "DB\x00", "1"}, {"XREAD", "BLOCK\x00", "0", "STREAMS", "s", "$"},
	} {
		require.Equal(t, "-ERR syntax error\r\n", c.ask(t, words...), "%q", words)
	}
	require.Equal(t, ":0\r\n", c.ask(t, "EXISTS", "a", "k", "z"))
	require.Equal(t, ":1\r\n", c.ask(t, "ZADD", "z", "1", "gt\x00"), "it is a value")
	kind, err := e.redis.Client(t).Type(t.Context(), "{sonic:0}out").Result()
	require.NoError(t, err)
	require.Equal(t, "stream", kind)
}

// TestOptionsThatOnlyRedisReads: taken for another one by the library, such a word would have other
// zones trim otherwise, or pop from the other end.
func TestOptionsThatOnlyRedisReads(t *testing.T) {
	t.Parallel()
	e := start(t, opened(t), nil)
	c := dial(t, e.addr)
	require.Equal(t, ":3\r\n", c.ask(t, "RPUSH", "l", "a", "b", "c"))
	require.Equal(t, ":2\r\n", c.ask(t, "RPUSH", "left\x00", "a", "b"))
	for _, words := range [][]string{
		{"LMOVE", "l", "d", "LEFT\x00", "RIGHT"}, {"LMOVE", "l", "d", "LEFT", "right\x00x"}, {"BLMOVE", "l", "d", "LEFT", "LEFT\x00", "0"},
		{"LMPOP", "1", "l", "LEFT\x00"}, {"LMPOP", "2", "left\x00", "l", "left\x00"}, {"BLMPOP", "0", "1", "l", "LEFT\x00", "COUNT", "2"},
		{"XADD", "s", "MAXLEN\x00", "2", "*", "f", "v"}, {"XADD", "s", "MAXLEN", "~\x00", "2", "*", "f", "v"}, {"XADD", "s", "NOMKSTREAM\x00", "*", "f", "v"},
		{"XADD", "s", "MAXLEN", "=", "2", "nomkstream\x00", "*", "f", "v"}, {"XADD", "s", "MINID", "~", "2", "LIMIT\x00", "2", "*", "f", "v"},
	} {
		require.Equal(t, "-ERR syntax error\r\n", c.ask(t, words...), "%q", words)
		require.Equal(t, "+OK\r\n", c.ask(t, "MULTI"))
		require.Equal(t, "-ERR syntax error\r\n", c.ask(t, words...), "%q", words)
		require.Contains(t, c.ask(t, "EXEC"), "-EXECABORT")
	}
	require.Equal(t, ":0\r\n", c.ask(t, "EXISTS", "d", "s"))
	require.Equal(t, ":3\r\n", c.ask(t, "LLEN", "l"))
	require.Equal(t, "$3\r\n1-1\r\n", c.ask(t, "XADD", "s", "MAXLEN", "~", "2", "1-1", "maxlen\x00", "=\x00", "nomkstream\x00", "v"), "they are values")
	require.Equal(t, "*2\r\n$5\r\nleft\x00\r\n*1\r\n$1\r\na\r\n", c.ask(t, "LMPOP", "1", "left\x00", "LEFT"), "it is a key")
	require.Equal(t, "$1\r\na\r\n", c.ask(t, "LMOVE", "l", "left\x00", "LEFT", "RIGHT"))
}

// TestLibraryIsOutOfReach: within a transaction, and by names in quotes, too.
func TestLibraryIsOutOfReach(t *testing.T) {
	t.Parallel()
	e := start(t, opened(t), nil)
	c := dial(t, e.addr)
	const body = "\nredis.register_function('f', function() return 1 end)"
	for _, words := range [][]string{
		{"FUNCTION", "DELETE", "sonic"}, {"FUNCTION", "LOAD", "REPLACE", "#!lua name=sonic" + body}, {"FUNCTION", "LOAD", "REPLACE", `#!lua name="sonic"` + body},
		{"FUNCTION", "LOAD", "REPLACE", `#!lua "NAME=sonic"` + body}, {"FUNCTION", "DELETE", "SONIC"}, {"FUNCTION", "RESTORE", "x", "APPEND"},
		{"FUNCTION", "LOAD", "#!lua name=x\nredis.register_function('Sonic_later', function() return 1 end)"},
		{"FUNCTION", "LOAD", "#!lua name=x\nredis.register_function {\n['function_name'] = [[SONIC_later]], callback = function() return 1 end}"},
		{"FUNCTION", "LOAD", "#!lua name=x\nredis.register_function{callback = function() return 1 end, function_name=\"sonic_later\"}"}, {"FCALL_RO", "sonic_state", "0"}, {"FCALL", "Sonic_set", "0"},
	} {
		require.Equal(t, "-ERR", c.ask(t, words...)[:4], "%q", words)
		require.Equal(t, "+OK\r\n", c.ask(t, "MULTI"))
		require.Equal(t, "-ERR", c.ask(t, words...)[:4], "%q", words)
		require.Contains(t, c.ask(t, "EXEC"), "-EXECABORT")
		require.Equal(t, "+OK\r\n", c.ask(t, "SET", "a", "1"), "%q", words)
	}
	require.Equal(t, "$5\r\nother\r\n", c.ask(t, "FUNCTION", "LOAD", "#!lua name=other"+body+"\nlocal key = 'sonic_key'"))
}

// TestNobodyStopsTheSharedConnection: what one client sends neither blocks nor ends the connection
// of all.
func TestNobodyStopsTheSharedConnection(t *testing.T) {
	t.Parallel()
	e := start(t, opened(t), nil)
	c, other := dial(t, e.addr), dial(t, e.addr)
	require.Equal(t, "+OK\r\n", c.ask(t, "XGROUP", "CREATE", "s", "streams", "$", "MKSTREAM"))
	c.send(t, string(resp.AppendCommand(nil, "XREADGROUP", "GROUP", "streams", "c", "BLOCK", "0", "STREAMS", "s", ">")))
	e.awaitOwnBlocked(t)
	require.Equal(t, "$-1\r\n", other.ask(t, "GET", "a"))
	require.Contains(t, other.ask(t, "XADD", "s", "1-1", "f", "v"), "1-1")
	got, err := c.reply()
	require.NoError(t, err)
	require.Contains(t, got, "1-1")

	id := e.redisClientID(t)
	deep := c.ask(t, "EVAL", "local t = 1 for i = 1, 500 do t = {t} end return t", "0")
	require.Equal(t, strings.Repeat("*1\r\n", 500)+":1\r\n", deep)
	long := c.ask(t, "EVAL", "return redis.error_reply('X ' .. string.rep('x', 3000000))", "0")
	require.Len(t, long, len("-X \r\n")+3_000_000)
	require.Equal(t, id, e.redisClientID(t), "the shared connection is another one")
}

// redisClientID returns Redis' number of the connection that clients share.
func (e *endpoint) redisClientID(t *testing.T) string {
	t.Helper()
	list, err := e.redis.Client(t).ClientList(t.Context()).Result()
	require.NoError(t, err)
	for line := range strings.Lines(list) {
		if strings.Contains(line, "name=sonic ") && strings.Contains(line, "resp=2") && !strings.Contains(line, "cmd=xreadgroup") {
			return strings.Fields(line)[0]
		}
	}
	return ""
}

// awaitOwnBlocked waits until Redis itself lets one connection wait.
func (e *endpoint) awaitOwnBlocked(t *testing.T) {
	t.Helper()
	client := e.redis.Client(t)
	require.Eventually(t, func() bool {
		info, err := client.InfoMap(t.Context(), "clients").Result()
		return err == nil && info["Clients"]["blocked_clients"] == "1"
	}, await.Patience, time.Millisecond)
}

// TestHalfClosedClientIsServed: one that has sent all it wants to send gets all replies, however
// many.
func TestHalfClosedClientIsServed(t *testing.T) {
	t.Parallel()
	e := start(t, opened(t), nil)
	c := dial(t, e.addr)
	const n = 50_000
	go func() {
		_, _ = c.Write(bytes.Repeat(resp.AppendCommand(nil, "INCR", "n"), n))
		_ = c.Conn.(*net.TCPConn).CloseWrite()
	}()
	for i := range n {
		got, err := c.reply()
		require.NoError(t, err, "reply %d", i)
		require.Equal(t, fmt.Sprintf(":%d\r\n", i+1), got)
	}
	_, err := c.reply()
	require.Error(t, err, "the endpoint closes it then")
}

// TestScriptsRefuseCounters: what a script does to a counter cannot be shipped.
func TestScriptsRefuseCounters(t *testing.T) {
	t.Parallel()
	e := start(t, opened(t), func(c *proxy.Config) { c.Counter = func(key []byte) bool { return bytes.HasPrefix(key, []byte("n:")) } })
	c := dial(t, e.addr)
	require.Contains(t, c.ask(t, "EVAL", "return redis.call('INCR', KEYS[2])", "2", "a", "n:1"), "-SONICREFUSED EVAL is not for counter keys")
	require.Equal(t, ":0\r\n", c.ask(t, "EXISTS", "n:1"))
	require.Equal(t, ":1\r\n", c.ask(t, "EVAL", "return redis.call('INCR', KEYS[1])", "1", "a"))
}

// TestUsersOfSomeKeys: neither scripts nor patterns reach other keys.
func TestUsersOfSomeKeys(t *testing.T) {
	t.Parallel()
	e := start(t, opened(t), func(c *proxy.Config) {
		c.Users = []access.User{{Name: "some", Password: "s", Keys: []string{"a:"}}, {Name: "all", Password: "s"}}
	})
	c, all := dial(t, e.addr), dial(t, e.addr)
	require.Equal(t, "+OK\r\n", c.ask(t, "AUTH", "some", "s"))
	require.Equal(t, "+OK\r\n", all.ask(t, "AUTH", "all", "s"))
	require.Equal(t, "+OK\r\n", all.ask(t, "SET", "b:1", "secret"))
	require.Equal(t, ":1\r\n", c.ask(t, "RPUSH", "a:l", "b:1"))
	for _, words := range [][]string{
		{"SORT", "a:l", "BY", "nosort", "GET", "*"}, {"SORT_RO", "a:l", "BY", "*"}, {"EVAL", "return redis.call('GET', 'b:1')", "0"}, {"EVAL_RO", "x", "0"},
		{"FCALL_RO", "f", "0"}, {"XREADGROUP", "COUNT", "1", "GROUP", "streams", "c", "STREAMS", "b:s", ">"},
		{"GEORADIUS", "a:g", "1", "1", "1", "km", "STORE", "a:x", "STORE", "b:x"},
	} {
		got := c.ask(t, words...)
		assert.True(t, strings.HasPrefix(got, "-NOPERM") || strings.Contains(got, "insufficient ACL permissions"), "%q: %s", words, got)
	}
	require.Equal(t, "*1\r\n$3\r\nb:1\r\n", c.ask(t, "SORT", "a:l", "ALPHA"))
}

// TestWritesThatWaitedAreRefusedToo: transactions that were queued, and clients that were blocked,
// before the outbox was full.
func TestWritesThatWaitedAreRefusedToo(t *testing.T) {
	t.Parallel()
	e := start(t, opened(t), nil)
	tx, blocked, c := dial(t, e.addr), dial(t, e.addr), dial(t, e.addr)
	tx.send(t, "multi\r\nset a 1\r\n")
	for range 2 {
		_, err := tx.reply()
		require.NoError(t, err)
	}
	blocked.send(t, "blpop l 0\r\n")
	e.awaitTracked(t, 1)
	e.SetWriteMode(proxy.WritesDelayed, "")
	tx.send(t, "exec\r\n")
	// What other zones push wakes clients up, too.
	direct := e.redis.Client(t)
	require.NoError(t, direct.RPush(t.Context(), "l", "x").Err())
	require.Equal(t, "+PONG\r\n", c.ask(t, "PING"))
	require.Equal(t, ":0\r\n", c.ask(t, "EXISTS", "a"))
	require.Equal(t, ":1\r\n", c.ask(t, "LLEN", "l"))
	require.Equal(t, "+OK\r\n", c.ask(t, "MULTI"))
	require.Equal(t, "+QUEUED\r\n", c.ask(t, "SET", "b", "1"), "it waits at EXEC")
	e.SetWriteMode(proxy.WritesOpen, "")
	got, err := tx.reply()
	require.NoError(t, err)
	require.Equal(t, "*1\r\n+OK\r\n", got)
	got, err = blocked.reply()
	require.NoError(t, err)
	require.Equal(t, "*2\r\n$1\r\nl\r\n$1\r\nx\r\n", got)

	blocked.send(t, "blpop l 0\r\n")
	e.awaitTracked(t, 1)
	e.SetWriteMode(proxy.WritesRefused, "the outbox is full")
	require.Equal(t, "-EXECABORT Transaction discarded because of: ERR Sonic takes no writes: the outbox is full\r\n", c.ask(t, "EXEC"))
	require.Equal(t, "$-1\r\n", c.ask(t, "GET", "b"))
	require.NoError(t, direct.RPush(t.Context(), "l", "y").Err())
	got, err = blocked.reply()
	require.NoError(t, err)
	require.Equal(t, "-ERR Sonic takes no writes: the outbox is full\r\n", got)
	require.Equal(t, ":1\r\n", c.ask(t, "LLEN", "l"))
}

// TestWakeUpPassesTypes: who waits for a list does not keep one from waking who waits for a sorted
// set under the same key.
func TestWakeUpPassesTypes(t *testing.T) {
	t.Parallel()
	e := start(t, opened(t), nil)
	list, set, c := dial(t, e.addr), dial(t, e.addr), dial(t, e.addr)
	list.send(t, "blpop k 0\r\n")
	e.awaitTracked(t, 1)
	set.send(t, "bzpopmin other k 0\r\n")
	e.awaitTracked(t, 2)
	require.Equal(t, ":1\r\n", c.ask(t, "ZADD", "k", "1", "m"))
	got, err := set.reply()
	require.NoError(t, err)
	require.Equal(t, "*3\r\n$1\r\nk\r\n$1\r\nm\r\n$1\r\n1\r\n", got)
	require.Equal(t, ":1\r\n", c.ask(t, "RPUSH", "k", "x"))
	got, err = list.reply()
	require.NoError(t, err)
	require.Equal(t, "*2\r\n$1\r\nk\r\n$1\r\nx\r\n", got)
}

// TestTransactionsInOtherDatabases: state keys are hidden where they are, and only there.
func TestTransactionsInOtherDatabases(t *testing.T) {
	t.Parallel()
	e := start(t, opened(t), nil)
	c := dial(t, e.addr)
	require.Equal(t, "+OK\r\n", c.ask(t, "SET", "a", "1"))
	require.Equal(t, ":1\r\n", c.ask(t, "DBSIZE"))
	require.NoError(t, e.redis.Client(t).HSet(t.Context(), "{sonic:0}boot", "f", "v").Err(), "a bootstrap leaves it")
	require.Equal(t, ":1\r\n", c.ask(t, "DBSIZE"))
	require.Equal(t, "+OK\r\n", c.ask(t, "SELECT", "1"))
	require.Equal(t, "+OK\r\n", c.ask(t, "SET", "b", "1"))
	run := func(words ...[]string) string {
		require.Equal(t, "+OK\r\n", c.ask(t, "MULTI"))
		for _, one := range words {
			require.Equal(t, "+QUEUED\r\n", c.ask(t, one...))
		}
		return c.ask(t, "EXEC")
	}
	require.Equal(t, "*3\r\n:1\r\n+OK\r\n*1\r\n$1\r\na\r\n", run([]string{"DBSIZE"}, []string{"SELECT", "0"}, []string{"KEYS", "*"}))
	require.Equal(t, "*2\r\n+OK\r\n:1\r\n", run([]string{"SELECT", "1"}, []string{"DBSIZE"}))
	require.Equal(t, "*3\r\n-ERR DB index is out of range\r\n-ERR value is not an integer or out of range\r\n$1\r\n1\r\n",
		run([]string{"SELECT", "99"}, []string{"SELECT", "x"}, []string{"GET", "b"}))
}

// TestProtocolChangesAmongMessages: messages that are in flight while a subscriber changes its
// protocol are not taken for replies.
func TestProtocolChangesAmongMessages(t *testing.T) {
	t.Parallel()
	e := start(t, opened(t), nil)
	c, pub := dial(t, e.addr), dial(t, e.redis.Addr())
	c.ask(t, "HELLO", "3")
	c.ask(t, "SUBSCRIBE", "a")
	pub.ask(t, "PING")
	require.NoError(t, e.redis.Pause())
	pub.send(t, strings.Repeat("publish a x\r\n", 3)) // Redis has it before the change
	c.send(t, "hello 2\r\n")
	require.NoError(t, e.redis.Resume())
	messages, hello := 0, 0
	for messages+hello < 4 {
		got, err := c.reply()
		require.NoError(t, err)
		switch {
		case strings.Contains(got, "message"):
			messages++
		case strings.Contains(got, "proto"):
			hello++
		default:
			require.Fail(t, got)
		}
	}
	require.Equal(t, "*3\r\n$11\r\nunsubscribe\r\n$1\r\na\r\n:0\r\n", c.ask(t, "UNSUBSCRIBE"))
	require.Equal(t, "$-1\r\n", c.ask(t, "GET", "none"))
}

// TestInvalidationsOfStateKeys are not for clients.
func TestInvalidationsOfStateKeys(t *testing.T) {
	t.Parallel()
	e := start(t, opened(t), nil)
	c, other := dial(t, e.addr), dial(t, e.addr)
	c.ask(t, "HELLO", "3")
	require.Equal(t, "+OK\r\n", c.ask(t, "CLIENT", "TRACKING", "ON", "BCAST"))
	for range 3 {
		require.Equal(t, "+OK\r\n", other.ask(t, "SET", "a", "1"))
		got, err := c.reply()
		require.NoError(t, err)
		require.Equal(t, ">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\na\r\n", got)
	}
}

// TestNotificationsOfStateKeys are not for clients, however they are subscribed to.
func TestNotificationsOfStateKeys(t *testing.T) {
	t.Parallel()
	srv := opened(t)
	require.NoError(t, srv.Client(t).ConfigSet(t.Context(), "notify-keyspace-events", "KEA").Err())
	e := start(t, srv, nil)
	for _, words := range [][]string{
		{"PSUBSCRIBE", "__key*"}, {"SUBSCRIBE", "__keyspace@0__:{sonic:0}out", "__keyspace@0__:a", "__keyevent@0__:xadd", "__keyevent@0__:set", "{sonic:0}out"},
	} {
		for _, proto := range []string{"2", "3"} {
			c, other := dial(t, e.addr), dial(t, e.addr)
			c.ask(t, "HELLO", proto)
			c.ask(t, words...)
			for range len(words) - 2 {
				_, err := c.reply()
				require.NoError(t, err)
			}
			require.Equal(t, "+OK\r\n", other.ask(t, "SET", "a", "1"))
			other.ask(t, "PUBLISH", "__keyspace@0__:a", "{sonic:0}out is no key here")
			var got string
			for !strings.Contains(got, "no key here") {
				one, err := c.reply()
				require.NoError(t, err)
				got += one
			}
			require.Equal(t, 3, strings.Count(got, "message\r\n"), got)
			require.Equal(t, 1, strings.Count(got, "{sonic:"), got)
		}
	}
}

// TestBoundsOfRedis: its longest argument may be shorter than the endpoint's, and a function that
// it refuses for want of memory is a command to clients.
func TestBoundsOfRedis(t *testing.T) {
	t.Parallel()
	srv := opened(t)
	direct := srv.Client(t)
	require.NoError(t, direct.ConfigSet(t.Context(), "proto-max-bulk-len", "1048576").Err())
	e := start(t, srv, nil)
	c := dial(t, e.addr)
	require.Equal(t, "+OK\r\n", c.ask(t, "SET", "a", strings.Repeat("x", 1<<20)))
	id := e.redisClientID(t)
	require.Equal(t, "-ERR Protocol error: invalid bulk length\r\n", c.ask(t, "SET", "a", strings.Repeat("x", 1<<20+1)))
	require.Equal(t, ":1048576\r\n", c.ask(t, "STRLEN", "a"))
	require.Equal(t, id, e.redisClientID(t), "the shared connection is another one")
	require.NoError(t, direct.ConfigSet(t.Context(), "maxmemory", "1").Err())
	require.Equal(t, "-OOM command not allowed when used memory > 'maxmemory'.\r\n", c.ask(t, "SET", "b", "1"))
}

// TestManyArguments: a command of many small arguments comes through.
func TestManyArguments(t *testing.T) {
	t.Parallel()
	e := start(t, opened(t), nil)
	c := dial(t, e.addr)
	const n = 500_000
	go func() {
		_, _ = c.Write(append(resp.AppendHeader(nil, '*', n+1), resp.AppendBulk(nil, "EXISTS")...))
		_, _ = c.Write(bytes.Repeat(resp.AppendBulk(nil, "abcdefghij"), n))
	}()
	got, err := c.reply()
	require.NoError(t, err)
	require.Equal(t, ":0\r\n", got)
}

// TestNoMemoryBeforeLogin: who has not logged in and reads nothing is not read on for long.
func TestNoMemoryBeforeLogin(t *testing.T) {
	e := start(t, opened(t), func(c *proxy.Config) { c.Users = []access.User{{Name: "default", Password: "s"}} })
	c, list := dial(t, e.addr), dial(t, e.addr)
	require.Equal(t, "+OK\r\n", list.ask(t, "AUTH", "s"))
	require.NoError(t, c.Conn.(*net.TCPConn).SetReadBuffer(4096))
	require.NoError(t, c.SetWriteDeadline(time.Now().Add(time.Second)))
	_, err := c.Write(bytes.Repeat(resp.AppendCommand(nil, "GET", "a"), 2_000_000))
	require.Error(t, err, "the endpoint reads no more")
	require.Less(t, output(t, list.ask(t, "CLIENT", "LIST")), 32<<10)
}

// output returns the largest output buffer of a CLIENT LIST.
func output(t *testing.T, list string) (most int) {
	t.Helper()
	for _, word := range strings.Fields(list) {
		var n int
		if _, err := fmt.Sscanf(word, "obl=%d", &n); err == nil {
			most = max(most, n)
		}
	}
	require.Positive(t, most)
	return most
}
