package sonic_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack"
)

// TestEvictionIsAlarmed: a Redis whose policy is changed while Sonic runs drops keys in one zone
// only.
func TestEvictionIsAlarmed(t *testing.T) {
	t.Parallel()
	s := run(t, stack.PrivateRedis(t), "")
	s.open(t)
	direct := s.redis.Client(t)
	shows := func(line string) {
		t.Helper()
		require.Eventually(t, func() bool {
			_, body := s.page(t, "/metrics")
			return strings.Contains(body, line+"\n")
		}, await.Patience, 20*time.Millisecond)
	}
	shows("sonic_redis_evicting 0")
	require.NoError(t, direct.ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lru").Err())
	shows("sonic_redis_evicting 1")
	said := s.log.FilterMessage("Redis evicts keys: zones do not stay equal").All()
	require.Len(t, said, 1)
	require.Contains(t, said[0].ContextMap()["problem"], "maxmemory-policy is allkeys-lru")
	require.NoError(t, direct.ConfigSet(t.Context(), "maxmemory-policy", "noeviction").Err())
	shows("sonic_redis_evicting 0")
}

// TestReachedMaxmemoryIsAlarmed: clients' writes are refused, which the metric, the log and the
// readiness say.
func TestReachedMaxmemoryIsAlarmed(t *testing.T) {
	t.Parallel()
	s := run(t, stack.PrivateRedis(t), "")
	s.open(t)
	direct := s.redis.Client(t)
	shows := func(line, ready string) {
		t.Helper()
		require.Eventually(t, func() bool {
			_, body := s.page(t, "/metrics")
			_, check := s.page(t, "/-/ready")
			return strings.Contains(body, line+"\n") && strings.Contains(check, ready)
		}, await.Patience, 20*time.Millisecond)
	}
	shows("sonic_redis_memory_full 0", `"writes":{"ok":true}`)
	require.NoError(t, direct.ConfigSet(t.Context(), "maxmemory", "1").Err())
	shows("sonic_redis_memory_full 1", "this Redis has reached its maxmemory")
	require.Equal(t, 1, s.log.FilterMessageSnippet("Redis has reached its maxmemory").Len())
	require.NoError(t, direct.ConfigSet(t.Context(), "maxmemory", "0").Err())
	shows("sonic_redis_memory_full 0", `"writes":{"ok":true}`)
	require.Equal(t, 1, s.log.FilterMessage("Redis is below its maxmemory again").Len())
}
