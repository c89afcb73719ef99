package proxy_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/stack"
)

// TestSubscribeWhileRedisRefusesPing: Redis refuses PING more often than SUBSCRIBE, for instance when
// it cannot write to its disk.
func TestSubscribeWhileRedisRefusesPing(t *testing.T) {
	t.Parallel()
	c := stack.PrivateRedisCluster(t, 1, 0)
	e := startCluster(t, c, nil)
	direct := c.Nodes()[0].Client(t)
	require.NoError(t, direct.Do(t.Context(), "ACL", "SETUSER", "default", "-ping").Err())
	sub := dial(t, e.addr)
	assert.Contains(t, sub.ask(t, "subscribe", "a"), "subscribe")
	assert.Contains(t, sub.ask(t, "ssubscribe", "a"), "ssubscribe")
	require.NoError(t, direct.Do(t.Context(), "ACL", "SETUSER", "default", "-subscribe").Err())
	assert.Contains(t, sub.ask(t, "subscribe", "b"), "-NOPERM ")
	assert.Contains(t, sub.ask(t, "unsubscribe", "a"), "unsubscribe")
}
