package proxy_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/aviaryhq/aviary/test/stack"
)

// TestPublishInTransaction: a channel has no slot, so PUBLISH may be with any keys in a transaction.
func TestPublishInTransaction(t *testing.T) { inBothModes(t, testPublishInTransaction) }

func testPublishInTransaction(t *testing.T, startCluster clusterStarter) {
	e := startCluster(t, stack.PrivateRedisCluster(t, 2, 0), nil)
	c := dial(t, e.addr)
	c.send(t, "multi\r\nset a 1\r\npublish b m\r\npublish c m\r\nexec\r\n")
	for _, want := range []string{"+OK\r\n", "+QUEUED\r\n", "+QUEUED\r\n", "+QUEUED\r\n", "*3\r\n+OK\r\n:0\r\n:0\r\n"} {
		got, err := c.reply()
		assert.NoError(t, err)
		assert.Equal(t, want, got)
	}
}
