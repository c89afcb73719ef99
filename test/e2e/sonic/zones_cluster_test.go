package sonic

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack"
	"github.com/aviaryhq/aviary/test/systems"
)

// place is a zone: a Sonic in front of one Redis, or of a Redis Cluster.
type place struct {
	*service
	name  string
	one   *stack.RedisServer  // nil: it has a cluster
	nodes *stack.RedisCluster // nil: it has one Redis
}

// redisURL is what the Sonic of a zone needs to reach its Redis.
func (s *place) redisURL() string {
	if s.nodes != nil {
		return "redis://" + strings.Join(s.nodes.Addresses(), ",")
	}
	return s.one.URL()
}

// direct is a client of the zone's Redis, past Sonic.
func (s *place) direct() redis.UniversalClient {
	s.t.Helper()
	if s.nodes == nil {
		return s.one.Client(s.t)
	}
	c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: s.nodes.Addresses()})
	s.t.Cleanup(func() { _ = c.Close() })
	return c
}

// fixture is some zones that replicate to each other, named a, b, .. Zones a, c, .. use one Pulsar, and
// b, d, .. the other one.
type fixture struct {
	t      testing.TB
	geo    *stack.GeoPair
	topic  string
	more   []string // variables of all Sonics
	places []*place
}

// oneRedis is the kind of a zone without a Redis Cluster.
const oneRedis = 0

// startZones starts a zone for each of kinds: oneRedis, or of how many primaries its Redis Cluster is.
// They lose nothing when they are killed. more are variables of all zones. It returns when all zones
// take writes.
func startZones(t testing.TB, kinds []int, more ...string) *fixture {
	t.Helper()
	geo := stack.Geo(t)
	w := &fixture{t: t, geo: geo, topic: "persistent://" + geo.Namespace(t) + "/sonic", more: more}
	for i, primaries := range kinds {
		s := &place{name: string(rune('a' + i))}
		if primaries == oneRedis {
			s.one = durable(t)
		} else {
			s.nodes = stack.PrivateRedisCluster(t, primaries, 0, "appendonly yes", "appendfsync always", "cluster-require-full-coverage no")
		}
		w.places = append(w.places, s)
	}
	for _, s := range w.places {
		s.service = run(t, w.env(s)...)
	}
	for _, s := range w.places {
		s.awaitWritable()
	}
	return w
}

// env returns the variables of a zone's Sonic.
func (w *fixture) env(s *place) []string {
	var names []string
	for _, s := range w.places {
		names = append(names, s.name)
	}
	url := w.geo.A.URL()
	if (s.name[0]-'a')%2 == 1 {
		url = w.geo.B.URL()
	}
	return append([]string{
		"SONIC_ZONE=" + s.name, "SONIC_ZONES=[" + strings.Join(names, ", ") + "]", "SONIC_TOPIC=" + w.topic, "SONIC_PULSAR_URL=" + url, "SONIC_REDIS_URL=" + s.redisURL(),
	}, w.more...)
}

// another starts a further Sonic of the zone, with the variables of the first one.
func (w *fixture) another(s *place, env ...string) *service {
	w.t.Helper()
	return run(w.t, append(w.env(s), env...)...)
}

// spread are keys of many slots: some are of each primary.
func spread(prefix string) (keys []string) {
	for i := range 30 {
		keys = append(keys, fmt.Sprintf("%s-%d", prefix, i))
	}
	return keys
}

// awaitWritable waits until all slots take writes.
func (s *place) awaitWritable() {
	s.t.Helper()
	c := s.client()
	for _, key := range spread("ready-" + s.name) {
		systems.Await(s.t, await.Patience, "zone "+s.name+" takes writes", func() bool { return c.Set(s.t.Context(), key, "yes", 0).Err() == nil })
	}
}

// TestWritesCrossBetweenOneRedisAndAClusterOfRedis: also those of other types, in both directions, and
// both Sonics show how far they are.
func TestWritesCrossBetweenOneRedisAndAClusterOfRedis(t *testing.T) {
	t.Parallel()
	w := startZones(t, []int{oneRedis, 3})
	ctx := t.Context()
	for i, from := range w.places {
		to := w.places[1-i]
		c, other := from.client(), to.client()
		for n, key := range spread("from-" + from.name) {
			require.NoError(t, c.Set(ctx, key, n, 0).Err())
			require.NoError(t, c.HSet(ctx, key+"-hash", "f", n).Err())
			require.NoError(t, c.RPush(ctx, key+"-list", "x", n).Err())
			require.NoError(t, c.IncrBy(ctx, key+"-number", int64(n)).Err())
		}
		for n, key := range spread("from-" + from.name) {
			value := fmt.Sprint(n)
			systems.Await(t, await.Patience, key+" crosses", func() bool { // each slot for itself
				return other.Get(ctx, key).Val() == value && other.Get(ctx, key+"-number").Val() == value && other.HGet(ctx, key+"-hash", "f").Val() == value &&
					slices.Equal([]string{"x", value}, other.LRange(ctx, key+"-list", 0, -1).Val())
			})
		}
	}
	for i, s := range w.places {
		systems.Await(t, await.Patience, "zone "+s.name+" shows that nothing is left", func() bool {
			z := s.zones()
			return z.Outbox.Owner && z.Outbox.Bytes >= 0 && s.metric("sonic_outbox_owner") == 1 && len(z.Origins) == 1 && z.Origins[0].Zone == w.places[1-i].name &&
				z.Origins[0].LagSeconds >= 0 && z.Origins[0].Unhealthy == "" && len(z.Origins[0].Differs) == 0
		})
	}
	z := w.places[1].zones()
	require.Len(t, z.Cluster.Primaries, 3)
	for _, p := range z.Cluster.Primaries {
		assert.Empty(t, p.NotReady)
		assert.InDelta(t, 1, w.places[1].metric(`sonic_cluster_primary_ready{primary="`+p.Address+`"}`), 0)
	}
}

// TestAnotherSonicOfAZoneWithACluster ships and applies after the first one was killed.
func TestAnotherSonicOfAZoneWithACluster(t *testing.T) {
	t.Parallel()
	w := startZones(t, []int{3, 2})
	ctx := t.Context()
	a, b := w.places[0], w.places[1]
	second := w.another(a)
	a.Kill()
	c, other := second.client(), b.client()
	for n, key := range spread("after") {
		require.NoError(t, c.Set(ctx, key, n, 0).Err())
		require.NoError(t, other.Set(ctx, "back-"+key, n, 0).Err())
	}
	for n, key := range spread("after") {
		systems.Await(t, await.Patience, key+" crosses", func() bool {
			return other.Get(ctx, key).Val() == fmt.Sprint(n) && c.Get(ctx, "back-"+key).Val() == fmt.Sprint(n)
		})
	}
	stored := b.direct()
	for n, key := range spread("after") {
		assert.Equal(t, fmt.Sprint(n), stored.Get(ctx, key).Val(), "in the Redis Cluster itself")
	}
	systems.Await(t, await.Patience, "it owns the topic", func() bool { return second.zones().Outbox.Owner })
}
