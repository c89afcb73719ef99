package proxy_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/stack"
)

// TestFunctionFlush deletes the libraries of clients, and answers as Redis does. Sonic's own stays,
// and writes are taken all the while. Clients do not see it.
func TestFunctionFlush(t *testing.T) {
	t.Parallel()
	bare, e := stack.PrivateRedis(t), start(t, opened(t), nil)
	pairs := []both{}
	for _, hello := range []string{"2", "3"} {
		pair := both{dial(t, bare.Addr()), dial(t, e.addr)}
		pair.bare.ask(t, "HELLO", hello)
		pair.proxied.ask(t, "HELLO", hello)
		pairs = append(pairs, pair)
	}
	same := func(words ...string) string {
		t.Helper()
		got := ""
		for _, pair := range pairs {
			got = pair.proxied.ask(t, words...)
			require.Equal(t, pair.bare.ask(t, words...), got, "%q", words)
		}
		return got
	}
	load := func() {
		for _, name := range []string{"one", "two"} {
			same("FUNCTION", "LOAD", "REPLACE", "#!lua name="+name+"\nredis.register_function('"+name+"', function() return 1 end)")
		}
	}
	for _, words := range [][]string{{"FUNCTION", "FLUSH"}, {"FUNCTION", "FLUSH", "async"}, {"function", "flush", "SYNC"}} {
		same(words...)
		load()
		same("FUNCTION", "LIST", "LIBRARYNAME", "two", "WITHCODE")
		same("FCALL", "two", "0")
		require.Equal(t, "+OK\r\n", same(words...))
		same("FUNCTION", "LIST")
		same("FCALL", "two", "0")
		same("SET", "a", "1")
	}
	same("FUNCTION", "FLUSH", "x")
	same("FUNCTION", "FLUSH", "SYNC", "x")
	same("FUNCTION", "LIST", "LIBRARYNAME", "sonic")
	load()
	c := pairs[0].proxied
	c.ask(t, "MULTI")
	assert.Equal(t, "-ERR Sonic refuses 'function|flush' inside a transaction\r\n", c.ask(t, "FUNCTION", "FLUSH"))
	assert.Contains(t, c.ask(t, "EXEC"), "-EXECABORT")
	c.ask(t, "MULTI")
	c.ask(t, "FUNCTION", "LIST", "LIBRARYNAME", "sonic")
	assert.Equal(t, "*1\r\n*0\r\n", c.ask(t, "EXEC"))
}
