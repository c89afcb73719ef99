package sonic

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/systems"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/proxy"
	"github.com/aviaryhq/aviary/test/stack"
)

// withReplica runs two zones that answer what Pulsar has stored, the first of which has a Redis
// with a replica. env says how that one is reached.
func withReplica(t testing.TB, env func(primary, replica *stack.RedisServer) []string) (a, b zone, replica *stack.RedisServer) {
	t.Helper()
	geo := stack.Geo(t)
	topic := "persistent://" + geo.Namespace(t) + "/sonic"
	more := []string{"SONIC_ZONES=[a, b]", "SONIC_TOPIC=" + topic, "SONIC_ACK=published", "SONIC_CONFLICTS=[{prefix: 'count:', policy: counter}]"}
	primary, replica, other := durable(t), durable(t), durable(t)
	replica.Follow(t, primary)
	a = zone{run(t, append(append(more, "SONIC_ZONE=a", "SONIC_PULSAR_URL="+geo.A.URL()), env(primary, replica)...)...), primary}
	b = zone{run(t, append(more, "SONIC_ZONE=b", "SONIC_PULSAR_URL="+geo.B.URL(), "SONIC_REDIS_URL="+other.URL())...), other}
	for _, z := range []zone{a, b} {
		z.awaitWritable()
	}
	return a, b, replica
}

// withReplicaBehind is withReplica with a proxy, line, before the Redis of the first zone.
func withReplicaBehind(t testing.TB) (a, b zone, replica *stack.RedisServer, line *proxy.Proxy) {
	t.Helper()
	line, err := proxy.New()
	require.NoError(t, err)
	a, b, replica = withReplica(t, func(primary, _ *stack.RedisServer) []string {
		require.NoError(t, line.Forward(primary.Addr()))
		t.Cleanup(func() { line.Close() })
		return []string{"SONIC_REDIS_URL=redis://" + line.Addr()}
	})
	return a, b, replica, line
}

// setter sets a key of its own each time, and keeps those that were acknowledged.
func setter(t testing.TB, stop <-chan struct{}, z zone, prefix string) (keys []string) {
	t.Helper()
	for i := 0; ; {
		c := redis.NewClient(&redis.Options{Addr: z.AddressNow("redis"), MaxRetries: -1, PoolSize: 1})
		for ; ; i++ {
			select {
			case <-stop:
				_ = c.Close()
				return keys
			default:
			}
			key := fmt.Sprintf("%s-%d", prefix, i)
			if err := c.Set(t.Context(), key, i, 0).Err(); err != nil {
				time.Sleep(10 * time.Millisecond) // the rate of attempts
				break
			}
			keys = append(keys, key)
		}
		_ = c.Close()
	}
}

// failover has both zones write while the primary of a fails, and then compares with what was
// acknowledged. name is its own among those of a test.
func failover(t *testing.T, name string, w *writer, a, b zone, replica *stack.RedisServer, fail func()) {
	t.Helper()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	kept := make([][]string, 2)
	for i, z := range []zone{a, b} {
		wg.Go(func() { w.run(t, stop, z, "count:1", "count:2") })
		wg.Go(func() { kept[i] = setter(t, stop, z, fmt.Sprintf("%s-%d", name, i)) })
	}
	w.awaitLoad(t)
	began := time.Now()
	fail()
	after := redis.NewClient(&redis.Options{Addr: a.AddressNow("redis"), MaxRetries: -1})
	defer after.Close()
	systems.Await(t, await.Patience, "writes are taken again", func() bool {
		return after.Set(t.Context(), "after", name, 0).Err() == nil && replica.Client(t).Get(t.Context(), "after").Val() == name
	})
	t.Logf("writes go on after %s", time.Since(began))
	w.awaitLoad(t) // behind the fault
	close(stop)
	wg.Wait()
	a.redis = replica
	keys := append(append(kept[0], kept[1]...), "count:1", "count:2", "after")
	same(t, keys, a, b)
	for _, z := range []zone{a, b} {
		values, err := z.redis.Client(t).MGet(t.Context(), keys...).Result()
		require.NoError(t, err)
		for i, v := range values {
			require.NotNil(t, v, "%s is missing", keys[i])
		}
	}
	for _, key := range []string{"count:1", "count:2"} {
		n, err := replica.Client(t).Get(t.Context(), key).Int64()
		require.NoError(t, err)
		t.Logf("%s: %d, %d acknowledged, %d in doubt", key, n, w.counts[key], w.doubt[key])
		assert.GreaterOrEqual(t, n, w.counts[key], "an acknowledged increment is missing")
		assert.LessOrEqual(t, n, w.counts[key]+w.doubt[key], "an increment counts twice")
	}
	t.Logf("%d and %d keys; epoch %d", len(kept[0]), len(kept[1]), a.zones().Outbox.Epoch)
	assert.Zero(t, a.metric(`sonic_gaps_total{origin="a"}`)+b.metric(`sonic_gaps_total{origin="a"}`))
}

// large is what the replica lacks: more than the buffers of the system hold, which it still gets.
var large = strings.Repeat("x", 50_000)

// lacking is how many keys hold that.
const lacking = 400

// detach stops the replica, and writes what is lost with the primary.
func detach(t testing.TB, a zone, replica *stack.RedisServer) {
	t.Helper()
	require.NoError(t, replica.Pause())
	_, err := a.client().Pipelined(t.Context(), func(pipe redis.Pipeliner) error {
		for i := range lacking {
			pipe.Set(t.Context(), fmt.Sprintf("lost-%d", i), large, 0)
		}
		return nil
	})
	require.NoError(t, err)
}

// restored checks that the replica has got what it lacked.
func restored(t testing.TB, a zone, replica *stack.RedisServer) {
	t.Helper()
	for i := range lacking {
		require.EqualValues(t, len(large), replica.Client(t).StrLen(t.Context(), fmt.Sprintf("lost-%d", i)).Val(), "%d", i)
	}
	assert.Contains(t, a.Log(), "restored the effects that this Redis had lost", "the replica lacked nothing")
}

// The Sentinels promote the replica, which lacks a moment of writes that were answered: they come
// back from the topic.
func TestSentinelsPromoteAReplica(t *testing.T) {
	t.Parallel()
	a, b, replica := withReplica(t, func(primary, _ *stack.RedisServer) []string {
		var addresses []string
		for _, s := range stack.PrivateSentinels(t, "shop", primary, 3) {
			addresses = append(addresses, s.Addr())
		}
		return []string{"SONIC_REDIS_SENTINEL_MASTER=shop", "SONIC_REDIS_SENTINEL_ADDRESSES=[" + strings.Join(addresses, ", ") + "]"}
	})
	w := newWriter()
	failover(t, "first", w, a, b, replica, func() {
		detach(t, a, replica)
		require.NoError(t, a.redis.Kill())
		require.NoError(t, replica.Resume())
	})
	restored(t, a, replica)
}

// What stands before Redis leads to the replica once that is promoted. The former primary goes on,
// and is made a replica later.
func TestTheAddressLeadsToAReplica(t *testing.T) {
	t.Parallel()
	a, b, replica, line := withReplicaBehind(t)
	primary := a.redis
	w := newWriter()
	failover(t, "first", w, a, b, replica, func() {
		detach(t, a, replica)
		line.Close()
		require.NoError(t, primary.Pause()) // what it does not send its replica any more is lost
		require.NoError(t, replica.Resume())
		replica.Promote(t)
		require.NoError(t, line.Forward(replica.Addr()))
		require.NoError(t, primary.Resume())
		primary.Follow(t, replica)
	})
	restored(t, a, replica)
	// And back: the former primary was open once, and did not end since.
	a.redis = replica
	failover(t, "second", w, a, b, primary, func() {
		line.Close()
		primary.Promote(t)
		require.NoError(t, line.Forward(primary.Addr()))
		replica.Follow(t, primary)
	})
}
