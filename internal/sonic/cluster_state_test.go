package sonic

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/sonic/cluster"
	"github.com/aviaryhq/aviary/internal/sonic/redislib"
	"github.com/aviaryhq/aviary/internal/sonic/script"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack"
)

// stillCluster is a cluster that does not change.
type stillCluster struct {
	m   *cluster.Map
	err error
}

func (c stillCluster) Map() *cluster.Map { return c.m }
func (c stillCluster) Err() error        { return c.err }

// TestStateOfACluster: ready while one primary can be reached, and everything that is not served
// is named.
func TestStateOfACluster(t *testing.T) {
	t.Parallel()
	a, b := cluster.Primary{ID: "1", Address: "a:1"}, cluster.Primary{ID: "2", Address: "b:2"}
	whole := cluster.NewMap([]cluster.Range{{First: 0, Last: 8191, Primary: a}, {First: 8192, Last: 16383, Primary: b}})
	partly := cluster.NewMap([]cluster.Range{{First: 0, Last: 99, Primary: a}})
	gone := errors.New("connection refused")
	for name, row := range map[string]struct {
		m           *cluster.Map
		err         error
		unreachable map[string]error
		ready       bool
		unserved    int
		problems    []string
	}{
		"whole":           {m: whole, ready: true},
		"left the map":    {m: whole, unreachable: map[string]error{"c:3": gone}, ready: true},
		"one is down":     {m: whole, unreachable: map[string]error{"b:2": gone}, ready: true, unserved: 8192, problems: []string{"primary b:2, which has 8192 slots, cannot be reached: connection refused"}},
		"all are down":    {m: whole, unreachable: map[string]error{"a:1": gone, "b:2": gone}, unserved: 16384, problems: []string{"primary a:1, which has 8192 slots", "primary b:2, which has 8192 slots"}},
		"without primary": {m: partly, ready: true, unserved: 16284, problems: []string{"16284 slots have no primary"}},
		"rest is down":    {m: partly, unreachable: map[string]error{"a:1": gone}, unserved: 16384, problems: []string{"16284 slots have no primary", "primary a:1, which has 100 slots"}},
		"no answer yet":   {err: gone, unserved: 16384, problems: []string{"no node of the Redis Cluster has answered yet", "connection refused"}},
		"no slots":        {m: cluster.NewMap(nil), unserved: 16384, problems: []string{"16384 slots have no primary"}},
	} {
		c := &clusterState{cluster: stillCluster{row.m, row.err}, unreachable: func() map[string]error { return row.unreachable }}
		unserved, err := c.problem()
		assert.Equal(t, row.unserved, unserved, name)
		if row.unserved == 0 {
			require.NoError(t, err, name)
		}
		for _, problem := range row.problems {
			require.ErrorContains(t, err, problem, name)
		}
		if row.ready {
			assert.NoError(t, c.ready(), name)
		} else {
			assert.Equal(t, err, c.ready(), name)
		}
	}
}

// TestWhatIsShownOfACluster on the page and by the metrics.
func TestWhatIsShownOfACluster(t *testing.T) {
	t.Parallel()
	a, b := cluster.Primary{ID: "1", Address: "a:1"}, cluster.Primary{ID: "2", Address: "b:2"}
	c := &clusterState{
		cluster:     stillCluster{m: cluster.NewMap([]cluster.Range{{First: 0, Last: 99, Primary: a}, {First: 100, Last: 16383, Primary: b}})},
		unreachable: func() map[string]error { return map[string]error{"b:2": errors.New("connection refused")} },
	}
	z := (&service{cfg: DefaultConfig(), cluster: c}).status()
	assert.Equal(t, Zones{Zone: "default", Origins: []OriginStatus{}, Cluster: &ClusterStatus{
		Primaries:     []PrimaryStatus{{Address: "a:1", Slots: 100}, {Address: "b:2", Slots: 16284, Unhealthy: "connection refused"}},
		UnservedSlots: 16284, Unhealthy: "primary b:2, which has 16284 slots, cannot be reached: connection refused",
	}}, z)
	problems, err := testutil.CollectAndLint(collector{&service{cfg: DefaultConfig(), cluster: c}})
	require.NoError(t, err)
	assert.Empty(t, problems)
	assert.NoError(t, testutil.CollectAndCompare(collector{&service{cfg: DefaultConfig(), cluster: c}}, strings.NewReader(`
# HELP sonic_cluster_primary_slots How many slots the primary has.
# TYPE sonic_cluster_primary_slots gauge
sonic_cluster_primary_slots{primary="a:1"} 100
sonic_cluster_primary_slots{primary="b:2"} 16284
# HELP sonic_cluster_primary_up 1 while there is a connection to the primary.
# TYPE sonic_cluster_primary_up gauge
sonic_cluster_primary_up{primary="a:1"} 1
sonic_cluster_primary_up{primary="b:2"} 0
# HELP sonic_cluster_unserved_slots Slots of the Redis Cluster without a primary, or with one that cannot be reached. Commands for these slots get errors.
# TYPE sonic_cluster_unserved_slots gauge
sonic_cluster_unserved_slots 16284
`)))
}

// TestStatesOfPrimaries: one that takes no writes is named, and does not matter to readiness while
// another one takes them. The outbox is full if one primary has more than its part.
func TestStatesOfPrimaries(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	servers := stack.PrivateRedisCluster(t, 2, 0)
	one, two := servers.Nodes()[0], servers.Nodes()[1]
	clients := map[string]*redis.Client{one.Addr(): one.Client(t), two.Addr(): two.Client(t)}
	s := &clusterState{
		cluster: stillCluster{m: cluster.NewMap([]cluster.Range{
			{First: 0, Last: 8191, Primary: cluster.Primary{ID: "1", Address: one.Addr()}}, {First: 8192, Last: 16383, Primary: cluster.Primary{ID: "2", Address: two.Addr()}},
		})},
		unreachable: func() map[string]error { return nil },
		primary:     func(address string) *redis.Client { return clients[address] },
		memory:      newMemory(zap.NewNop()),
	}
	cfg := OutboxConfig{Bytes: 2 * config.MiB, Full: fullBlock}
	require.ErrorContains(t, s.checkAny(), "it is not known yet")
	m, err := s.measure(ctx, cfg)
	require.NoError(t, err)
	assert.Equal(t, int64(0), m.Bytes)
	assert.Zero(t, m.Age)
	require.ErrorContains(t, s.checkAny(), "primary "+one.Addr()+" takes no writes: no Sonic has opened it yet")
	require.ErrorContains(t, s.checkAny(), "primary "+two.Addr()+" takes no writes: no Sonic has opened it yet")

	library, _, err := script.Library()
	require.NoError(t, err)
	open := func(srv *stack.RedisServer, ready bool, library string) *redis.Client {
		db := srv.Client(t)
		conn := db.Conn()
		t.Cleanup(func() { _ = conn.Close() })
		require.NoError(t, db.Do(ctx, "FUNCTION", "LOAD", "REPLACE", library).Err())
		l := redislib.NewPrimary(conn, redislib.Config{Zone: "a", Others: []string{"b"}, Default: policyLWW})
		require.NoError(t, l.Open(ctx, redislib.PrimaryState{Opened: true}, ready, 0))
		_, err := l.Hold(ctx, []int{0, 16383})
		require.NoError(t, err)
		return db
	}
	db := open(one, true, library)
	open(two, false, library)
	slot := script.SlotKeys(0)
	require.NoError(t, db.Do(ctx, "FCALL", "sonic_set", 1, slot.Outbox, "0", strings.TrimSuffix(slot.Markers, "mark")+"x", make([]byte, 3<<19)).Err())
	m, err = s.measure(ctx, cfg)
	require.NoError(t, err)
	assert.Greater(t, m.Bytes, int64(3<<19))
	assert.True(t, m.full, "it is less than both may have, and more than one may")
	assert.Equal(t, "the outbox is full: Pulsar has not stored ", m.problem()[:42])
	assert.Contains(t, m.problem(), "of effects, the oldest ")
	require.Eventually(t, func() bool {
		m, err = s.measure(ctx, cfg)
		return err == nil && m.Age > 0
	}, await.Patience, time.Millisecond)
	require.NoError(t, s.checkAny())
	require.EqualError(t, writeProblems(s.notReady()), "primary "+two.Addr()+" takes no writes: it may have older data than before: it waits for effects of the zones a, b")
	require.Len(t, s.notReady(), 1)

	assert.Contains(t, s.status().Primaries[1].NotReady, "waits for effects")
	assert.Empty(t, s.status().Primaries[0].NotReady)
	assert.NoError(t, testutil.CollectAndCompare(collector{&service{cfg: DefaultConfig(), cluster: s}}, strings.NewReader(`
# HELP sonic_cluster_primary_ready 1 while the primary takes writes. Absent in a zone that is alone.
# TYPE sonic_cluster_primary_ready gauge
sonic_cluster_primary_ready{primary="`+one.Addr()+`"} 1
sonic_cluster_primary_ready{primary="`+two.Addr()+`"} 0
`), "sonic_cluster_primary_ready"))

	open(two, true, strings.Replace(library, "'sonic_oldest'", "'sonic_other'", 1))
	m, err = s.measure(ctx, cfg)
	require.NoError(t, err)
	assert.True(t, m.full)
	assert.Negative(t, m.Age, "the library of an older Sonic does not report it")
	assert.NotContains(t, m.problem(), "old")
	require.Empty(t, s.notReady())

	require.NoError(t, two.Client(t).ConfigSet(ctx, "maxmemory", "1").Err())
	require.NoError(t, two.Client(t).ConfigSet(ctx, "maxmemory-policy", "allkeys-lru").Err())
	assert.Equal(t, memoryProblems{}, s.memory.problems())
	_, err = s.measure(ctx, cfg)
	require.NoError(t, err)
	assert.NotEmpty(t, s.memory.problems().evicts)
	assert.Contains(t, s.memory.problems().full, "its maxmemory is 1")
	s.memory.keep([]string{one.Addr()})
	assert.Empty(t, s.memory.problems().evicts, "the other one has left")

	require.NoError(t, two.Kill())
	m, err = s.measure(ctx, cfg)
	require.NoError(t, err)
	assert.True(t, m.full)
	require.ErrorContains(t, s.notReady()[two.Addr()], "it is not known whether it takes writes")
	require.NoError(t, one.Kill())
	_, err = s.measure(ctx, cfg)
	require.Error(t, err)
	require.Error(t, s.checkAny())
}
