package sonic

import (
	"strings"
	"testing"

	"github.com/aviaryhq/aviary/test/clients"
	"github.com/aviaryhq/aviary/test/stack"
)

// TestStockClientsOfACluster: stock clients without cluster settings use Sonic in front of a Redis
// Cluster as they use one Redis.
func TestStockClientsOfACluster(t *testing.T) {
	t.Parallel()
	servers := stack.PrivateRedisCluster(t, 3, 0)
	s := run(t, "SONIC_REDIS_URL=redis://"+strings.Join(servers.Addresses(), ","), "SONIC_REDIS_SPLIT_MSET=true")
	clients.Run(t, "redis://"+s.Address("redis"), "select")
}
