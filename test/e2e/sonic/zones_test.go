package sonic

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/systems"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/stack"
)

// awaitCrossed waits until every zone has what was written before in the others: a zone's writes
// cross in their order, so the last one is enough.
func awaitCrossed(t testing.TB, zones ...zone) {
	t.Helper()
	mark := fmt.Sprint(time.Now().UnixNano())
	for i, z := range zones {
		require.NoError(t, z.client().Set(t.Context(), fmt.Sprintf("settled-%d", i), mark, 0).Err())
	}
	for i := range zones {
		for _, z := range zones {
			c := z.redis.Client(t)
			systems.Await(t, await.Patience, "what was written has crossed", func() bool { return c.Get(t.Context(), fmt.Sprintf("settled-%d", i)).Val() == mark })
		}
	}
}

// same waits until both zones have what is written, and the same.
func same(t testing.TB, keys []string, zones ...zone) {
	t.Helper()
	awaitCrossed(t, zones...)
	clients := make([]*redis.Client, len(zones))
	for i, z := range zones {
		clients[i] = z.redis.Client(t)
	}
	systems.Await(t, await.Patience, "both zones hold the same", func() bool {
		var first string
		for i, c := range clients {
			values, err := c.MGet(t.Context(), keys...).Result()
			if err != nil {
				return false
			}
			if text := fmt.Sprint(values); i == 0 {
				first = text
			} else if text != first {
				return false
			}
		}
		return true
	})
}

func TestAWriteIsReadInTheOtherZone(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	ca, cb := a.client(), b.client()
	ctx := t.Context()
	for i, from := range []*redis.Client{ca, cb} {
		to := []*redis.Client{cb, ca}[i]
		key := fmt.Sprintf("key-%d", i)
		began := time.Now()
		require.NoError(t, from.Set(ctx, key, "value", 0).Err())
		systems.Await(t, await.Patience, "the write crosses", func() bool { return to.Get(ctx, key).Val() == "value" })
		t.Logf("%s crossed after %s", key, time.Since(began))
	}
	require.NoError(t, ca.HSet(ctx, "h", "f", "1", "g", "2").Err())
	require.NoError(t, cb.SAdd(ctx, "s", "m").Err())
	require.NoError(t, ca.RPush(ctx, "l", "x", "y").Err())
	systems.Await(t, await.Patience, "other types cross", func() bool {
		return cb.HGet(ctx, "h", "g").Val() == "2" && ca.SIsMember(ctx, "s", "m").Val() && cb.LLen(ctx, "l").Val() == 2
	})
	systems.Await(t, await.Patience, "/zones shows the other zone", func() bool {
		z := a.zones()
		return len(z.Origins) == 1 && z.Origins[0].Zone == "b" && z.Origins[0].LagSeconds >= 0 && z.Outbox.Owner && z.Outbox.Length <= 2
	})
}

// writer increments counters and sets keys, and counts what was acknowledged.
type writer struct {
	mu     sync.Mutex
	counts map[string]int64 // acknowledged increments
	doubt  map[string]int64 // increments whose reply never came
}

func newWriter() *writer { return &writer{counts: map[string]int64{}, doubt: map[string]int64{}} }

// acknowledged returns how many increments were.
func (w *writer) acknowledged() (sum int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range w.counts {
		sum += n
	}
	return sum
}

// load is how many increments are acknowledged between faults.
const load = 100

// awaitLoad waits until that many more are acknowledged.
func (w *writer) awaitLoad(t testing.TB) {
	t.Helper()
	before := w.acknowledged()
	systems.Await(t, await.Patience, "the zones are under load", func() bool { return w.acknowledged() >= before+load })
}

func (w *writer) run(t testing.TB, stop <-chan struct{}, z zone, keys ...string) {
	t.Helper()
	ctx := t.Context()
	for {
		c := redis.NewClient(&redis.Options{Addr: z.AddressNow("redis"), MaxRetries: -1, PoolSize: 1})
		for i := 0; ; i++ {
			select {
			case <-stop:
				_ = c.Close()
				return
			default:
			}
			key := keys[i%len(keys)]
			err := c.Incr(ctx, key).Err()
			w.mu.Lock()
			switch {
			case err == nil:
				w.counts[key]++
			case !strings.HasPrefix(err.Error(), "LOADING"): // that one was not executed; of others nobody knows
				w.doubt[key]++
			}
			w.mu.Unlock()
			if err != nil {
				time.Sleep(10 * time.Millisecond) // the rate of attempts
				break
			}
		}
		_ = c.Close()
	}
}

func TestCountersSurviveKillsOfSonic(t *testing.T) {
	t.Parallel()
	faults(t, func(a, b zone, round int) {
		z := []zone{a, b}[round%2]
		z.Kill()
		z.Start()
	})
}

func TestCountersSurviveKillsOfRedis(t *testing.T) {
	t.Parallel()
	faults(t, func(a, b zone, round int) {
		z := []zone{a, b}[round%2]
		require.NoError(t, z.redis.Kill())
		require.NoError(t, z.redis.Start(t.Context()))
	})
}

// faults has both zones count while something breaks, and then compares with what was acknowledged.
func faults(t *testing.T, breaks func(a, b zone, round int)) {
	t.Helper()
	a, b := pair(t, "SONIC_CONFLICTS=[{prefix: 'count:', policy: counter}]")
	w := newWriter()
	keys := []string{"count:1", "count:2"}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for _, z := range []zone{a, b} {
		wg.Go(func() { w.run(t, stop, z, keys...) })
	}
	for round := range rounds(t, 2, 8) {
		w.awaitLoad(t)
		breaks(a, b, round)
	}
	for _, z := range []zone{a, b} {
		z.awaitWritable()
	}
	w.awaitLoad(t) // behind the last fault
	close(stop)
	wg.Wait()
	same(t, keys, a, b)
	for _, key := range keys {
		n, err := a.redis.Client(t).Get(t.Context(), key).Int64()
		require.NoError(t, err)
		t.Logf("%s: %d, %d acknowledged, %d in doubt", key, n, w.counts[key], w.doubt[key])
		assert.Positive(t, w.counts[key])
		assert.GreaterOrEqual(t, n, w.counts[key], "an acknowledged increment is missing")
		assert.LessOrEqual(t, n, w.counts[key]+w.doubt[key], "an increment counts twice")
	}
}

func TestRefusedAtStart(t *testing.T) {
	t.Parallel()
	pulsar := stack.Pulsar(t)
	refused := func(t *testing.T, redis *stack.RedisServer, want string, env ...string) {
		t.Helper()
		s := run(t, append([]string{"SONIC_PULSAR_URL=" + pulsar.URL(), "SONIC_REDIS_URL=" + redis.URL()}, env...)...)
		assert.Error(t, s.Ended(await.Patience))
		assert.Contains(t, s.Log(), want)
	}
	t.Run("evicts", func(t *testing.T) {
		t.Parallel()
		refused(t, stack.PrivateRedis(t, stack.Conf(map[string]string{"maxmemory-policy": "allkeys-lru"})), "allkeys-lru")
	})
	t.Run("a replica", func(t *testing.T) {
		t.Parallel()
		master, replica := stack.PrivateRedis(t), stack.PrivateRedis(t)
		replica.Follow(t, master)
		refused(t, replica, "its role is slave")
	})
	t.Run("another zone's", func(t *testing.T) {
		t.Parallel()
		r := stack.PrivateRedis(t)
		topic := "SONIC_TOPIC=persistent://" + pulsar.Namespace(t) + "/sonic"
		s := run(t, "SONIC_PULSAR_URL="+pulsar.URL(), "SONIC_REDIS_URL="+r.URL(), topic, "SONIC_ZONE=east")
		zone{s, r}.awaitWritable()
		s.Stop()
		refused(t, r, `zone \"east\"`, topic, "SONIC_ZONE=west")
	})
}

// A Redis that comes back older than it was gets what it has lost from its own topic, and then both
// zones hold the same.
func TestARedisThatComesBackOlder(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	ctx := t.Context()
	ca := a.client()
	set := func(from, to int) (keys []string) {
		for i := from; i < to; i++ {
			key := fmt.Sprintf("key-%d", i)
			require.NoError(t, ca.Set(ctx, key, i, 0).Err())
			keys = append(keys, key)
		}
		return keys
	}
	keys := set(0, 100)
	older := copyOf(t, a.redis)
	keys = append(keys, set(100, 200)...)
	require.NoError(t, ca.Del(ctx, "key-1").Err())
	same(t, keys, a, b)
	systems.Await(t, await.Patience, "all is shipped", func() bool { return a.zones().Outbox.Length <= 1 })
	require.NoError(t, a.redis.Kill())
	older()
	require.NoError(t, a.redis.Start(ctx))
	systems.Await(t, await.Patience, "what was lost is there again", func() bool {
		n, err := a.redis.Client(t).Get(ctx, "key-199").Int()
		return err == nil && n == 199
	})
	a.awaitWritable()
	ca = a.client()
	keys = append(keys, set(200, 300)...)
	same(t, keys, a, b)
	assert.EqualValues(t, 0, a.redis.Client(t).Exists(ctx, "key-1").Val())
	assert.EqualValues(t, 2, a.zones().Outbox.Epoch)
}

// copyOf keeps what a Redis has on disk now, and returns what puts it back.
func copyOf(t *testing.T, r *stack.RedisServer) (putBack func()) {
	t.Helper()
	files := os.DirFS(r.Dir() + "/appendonlydir")
	kept := t.TempDir() + "/kept"
	require.NoError(t, os.CopyFS(kept, files))
	return func() {
		require.NoError(t, os.RemoveAll(r.Dir()+"/appendonlydir"))
		require.NoError(t, os.CopyFS(r.Dir()+"/appendonlydir", os.DirFS(kept)))
	}
}

// Two Sonics before one Redis: both serve, one ships, and the other takes over.
func TestAnotherSonicTakesOver(t *testing.T) {
	t.Parallel()
	a, b := pair(t, "SONIC_ACK=published")
	second := zone{run(t, a.Env()...), a.redis}
	ctx := t.Context()
	c := second.client()
	require.NoError(t, c.Set(ctx, "by the second", "1", 0).Err())
	systems.Await(t, await.Patience, "the write crosses", func() bool { return b.client().Get(ctx, "by the second").Val() == "1" })
	assert.False(t, second.zones().Outbox.Owner)
	a.Kill()
	require.NoError(t, c.Set(ctx, "behind the first", "1", 0).Err(), "it waits until the second has taken over")
	systems.Await(t, await.Patience, "it is shown that it ships", func() bool { return second.zones().Outbox.Owner })
	systems.Await(t, await.Patience, "the write crosses", func() bool { return b.client().Get(ctx, "behind the first").Val() == "1" })
}
