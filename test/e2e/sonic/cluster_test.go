package sonic

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/e2e/sonic/clients"
	"github.com/aviaryhq/aviary/test/stack"
)

// inFrontOf starts a Sonic in front of a Redis Cluster.
func inFrontOf(t *testing.T, servers *stack.RedisCluster, env ...string) *service {
	t.Helper()
	return run(t, append(env, "SONIC_REDIS_URL=redis://"+strings.Join(servers.Addresses(), ","))...)
}

// TestStockClientsOfACluster: stock clients without cluster settings use Sonic in front of a Redis
// Cluster as they use one Redis.
func TestStockClientsOfACluster(t *testing.T) {
	t.Parallel()
	s := inFrontOf(t, stack.PrivateRedisCluster(t, 3, 0), "SONIC_REDIS_SPLIT_MSET=true")
	clients.Run(t, "redis://"+s.Address("redis"), "select")
}

// TestClusterWithoutAPrimary: a Sonic whose cluster has lost a primary stays ready, and says what is
// missing.
func TestClusterWithoutAPrimary(t *testing.T) {
	t.Parallel()
	servers := stack.PrivateRedisCluster(t, 3, 0, "cluster-require-full-coverage no")
	s := inFrontOf(t, servers)
	const unserved = "sonic_cluster_unserved_slots"
	awaitUnserved := func(none bool) {
		t.Helper()
		require.Eventually(t, func() bool { return (s.metric(unserved) == 0) == none }, await.Patience, 10*time.Millisecond)
	}
	awaitUnserved(true)
	lost := servers.Nodes()[1]
	require.NoError(t, lost.Kill())
	awaitUnserved(false)
	status, _ := s.Ask(http.MethodGet, "/-/ready")
	assert.Equal(t, http.StatusOK, status, "other slots are served")
	z := s.zones().Cluster
	require.NotNil(t, z)
	assert.Contains(t, z.Unhealthy, lost.Addr())
	assert.Len(t, z.Primaries, 3)
	require.NoError(t, lost.Start(t.Context()))
	awaitUnserved(true)
	assert.Empty(t, s.zones().Cluster.Unhealthy)
}
