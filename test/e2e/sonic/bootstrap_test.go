package sonic

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack"
	"github.com/aviaryhq/aviary/test/systems"
)

// fill fills the zone's Redis from that of another one by the command.
func fill(t testing.TB, env []string, from string, source *stack.RedisServer) {
	t.Helper()
	cmd := systems.Command(t.Context(), []string{"-bootstrap", from}, append([]string{fmt.Sprintf("SONIC_PEERS=[{zone: %s, redis: {url: '%s'}}]", from, source.URL())}, env...))
	began := time.Now()
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "is filled")
	t.Logf("filled from %s within %s", from, time.Since(began))
}

// A zone that was never started, and then one that was emptied, are filled while all others write.
// The topics keep nothing that was acknowledged.
func TestZonesAreFilledWhileOthersWrite(t *testing.T) {
	t.Parallel()
	geo := stack.Geo(t)
	topic := "persistent://" + geo.Namespace(t) + "/sonic"
	env := func(name, url string, r *stack.RedisServer) []string {
		return []string{
			"SONIC_ZONE=" + name, "SONIC_ZONES=[a, b, c]", "SONIC_TOPIC=" + topic, "SONIC_PULSAR_URL=" + url, "SONIC_REDIS_URL=" + r.URL(),
			"SONIC_CONFLICTS=[{prefix: 'count:', policy: counter}]",
		}
	}
	var redises []*stack.RedisServer
	for range 3 {
		redises = append(redises, durable(t))
	}
	envs := [][]string{env("a", geo.A.URL(), redises[0]), env("b", geo.B.URL(), redises[1]), env("c", geo.A.URL(), redises[2])}
	w := newWriter()
	var kept [3][]string
	writing := func(z zone, i int, name string) (end func()) {
		stop := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() { w.run(t, stop, z, "count:1", "count:2") })
		wg.Go(func() { kept[i] = append(kept[i], setter(t, stop, z, name)...) })
		return func() { close(stop); wg.Wait() }
	}
	a, b := zone{run(t, envs[0]...), redises[0]}, zone{run(t, envs[1]...), redises[1]}
	for _, z := range []zone{a, b} {
		z.awaitWritable()
	}
	endA, endB := writing(a, 0, "a"), writing(b, 1, "b")
	w.awaitLoad(t) // what they write before
	fill(t, envs[2], "a", redises[0])
	c := zone{run(t, envs[2]...), redises[2]}
	c.awaitWritable()
	endC := writing(c, 2, "c")

	w.awaitLoad(t) // while all three write
	endB()
	systems.Await(t, await.Patience, "what b wrote is stored", func() bool { return b.zones().Outbox.Length <= 2 })
	b.Stop()
	require.NoError(t, redises[1].Client(t).FlushAll(t.Context()).Err())
	require.NoError(t, redises[1].Client(t).Do(t.Context(), "FUNCTION", "FLUSH").Err())
	fill(t, envs[1], "c", redises[2])
	b.Start()
	b.awaitWritable()
	endB = writing(b, 1, "again")
	w.awaitLoad(t) // behind the fill
	for _, end := range []func(){endA, endB, endC} {
		end()
	}
	keys := []string{"count:1", "count:2"}
	for _, some := range kept {
		keys = append(keys, some...)
	}
	same(t, keys, a, b, c)
	values, err := redises[1].Client(t).MGet(t.Context(), keys...).Result()
	require.NoError(t, err)
	for i, v := range values {
		require.NotNil(t, v, "%s is missing", keys[i])
	}
	for _, key := range keys[:2] {
		n, err := redises[1].Client(t).Get(t.Context(), key).Int64()
		require.NoError(t, err)
		t.Logf("%s: %d, %d acknowledged, %d in doubt", key, n, w.counts[key], w.doubt[key])
		assert.GreaterOrEqual(t, n, w.counts[key], "an acknowledged increment is missing")
		assert.LessOrEqual(t, n, w.counts[key]+w.doubt[key], "an increment counts twice")
	}
	t.Logf("%d, %d and %d keys", len(kept[0]), len(kept[1]), len(kept[2]))
	for _, z := range []zone{a, b, c} {
		for _, origin := range z.zones().Origins {
			assert.False(t, origin.Gap, "of %s", origin.Zone)
		}
	}
}
