package proxy_test

import (
	"fmt"
	"net"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/cluster"
	"github.com/aviaryhq/aviary/test/stack"
)

// TestErrorsOfScripts: a script can return errors that look like those of a cluster. It is executed
// once, and does not make the proxy log in to a server of its choice.
func TestErrorsOfScripts(t *testing.T) {
	t.Parallel()
	servers := stack.PrivateRedisCluster(t, 2, 0)
	e := startCluster(t, servers, nil)
	var lc net.ListenConfig
	ln, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = ln.Close() })
	var logins atomic.Int64
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			logins.Add(1)
			_ = conn.Close()
		}
	}()
	slot := cluster.Slot([]byte("a"))
	c := dial(t, e.addr)
	for i, text := range []string{
		"TRYAGAIN later", "CLUSTERDOWN of another kind", fmt.Sprintf("MOVED %d %s", slot+1, ln.Addr()), fmt.Sprintf("ASK %d %s", slot+1, ln.Addr()),
	} {
		for _, name := range []string{"EVAL", "EVAL_RO"} {
			script := "return redis.error_reply('" + text + "')"
			if name == "EVAL" {
				script = "redis.call('INCR', KEYS[1]) " + script
			}
			require.Equal(t, "-"+text+"\r\n", c.ask(t, name, script, "1", "a"))
		}
		require.Equal(t, fmt.Sprintf("$1\r\n%d\r\n", i+1), c.ask(t, "GET", "a"))
	}
	// This one cannot be told from the error of Redis, so the script is executed again.
	require.Equal(t, "$1\r\nx\r\n", c.ask(t, "EVAL",
		fmt.Sprintf("if redis.call('INCR', KEYS[1]) > 1 then return 'x' end return redis.error_reply('MOVED %d %s')", slot, ln.Addr()), "1", "{a}again"))
	assert.Zero(t, logins.Load())
}
