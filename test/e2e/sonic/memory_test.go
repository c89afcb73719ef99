package sonic

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/systems"
)

// Zone b has reached its maxmemory. It gets all that zone a writes and deletes all the same, also
// after a restart of its Sonic and of its Redis, and takes writes again once deletions have come.
func TestAZoneAtMaxmemoryGetsWritesAndDeletions(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	ctx := t.Context()
	ca := a.client()
	value := strings.Repeat("v", 100_000)
	var keys []string
	write := func(prefix string) {
		for i := range 100 {
			key := fmt.Sprintf("%s-%d", prefix, i)
			require.NoError(t, ca.Set(ctx, key, value, 0).Err())
			keys = append(keys, key)
		}
	}
	arrived := func(key, want string) {
		t.Helper()
		systems.Await(t, await.Patience, key+" arrives", func() bool { return b.redis.Client(t).Get(ctx, key).Val() == want })
	}
	notReady := func() {
		t.Helper()
		systems.Await(t, await.Patience, "the zone is not ready", func() bool {
			status, body := b.Ask(http.MethodGet, "/-/ready")
			return status == http.StatusServiceUnavailable && strings.Contains(string(body), "maxmemory")
		})
	}
	write("before")
	arrived("before-99", value)
	require.NoError(t, b.redis.Client(t).ConfigSet(ctx, "maxmemory", "8mb").Err()) // less than what is there
	notReady()
	assert.InDelta(t, 1, b.metric("sonic_redis_memory_full"), 0)
	assert.ErrorContains(t, b.client().Set(ctx, "own", "1", 0).Err(), "OOM")
	require.NoError(t, b.client().Get(ctx, "before-1").Err())
	write("at the limit")
	arrived("at the limit-99", value)

	b.Kill()
	b.Start()
	write("after a restart of Sonic")
	arrived("after a restart of Sonic-99", value)
	notReady()

	require.NoError(t, b.redis.Client(t).ConfigRewrite(ctx).Err())
	require.NoError(t, b.redis.Kill())
	require.NoError(t, b.redis.Start(ctx))
	write("after a restart of Redis")
	arrived("after a restart of Redis-99", value)
	notReady()

	for _, key := range keys[50:] {
		require.NoError(t, ca.Del(ctx, key).Err())
	}
	b.awaitWritable()
	systems.Await(t, await.Patience, "the zone is ready", func() bool {
		status, _ := b.Ask(http.MethodGet, "/-/ready")
		return status == http.StatusOK && b.metric("sonic_redis_memory_full") == 0
	})
	same(t, keys, a, b)
}
