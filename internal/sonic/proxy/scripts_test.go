package proxy_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/resp"
	"github.com/aviaryhq/aviary/internal/sonic/script"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack"
)

// TestScriptsLeaveWatchAlone: a script between WATCH and MULTI neither ends the WATCH nor is kept
// from running by it.
func TestScriptsLeaveWatchAlone(t *testing.T) {
	t.Parallel()
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

// TestScriptsWithinTransactions are recorded with the other commands, as one effect.
func TestScriptsWithinTransactions(t *testing.T) {
	t.Parallel()
	srv := opened(t)
	e := start(t, srv, nil)
	c := dial(t, e.addr)
	direct := srv.Client(t)
	run := func() string {
		c.send(t, "multi\r\nset a 1\r\neval \"return redis.call('incr', KEYS[1])\" 1 a\r\nget a\r\nselect 1\r\n"+
			"eval \"return redis.call('append', KEYS[1], ARGV[1])\" 1 b x\r\neval \"return {}\" 0\r\nevalsha x 1 a\r\nselect 0\r\n")
		for range 9 {
			got, err := c.reply()
			require.NoError(t, err)
			require.True(t, got == "+OK\r\n" || got == "+QUEUED\r\n", got)
		}
		return c.ask(t, "EXEC")
	}
	require.Equal(t, "*8\r\n+OK\r\n:2\r\n$1\r\n2\r\n+OK\r\n:1\r\n*0\r\n-NOSCRIPT No matching script. Please use EVAL.\r\n+OK\r\n", run())
	entries, err := direct.XRange(t.Context(), "{sonic:0}out", "-", "+").Result()
	require.NoError(t, err)
	all := ""
	for _, entry := range entries {
		require.Contains(t, entry.Values, "t", "all in one transaction")
		all += entry.Values["e"].(string)
	}
	require.Contains(t, all, "\xa11\xa1b\xa1x", "the state of b in database 1")

	require.NoError(t, script.Replace(t.Context(), direct))
	require.Contains(t, run(), errUnrecorded)
	require.Contains(t, run(), "-EXECABORT Transaction discarded because of: LOADING Sonic has not opened this Redis yet", "the fence stands again")
	require.Equal(t, "$-1\r\n", c.ask(t, "GET", "none"))
	open(t, srv)
	require.Equal(t, ":4\r\n", c.ask(t, "EVAL", "return redis.call('incr', KEYS[1])", "1", "a"), "one ran without being recorded")
}

const errUnrecorded = "-ERR the script ran while no Sonic had opened this Redis"

// TestTransactionsBeyondTheBoundOfRedis: Redis ends a connection whose queued commands are larger
// than its bound. A script's keys are sent three times.
func TestTransactionsBeyondTheBoundOfRedis(t *testing.T) {
	t.Parallel()
	srv := opened(t)
	require.NoError(t, srv.Client(t).ConfigSet(t.Context(), "client-query-buffer-limit", "1048576").Err())
	e := start(t, srv, nil)
	c := dial(t, e.addr)
	require.Equal(t, "$-1\r\n", c.ask(t, "GET", "a"))
	id := e.redisClientID(t)
	key := strings.Repeat("k", 400<<10)
	require.Contains(t, c.ask(t, "EVAL", "return 1", "1", key), "-ERR Sonic refuses 'eval' with keys of")
	require.Equal(t, ":1\r\n", c.ask(t, "EVAL", "return 1", "1", key[:200<<10]))
	require.Contains(t, c.ask(t, "SET", "a", strings.Repeat("x", 1<<20)), "-ERR Protocol error: invalid bulk length")
	require.Equal(t, "+OK\r\n", c.ask(t, "SET", "a", strings.Repeat("x", 900<<10)))
	require.Equal(t, "+OK\r\n", c.ask(t, "MULTI"))
	many := make([]string, 60_001) // Redis counts more for short arguments than they take on the way
	for i := range many {
		many[i] = "a"
	}
	many[0] = "EXISTS"
	require.Equal(t, "+QUEUED\r\n", c.ask(t, many...))
	c.send(t, string(resp.AppendCommand(nil, many...)))
	_, err := c.reply()
	require.Error(t, err, "as Redis ends such a client")
	require.Equal(t, id, e.redisClientID(t), "the shared connection is another one")
}

// TestRedisThatCannotSave takes no writes. Its error is that of the command. A script is refused as
// a whole.
func TestRedisThatCannotSave(t *testing.T) {
	t.Parallel()
	srv := opened(t, stack.Conf(map[string]string{"save": "3600 1000000", "dbfilename": "taken"}))
	e := start(t, srv, nil)
	c, bare := dial(t, e.addr), dial(t, srv.Addr())
	dir, err := srv.Client(t).ConfigGet(t.Context(), "dir").Result()
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(filepath.Join(dir["dir"], "taken"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir["dir"], "taken", "x"), nil, 0o600))
	defer func() { require.NoError(t, os.RemoveAll(filepath.Join(dir["dir"], "taken"))) }() // it saves when it ends
	require.Equal(t, ":1\r\n", c.ask(t, "EVAL", "return 1", "1", "a"))
	bare.ask(t, "BGSAVE")
	require.Eventually(t, func() bool { return strings.Contains(bare.ask(t, "INFO", "persistence"), "rdb_last_bgsave_status:err") }, await.Patience, 10*time.Millisecond)
	want := bare.ask(t, "SET", "a", "1")
	require.Contains(t, want, "-MISCONF")
	assert.Equal(t, want, c.ask(t, "SET", "a", "1"))
	other := dial(t, e.addr)
	other.ask(t, "HELLO", "3")
	for _, who := range []*connection{c, other} { // one has passed the fence
		assert.Equal(t, want, who.ask(t, "EVAL", "return redis.call('SET', KEYS[1], '1')", "1", "a"))
	}
}

// TestScriptsWhileRedisIsBusy get Redis' own words.
func TestScriptsWhileRedisIsBusy(t *testing.T) {
	t.Parallel()
	srv := opened(t)
	require.NoError(t, srv.Client(t).ConfigSet(t.Context(), "busy-reply-threshold", "1").Err())
	e := start(t, srv, nil)
	c, bare, busy := dial(t, e.addr), dial(t, srv.Addr()), dial(t, srv.Addr())
	require.Equal(t, ":1\r\n", c.ask(t, "EVAL", "return 1", "1", "a"))
	busy.send(t, string(resp.AppendCommand(nil, "EVAL", "while true do end", "0")))
	want := ""
	require.Eventually(t, func() bool {
		want = bare.ask(t, "GET", "a")
		return strings.HasPrefix(want, "-BUSY")
	}, await.Patience, time.Millisecond)
	require.Equal(t, want, c.ask(t, "EVAL", "return 1", "1", "a"))
	require.Equal(t, "+OK\r\n", bare.ask(t, "SCRIPT", "KILL"))
}
