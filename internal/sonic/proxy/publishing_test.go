package proxy_test

import (
	"crypto/sha1" //nolint:gosec // Redis names scripts by it
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/proxy"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/publishing"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
	"github.com/aviaryhq/aviary/test/stack"
)

func sha(text string) string {
	sum := sha1.Sum([]byte(text))
	return hex.EncodeToString(sum[:])
}

// published returns the messages for other zones that are in the outbox, behind the entry after.
func (e *endpoint) published(t *testing.T, after *string) (messages []string) {
	t.Helper()
	entries, err := e.redis.Client(t).XRange(t.Context(), "{sonic:0}out", "("+*after, "+").Result()
	require.NoError(t, err)
	for _, entry := range entries {
		*after = entry.ID
		parts := strings.Split(entry.Values["e"].(string), "\x95\xa1P\xa1n")
		for _, part := range parts[1:] {
			words := []string{}
			for len(words) < 3 && part != "" { // short strings
				n := int(part[0] - 0xa0)
				words = append(words, part[1:1+n])
				part = part[1+n:]
			}
			messages = append(messages, strings.Join(words, " "))
		}
	}
	return messages
}

// TestPublishWithinScripts: what scripts and functions publish reaches other zones once, as PUBLISH
// does.
func TestPublishWithinScripts(t *testing.T) {
	t.Parallel()
	const laravel = "for i = 2, #ARGV do\n  redis.call('publish', ARGV[i], ARGV[1])\nend"
	const unlock = "redis.call('del', KEYS[1]); return redis.call(ARGV[2], KEYS[2], ARGV[1])"
	const library = "#!lua name=mine\nlocal c = redis.call\n" +
		"redis.register_function('pub', function(k, a) return c('PUBLISH', a[1], a[2]) end)\n" +
		"redis.register_function{function_name='two', callback=function(k, a) redis.setresp(3) redis.pcall('set', k[1], redis.sha1hex('')) redis.call('select', 2) " +
		"redis.call('publish', 'ch', 1) redis.call('select', 0) return redis.call('publish', 'ch', 2) end}\n"
	e := start(t, opened(t), func(c *proxy.Config) { c.Publish = true })
	after := "0"
	for _, proto := range []string{"2", "3"} {
		c := dial(t, e.addr)
		c.ask(t, "HELLO", proto)
		ask := func(want string, words ...string) {
			t.Helper()
			got := c.ask(t, words...)
			if want != "" {
				require.Equal(t, want, got, "%q", words)
			}
		}
		for _, test := range []struct {
			run  func()
			want []string
		}{
			{func() { ask(":0\r\n", "PUBLISH", "ch", "x") }, []string{"0 ch x"}},
			{func() { ask("", "EVAL", laravel, "0", "{}", "orders.1", "orders.2") }, []string{"0 orders.1 {}", "0 orders.2 {}"}},
			{func() { ask("", "EVALSHA", strings.ToUpper(sha(laravel)), "0", "{}", "orders.3") }, []string{"0 orders.3 {}"}},
			{func() { ask(":0\r\n", "EVAL", unlock, "2", "lock", "unlocked", "0", "publish") }, []string{"0 unlocked 0"}},
			{func() { ask(":0\r\n", "EVAL", unlock, "2", "lock", "unlocked", "0", "spublish") }, nil},
			{func() { ask("$40\r\n"+sha(unlock)+"\r\n", "SCRIPT", "LOAD", unlock) }, nil},
			{func() { ask(":0\r\n", "EVALSHA", sha(unlock), "2", "lock", "unlocked", "1", "PUBLISH") }, []string{"0 unlocked 1"}},
			{func() {
				ask("*2\r\n:1\r\n:0\r\n", "SCRIPT", "EXISTS", sha(unlock), sha("return 99"))
			}, nil},
			{func() { ask("$4\r\nmine\r\n", "FUNCTION", "LOAD", "REPLACE", library) }, nil},
			{func() { ask(":0\r\n", "FCALL", "pub", "0", "ch", "y") }, []string{"0 ch y"}},
			{func() { ask(":0\r\n", "FCALL", "two", "1", "k") }, []string{"0 ch 1", "0 ch 2"}},
			{func() { ask(":0\r\n", "FCALL", "pub", "0", "ch", "z") }, []string{"0 ch z"}},
			{func() {
				ask("+OK\r\n", "SELECT", "3")
				ask(":0\r\n", "FCALL", "two", "0")
				ask(":0\r\n", "FCALL", "pub", "0", "ch", "z")
				ask("+OK\r\n", "SELECT", "0")
			}, []string{"3 ch 1", "3 ch 2", "3 ch z"}},
			{func() {
				c.send(t, string(resp.AppendCommand(nil, "MULTI"))+string(resp.AppendCommand(nil, "SET", "a", "1"))+string(resp.AppendCommand(nil, "EVAL", laravel, "0", "m", "a", "b"))+
					string(resp.AppendCommand(nil, "PUBLISH", "c", "n"))+string(resp.AppendCommand(nil, "FCALL", "pub", "0", "d", "o"))+string(resp.AppendCommand(nil, "SCRIPT", "LOAD", unlock)))
				for range 6 {
					_, err := c.reply()
					require.NoError(t, err)
				}
				null := map[string]string{"2": "$-1\r\n", "3": "_\r\n"}[proto]
				ask("*5\r\n+OK\r\n"+null+":0\r\n:0\r\n$40\r\n"+sha(unlock)+"\r\n", "EXEC")
			}, []string{"0 a m", "0 b m", "0 c n", "0 d o"}},
			// What was published before an error stays published.
			{func() { ask("", "EVAL", "redis.call('publish', 'ch', 'e') error('x')", "0") }, []string{"0 ch e"}},
			{func() { ask("", "EVAL", "return redis.pcall('publish', 'ch')", "0") }, nil},
			{func() { ask("", "EVAL_RO", "return redis.pcall('publish', 'ch', 'x')", "0") }, nil},
			{func() { ask("", "EVAL", "#!lua flags=no-writes\nreturn redis.pcall('publish', 'ch', 'x')", "0") }, nil},
		} {
			test.run()
			require.Equal(t, test.want, e.published(t, &after))
			require.Empty(t, e.redis.Client(t).Keys(t.Context(), "{sonic:0}published*").Val())
		}
		require.Contains(t, c.ask(t, "FUNCTION", "LIST", "WITHCODE"), fmt.Sprintf("$%d\r\n%s\r\n", len(library), library))
	}

	// Another Sonic does not know the script, and Redis does not have its text. A Sonic that does not
	// replicate messages leaves nothing in Redis.
	relaying := start(t, e.redis, nil)
	other := dial(t, relaying.addr)
	assert.Contains(t, other.ask(t, "EVALSHA", sha(laravel), "0", "{}", "ch"), "-NOSCRIPT")
	assert.Equal(t, ":0\r\n", other.ask(t, "FCALL", "pub", "0", "ch", "z"))
	assert.Equal(t, ":0\r\n", other.ask(t, "FCALL", "two", "1", "k"))
	assert.Empty(t, e.published(t, &after))
	assert.Empty(t, e.redis.Client(t).Keys(t.Context(), "{sonic:0}published*").Val())

	c := dial(t, e.addr)
	require.Equal(t, "+OK\r\n", c.ask(t, "SCRIPT", "FLUSH"))
	assert.Contains(t, c.ask(t, "EVALSHA", sha(unlock), "0"), "-NOSCRIPT")
	assert.Equal(t, "*1\r\n:0\r\n", c.ask(t, "SCRIPT", "EXISTS", sha(unlock)))
}

// TestPublishBeyondTheBoundOfMemory: when Redis reaches its bound after it has queued a script, it
// still runs PUBLISH, and the message is noted.
func TestPublishBeyondTheBoundOfMemory(t *testing.T) {
	t.Parallel()
	e := start(t, opened(t), func(c *proxy.Config) { c.Publish = true })
	direct, after := dial(t, e.redis.Addr()), "0"
	text, script := new(publishing.Scripts).Text([]byte("return redis.call('publish', 'ch', 'x')"))
	require.NotNil(t, script)
	direct.ask(t, "MULTI")
	direct.ask(t, "FCALL", "sonic_mark", "1", "{sonic:0}out", "0m")
	direct.ask(t, "EVAL", string(text), "0")
	direct.ask(t, "FCALL", "sonic_ship", "1", "{sonic:0}out", "0")
	require.NoError(t, e.redis.Client(t).ConfigSet(t.Context(), "maxmemory", "1").Err())
	require.Contains(t, direct.ask(t, "EXEC"), "*3\r\n:0\r\n:0\r\n$")
	require.Equal(t, []string{"0 ch x"}, e.published(t, &after))
	c := dial(t, e.addr)
	require.Contains(t, c.ask(t, "EVAL", "return redis.call('publish', 'ch', 'x')", "0"), "-OOM", "as for every transaction")
}

// TestSameScriptsThatPublish compares scripts that may publish with those of a bare Redis.
func TestSameScriptsThatPublish(t *testing.T) {
	t.Parallel()
	bare, e := stack.PrivateRedis(t), start(t, opened(t), func(c *proxy.Config) { c.Publish = true })
	text := ""
	for _, words := range [][]string{
		{"SET", "s", "x"},
		{"EVAL", "-- publish\nlocal a = redis.call('lpush', KEYS[1], 1)\nreturn a", "1", "s"},
		{"EVAL", "-- publish\n\nlocal a = redis.call('nosuch')\nreturn a", "0"},
		{"EVAL", "-- publish\n\nlocal a = redis.call('get', {})\nreturn a", "0"},
		{"EVAL", "-- publish\n\nlocal a = redis.call()\nreturn a", "0"},
		{"EVAL", "-- publish\nreturn redis.pcall('lpush', KEYS[1], 1)", "1", "s"},
		{"EVAL", "-- publish\nlocal ok, e = pcall(redis.call, 'lpush', KEYS[1], 1) return {tostring(ok), e.err}", "1", "s"},
		{"EVAL", "-- publish\n\nnosuch()", "0"}, {"EVAL", "-- publish\n\nerror('x')", "0"}, {"EVAL", "-- publish\n\nerror({err='X y'})", "0"},
		{"EVAL", "publish\nx = = 1", "0"}, {"EVAL", "return redis.nosuch, 'publish'", "0"}, {"EVAL", "-- publish\nreturn redis.nosuch()", "0"},
		{"EVAL", "-- publish\nreturn redis.error_reply('MY x')", "0"}, {"EVAL", "-- publish\nreturn redis.status_reply('x')", "0"},
		{"EVAL", "local r = redis\nreturn {r.sha1hex('publish'), r.REPL_ALL, r.LOG_WARNING}", "0"},
		{"EVAL", "redis.setresp(3) -- publish\nreturn redis.call('hgetall', 'none')", "0"},
		{"EVAL", "return redis.call('PUBLISH', 'a', 12.5)", "0"}, {"EVAL", "return redis.call('publish', 'a')", "x"}, {"EVAL", "return redis.call('publish', 'a')", "-1"},
		{"EVAL", "return redis.call('publish', 'a')", "3", "a"}, {"EVAL", "#!lua publish", "0"}, {"EVAL", "#!lua flags=nosuch\nreturn 'publish'", "0"},
		{"EVAL", "#!lua flags=no-writes\n\nlocal a = redis.call('publish', 'a', 'b')\nreturn a", "0"},
		{"EVAL_RO", "\nlocal a = redis.call('publish', 'a', 'b')\nreturn a", "0"}, {"EVALSHA_RO", sha("\nlocal a = redis.call('publish', 'a', 'b')\nreturn a"), "0"},
		{"SCRIPT", "LOAD", "publish ="}, {"SCRIPT", "LOAD", "return 'publish'"}, {"EVALSHA", sha("return 'publish'"), "0"},
		{"SCRIPT", "EXISTS", sha("return 'publish'"), "x"},
		{"FUNCTION", "LOAD", "#!lua name=a publish"},
		{"FUNCTION", "LOAD", "#!lua name=a\nredis.register_function{function_name='publish'}"},
		{"FUNCTION", "LOAD", "#!lua name=a\nlocal c = redis.log\nredis.register_function('publish', function() local a = redis.call('nosuch')\n return a end)"},
		{"FUNCTION", "LOAD", "#!lua name=b\nredis.register_function{function_name='publish_ro', flags={'no-writes'}, callback=function() \nlocal a = redis.call('publish', 'a', 'b')\n return a end}"},
		{"FCALL", "publish", "0"}, {"FCALL", "publish_ro", "0"}, {"FCALL_RO", "publish_ro", "0"}, {"FCALL_RO", "publish", "0"}, {"FCALL", "nosuch", "0"}, {"FCALL", "publish", "x"},
		{"FUNCTION", "LIST", "LIBRARYNAME", "a", "WITHCODE"}, {"FUNCTION", "LIST", "LIBRARYNAME", "b", "WITHCODE"},
	} {
		text += string(resp.AppendCommand(nil, words...))
	}
	for _, hello := range []string{"2", "3"} {
		pair := both{dial(t, bare.Addr()), dial(t, e.addr)}
		pair.bare.ask(t, "HELLO", hello)
		pair.proxied.ask(t, "HELLO", hello)
		pair.sameUntil(t, "function flush\r\n"+text+string(resp.AppendCommand(nil, "RESET")), "+RESET")
	}
}
