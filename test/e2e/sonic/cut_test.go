package sonic

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/proxy"
	"github.com/aviaryhq/aviary/test/stack"
	"github.com/aviaryhq/aviary/test/systems"
)

// TestTheAgeOfTheOutboxOfACluster: it rises while Pulsar is unavailable, and is 0 once everything is
// stored.
func TestTheAgeOfTheOutboxOfACluster(t *testing.T) {
	t.Parallel()
	url, pulsar, line := cluster(t)
	nodes := stack.PrivateRedisCluster(t, 3, 0)
	a := &place{name: "a", nodes: nodes}
	a.service = run(t, "SONIC_ZONE=a", "SONIC_ZONES=[a, b]", "SONIC_TOPIC=persistent://"+pulsar.Namespace(t)+"/sonic", "SONIC_REDIS_URL="+a.redisURL(),
		"SONIC_PULSAR_URL="+url, "SONIC_PULSAR_LISTENER_NAME="+proxy.Listener)
	a.awaitWritable()
	age := func() float64 { return a.metric("sonic_outbox_age_seconds") }
	stored := func() {
		t.Helper() // an age that is not known is -1 there, and no metric
		systems.Await(t, await.Patience, "all is stored", func() bool { return a.zones().Outbox.AgeSeconds == 0 && age() == 0 })
	}
	stored()
	line.Cut()
	require.NoError(t, a.client().Set(t.Context(), "k", "v", 0).Err())
	systems.Await(t, await.Patience, "the write has an age", func() bool { return age() > 0 })
	first := age()
	systems.Await(t, await.Patience, "the age rises", func() bool { return age() > first })
	require.NoError(t, line.Restore())
	stored()
}

// While Pulsar is unavailable a zone takes writes until its outbox is full, and says so; then
// everything crosses.
func TestPulsarIsUnavailable(t *testing.T) {
	t.Parallel()
	url, pulsar, line := cluster(t)
	topic := "SONIC_TOPIC=persistent://" + pulsar.Namespace(t) + "/sonic"
	begin := func(name string, more ...string) zone {
		r := durable(t)
		return zone{run(t, append(more, "SONIC_ZONE="+name, "SONIC_ZONES=[a, b]", topic, "SONIC_REDIS_URL="+r.URL())...), r}
	}
	a := begin("a", "SONIC_PULSAR_URL="+url, "SONIC_PULSAR_LISTENER_NAME="+proxy.Listener, "SONIC_OUTBOX_BYTES=1MiB", "SONIC_OUTBOX_FULL=fail")
	b := begin("b", "SONIC_PULSAR_URL="+pulsar.URL())
	for _, z := range []zone{a, b} {
		z.awaitWritable()
	}
	ctx, ca, cb := t.Context(), a.client(), b.client()
	var keys []string
	line.Cut()
	refused := false
	for i := 0; i < 20_000 && !refused; i++ {
		key := fmt.Sprintf("a-%d", i)
		if err := ca.Set(ctx, key, strings.Repeat("x", 1000), 0).Err(); err != nil {
			require.ErrorContains(t, err, "the outbox is full")
			refused = true
		} else {
			keys = append(keys, key)
		}
	}
	require.True(t, refused, "writes went on and on")
	assert.Greater(t, len(keys), 200)
	assert.NoError(t, ca.Get(ctx, keys[0]).Err(), "reads go on")
	systems.Await(t, await.Patience, "it is shown that the outbox is full", func() bool { return a.zones().Outbox.Full && a.metric("sonic_outbox_full") > 0 })
	require.NoError(t, cb.Set(ctx, "b", "1", 0).Err())
	assert.EqualValues(t, 0, b.redis.Client(t).Exists(ctx, keys[0]).Val())

	require.NoError(t, line.Restore())
	systems.Await(t, await.Patience, "writes are taken again", func() bool { return ca.Set(ctx, "again", "1", 0).Err() == nil })
	same(t, append(keys, "b", "again"), a, b)
	systems.Await(t, await.Patience, "the outbox is empty", func() bool { z := a.zones(); return z.Outbox.Length <= 2 && !z.Outbox.Full && z.Outbox.Unhealthy == "" })
	assert.Zero(t, a.metric(`sonic_gaps_total{origin="b"}`)+b.metric(`sonic_gaps_total{origin="a"}`))
}
