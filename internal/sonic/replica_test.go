package sonic_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack"
)

// TestReadersLeaveAReplica: the Redis becomes a replica while this process neither ships nor
// applies, and its clients only read. Nothing that they ask would tell.
func TestReadersLeaveAReplica(t *testing.T) {
	t.Parallel()
	former, next := stack.PrivateRedis(t), stack.PrivateRedis(t)
	s := run(t, former, "redis: {wait: 100ms}")
	s.open(t)
	readers := []*redis.Client{s.client(t, func(o *redis.Options) { o.Protocol = 2 }), s.client(t, func(o *redis.Options) { o.Protocol = 3 })}
	for _, c := range readers {
		require.NoError(t, c.Set(t.Context(), "a", 1, 0).Err())
	}
	former.Follow(t, next)
	for _, c := range readers {
		require.Eventually(t, func() bool {
			err := c.Get(t.Context(), "a").Err()
			return err != nil && redis.HasErrorPrefix(err, "LOADING Redis cannot be reached")
		}, await.Patience, 10*time.Millisecond, "it is read from")
	}
	status, body := s.page(t, "/-/ready")
	require.Equal(t, http.StatusServiceUnavailable, status)
	require.Contains(t, body, `"redis":{"ok":false,"error":"no connection to Redis: this Redis is a replica`)

	former.Promote(t)
	for _, c := range readers {
		require.Eventually(t, func() bool { return c.Exists(t.Context(), "a").Err() == nil }, await.Patience, 10*time.Millisecond)
	}
}
