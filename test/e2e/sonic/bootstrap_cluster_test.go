package sonic

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack"
	"github.com/aviaryhq/aviary/test/systems"
)

// TestAZoneMovesFromOneRedisToACluster takes the steps of docs/sonic.md, while clients write all the
// time.
func TestAZoneMovesFromOneRedisToACluster(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	geo := stack.Geo(t)
	topic := "persistent://" + geo.Namespace(t) + "/sonic"
	env := func(name, names, url string) []string {
		return []string{"SONIC_ZONE=" + name, "SONIC_ZONES=" + names, "SONIC_TOPIC=" + topic, "SONIC_PULSAR_URL=" + geo.A.URL(), "SONIC_REDIS_URL=" + url}
	}
	const policies = "SONIC_CONFLICTS=[{prefix: 'count:', policy: counter}, {prefix: 'own:', policy: none}]"
	one := durable(t)
	to := &place{name: "c", nodes: stack.PrivateRedisCluster(t, 3, 0, "appendonly yes", "appendfsync always")}
	w := newWriter()
	var kept []string
	writing := func(z zone, name string) (end func()) {
		stop := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() { w.run(t, stop, z, "count:1", "count:2", "count:3") })
		wg.Go(func() { kept = append(kept, setter(t, stop, z, name)...) })
		return func() { close(stop); wg.Wait() }
	}

	// The zone is alone.
	a := zone{run(t, append(env("a", "[a]", one.URL()), policies)...), one}
	a.awaitWritable()
	c := a.client()
	for n, key := range spread("alone") {
		require.NoError(t, c.Set(ctx, key, n, 0).Err())
		require.NoError(t, c.HSet(ctx, key+"-hash", "f", n, "gone", n).Err())
		require.NoError(t, c.RPush(ctx, "own:"+key, "x", n).Err())
		require.NoError(t, c.IncrBy(ctx, "count:"+key, int64(n)).Err())
	}
	a.Stop()

	// 1. The new zone is named.
	a = zone{run(t, append(env("a", "[a, c]", one.URL()), policies)...), one}
	a.awaitWritable()
	end := writing(a, "a")
	w.awaitLoad(t)
	require.NoError(t, a.client().HDel(ctx, "alone-1-hash", "gone").Err())
	require.NoError(t, a.client().Del(ctx, "alone-2").Err())

	// 2. Its Redis Cluster is filled.
	both := append(env("c", "[a, c]", to.redisURL()), policies)
	fill(t, both, "a", one)
	require.NoError(t, a.client().RPush(ctx, "own:alone-3", "later").Err())
	require.NoError(t, a.client().Del(ctx, "alone-4").Err())

	// 3. Its Sonic is started.
	to.service = run(t, both...)
	to.awaitWritable()
	w.awaitLoad(t)

	// 4. The clients move.
	endC := writing(zone{to.service, nil}, "c")
	w.awaitLoad(t)
	end()
	require.NoError(t, a.client().Set(ctx, "last", "of a", 0).Err())
	systems.Await(t, await.Patience, "the new zone has all of the old one", func() bool { return to.client().Get(ctx, "last").Val() == "of a" })
	w.awaitLoad(t)
	endC()
	peers := fmt.Sprintf("SONIC_PEERS=[{zone: a, redis: {url: '%s'}}]", one.URL())
	out, err := systems.Command(ctx, []string{"-check"}, append([]string{peers}, both...)).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "0 keys differ")

	// 5. The old zone is taken out. A Redis Cluster without other zones has no policies.
	a.Stop()
	to.Stop()
	to.service = run(t, env("c", "[c]", to.redisURL())...)
	to.awaitWritable()
	c = to.client()
	require.NoError(t, c.Set(ctx, "alone again", "c", 0).Err())
	for n, key := range spread("alone") {
		value := fmt.Sprint(n)
		if gone := n == 2 || n == 4; gone {
			assert.Zero(t, c.Exists(ctx, key).Val(), key)
		} else {
			assert.Equal(t, value, c.Get(ctx, key).Val(), key)
		}
		hash := map[string]string{"f": value, "gone": value}
		list := []string{"x", value}
		if n == 1 {
			delete(hash, "gone")
		}
		if n == 3 {
			list = append(list, "later")
		}
		assert.Equal(t, hash, c.HGetAll(ctx, key+"-hash").Val(), key)
		assert.Equal(t, list, c.LRange(ctx, "own:"+key, 0, -1).Val(), key)
		assert.Equal(t, value, c.Get(ctx, "count:"+key).Val(), key)
	}
	for _, key := range kept {
		assert.Equal(t, key[2:], c.Get(ctx, key).Val(), key) // setter writes its number
	}
	for key, acknowledged := range w.counts {
		n, err := c.Get(ctx, key).Int64()
		require.NoError(t, err)
		assert.GreaterOrEqual(t, n, acknowledged, "an acknowledged increment is missing")
		assert.LessOrEqual(t, n, acknowledged+w.doubt[key], "an increment counts twice")
	}
	t.Logf("%d keys, %v increments", len(kept), w.counts)
}
