package proxy_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/proxy"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/access"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack"
)

// TestUsersWithKeysReachNoOthers: not by scripts and patterns either, which Redis runs as Sonic.
func TestUsersWithKeysReachNoOthers(t *testing.T) {
	t.Parallel()
	e := start(t, opened(t), func(c *proxy.Config) {
		c.Users = []access.User{{Name: "default", Password: "p"}, {Name: "some", Password: "p", Keys: []string{"pub:"}}}
	})
	all, c := dial(t, e.addr), dial(t, e.addr)
	require.Equal(t, "+OK\r\n", all.ask(t, "AUTH", "p"))
	require.Equal(t, "+OK\r\n", all.ask(t, "SET", "other:1", "hidden"))
	require.Equal(t, "$6\r\nhidden\r\n", all.ask(t, "EVAL", "return redis.call('GET', 'other:1')", "0"))
	require.Equal(t, "+OK\r\n", c.ask(t, "AUTH", "some", "p"))
	require.Equal(t, ":1\r\n", c.ask(t, "RPUSH", "pub:l", "1"))
	for _, words := range [][]string{
		{"EVAL", "return redis.call('GET', 'other:1')", "0"}, {"EVAL_RO", "return redis.call('GET', 'other:1')", "1", "pub:l"},
		{"EVALSHA", "x", "0"}, {"FCALL", "f", "0"}, {"FCALL_RO", "f", "1", "pub:l"},
		{"FUNCTION", "LOAD", "REPLACE", "x"}, {"FUNCTION", "DELETE", "x"}, {"SCRIPT", "FLUSH"},
		{"SORT", "pub:l", "GET", "other:*"}, {"SORT_RO", "pub:l", "by", "other:*"}, {"SORT", "pub:l", "STORE", "other:2"},
		{"COPY", "pub:l", "other:2"}, {"BLMOVE", "pub:l", "other:2", "LEFT", "LEFT", "1"}, {"XREAD", "STREAMS", "other:1", "0"},
		{"OBJECT", "ENCODING", "other:1"}, {"MEMORY", "USAGE", "other:1"}, {"WATCH", "other:1"}, {"ZUNION", "2", "pub:l", "other:1"},
	} {
		require.Regexp(t, `^-(NOPERM |ERR (BY|GET) option of SORT denied)`, c.ask(t, words...), "%q", words)
	}
	require.Equal(t, "*1\r\n$1\r\n1\r\n", c.ask(t, "SORT", "pub:l", "DESC"))
	require.Equal(t, "$6\r\nhidden\r\n", all.ask(t, "GET", "other:1"))
}

// TestPasswordsOfRedisAreHidden: with them a client could pass Sonic by.
func TestPasswordsOfRedisAreHidden(t *testing.T) {
	t.Parallel()
	srv := opened(t, stack.Conf(map[string]string{"requirepass": "topsecret", "masterauth": "topsecret"}))
	e := start(t, srv, func(c *proxy.Config) { c.Backend.Password = "topsecret" })
	for _, proto := range []string{"2", "3"} {
		c := dial(t, e.addr)
		c.ask(t, "HELLO", proto)
		begin := map[string]string{"2": "*0\r\n", "3": "%0\r\n"}[proto]
		require.Equal(t, begin, c.ask(t, "CONFIG", "GET", "requirepass"))
		require.Equal(t, begin, c.ask(t, "CONFIG", "GET", "MASTER[a]uth"))
		all := c.ask(t, "CONFIG", "GET", "*")
		require.NotContains(t, all, "topsecret")
		require.Contains(t, all, "maxmemory-policy\r\n$10\r\nnoeviction")
		require.Equal(t, "+OK\r\n", c.ask(t, "SELECT", "1"))
		require.Equal(t, "+OK\r\n", c.ask(t, "MULTI"))
		require.Equal(t, "+QUEUED\r\n", c.ask(t, "CONFIG", "GET", "requirepass", "databases"))
		got := c.ask(t, "EXEC")
		require.NotContains(t, got, "topsecret")
		require.Contains(t, got, "databases\r\n$2\r\n16")
	}
}

// Users are changed while clients are there: those of users that are no more are disconnected, the
// others may do what their user may from then on.
func TestUsersChangeWhileClientsAreThere(t *testing.T) {
	t.Parallel()
	e := start(t, opened(t), func(c *proxy.Config) {
		c.Users = []access.User{{Name: "default", Password: "old"}, {Name: "gone", Password: "p"}}
	})
	stays, goes, waits := dial(t, e.addr), dial(t, e.addr), dial(t, e.addr)
	require.Equal(t, "+OK\r\n", stays.ask(t, "AUTH", "old"))
	require.Equal(t, "+OK\r\n", goes.ask(t, "AUTH", "gone", "p"))
	require.Contains(t, waits.ask(t, "GET", "k"), "NOAUTH")
	queues := dial(t, e.addr)
	require.Equal(t, "+OK\r\n", queues.ask(t, "AUTH", "old"))
	require.Equal(t, "+OK\r\n", queues.ask(t, "MULTI"))
	require.Equal(t, "+QUEUED\r\n", queues.ask(t, "SET", "k", "v"))
	e.SetUsers([]access.User{{Name: "default", Password: "new", ReadOnly: true}})
	_, err := goes.reply()
	require.Error(t, err, "its user is no more")
	require.Contains(t, stays.ask(t, "SET", "k", "v"), "NOPERM")
	require.Contains(t, queues.ask(t, "EXEC"), "EXECABORT", "what it queued it may not do any more")
	require.Equal(t, "$-1\r\n", stays.ask(t, "GET", "k"))
	require.Contains(t, waits.ask(t, "AUTH", "old"), "WRONGPASS")
	require.Equal(t, "+OK\r\n", waits.ask(t, "AUTH", "new"))

	other := dial(t, e.addr)
	require.Contains(t, other.ask(t, "GET", "k"), "NOAUTH")
	e.SetUsers(nil)
	require.Eventually(t, func() bool { return other.ask(t, "GET", "k") == "$-1\r\n" }, await.Patience, time.Millisecond, "nobody has to log in")
}
