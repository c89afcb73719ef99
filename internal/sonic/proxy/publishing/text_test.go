package publishing_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/aviaryhq/aviary/internal/sonic/proxy/publishing"
)

// TestMayPublish: only a text that shows all commands that it calls, and no PUBLISH among them, stays
// as it is.
func TestMayPublish(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"return 1", "return redis.call('get', KEYS[1])", `redis.pcall( "SET" , KEYS[1], redis.sha1hex('x'))`, "redis.call('ping') redis.log(redis.LOG_NOTICE, 'x')",
		"redis.call('spublish', 'a', 'b')",
	} {
		assert.False(t, publishing.MayPublish([]byte(text)), text)
		assert.Equal(t, text, string(publishing.Library([]byte(text))))
	}
	for _, text := range []string{
		"redis.call('publish', 'a', 'b')", `redis.pcall("PUBLISH", 'a', 'b')`, "redis.call(ARGV[1], 'a')", "local call = redis.call", "local r = redis", "redis['call']('x')",
		"redis.call('pub' .. 'lish', 'a', 'b')", "redis.call('pub\\108ish', 'a', 'b')", "redis.call 'publish'", "redis.call(unpack(ARGV))", "_G['re' .. 'dis'].call(x)",
		"redis\n. call\n(\n'Publish', 1, 2)", "redis.call[[publish]]",
	} {
		assert.True(t, publishing.MayPublish([]byte(text)), text)
		library := "#!lua name=x\n" + text
		with := string(publishing.Library([]byte(library)))
		assert.Equal(t, strings.Count(library, "\n"), strings.Count(with, "\n"), "lines keep their numbers")
		assert.Equal(t, library, string(publishing.Original([]byte(with))))
	}
}
