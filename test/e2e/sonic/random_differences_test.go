package sonic

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/stack"
)

// What the randomised test compares: the same in another order is equal, and any one thing that
// differs is found.
func TestAnythingThatDiffersIsFound(t *testing.T) {
	t.Parallel()
	a, b := stack.PrivateRedis(t), stack.PrivateRedis(t)
	do := func(r *stack.RedisServer, lines ...string) {
		t.Helper()
		for _, line := range lines {
			require.NoError(t, r.Client(t).Do(t.Context(), args(strings.Fields(line))...).Err(), line)
		}
	}
	found := func() []string {
		t.Helper()
		return differences([]map[string]held{holdings(t, a, 0), holdings(t, b, 0)})
	}
	do(a, "SET str v PXAT 4000000000000", "SADD set x y 1", "HSET hash f 1 g 2", "ZADD zset 1 m 2 n", "RPUSH list a b", "XADD stream 1-1 f v", "PFADD hll a b", "SET gone v")
	do(b, "SET gone v", "PFADD hll b a", "PFCOUNT hll", "XADD stream 1-1 f v", "RPUSH list a", "RPUSH list b", "ZADD zset 2 n", "ZADD zset 1 m", "HSET hash g 2",
		"HSET hash f 1", "SADD set 1", "SADD set y x", "SET str v PXAT 4000000000040", "SET {sonic:0}x 1")
	require.Empty(t, found())
	for _, line := range []string{
		"SET str w PXAT 4000000000000", "SREM set x", "SADD set z", "HSET hash f 2", "HDEL hash g", "ZINCRBY zset 0.5 m", "LSET list 0 b", "LPUSH list a",
		"XADD stream 2-1 f v", "XDEL stream 2-1", "PFADD hll c", "DEL gone", "SET gone again", "PEXPIREAT str 4000000000060", "PERSIST str",
	} {
		do(b, line)
		require.Equal(t, []string{strings.Fields(line)[1]}, found(), line)
		do(a, line)
		require.Empty(t, found(), line)
	}
	do(b, "DEL hash", "RPUSH hash f")
	require.Equal(t, []string{"hash"}, found(), "another type")
}
