package sonic

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/sonic/cluster"
	"github.com/aviaryhq/aviary/internal/sonic/redislib"
	"github.com/aviaryhq/aviary/internal/sonic/script"
	"github.com/aviaryhq/aviary/test/stack"
)

// stillPrimaries are the primaries of a cluster that does not change.
type stillPrimaries struct {
	m       *cluster.Map
	clients map[string]*redis.Client
}

func (p stillPrimaries) Map() *cluster.Map               { return p.m }
func (p stillPrimaries) At(address string) *redis.Client { return p.clients[address] }

// TestStatesOfPrimaries: one that takes no writes is named, and does not matter to readiness while
// another one takes them. The outbox is full if one primary has more than its part.
func TestStatesOfPrimaries(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	servers := stack.PrivateRedisCluster(t, 2, 0)
	one, two := servers.Nodes()[0], servers.Nodes()[1]
	p := stillPrimaries{
		cluster.NewMap([]cluster.Range{
			{First: 0, Last: 8191, Primary: cluster.Primary{ID: "1", Address: one.Addr()}}, {First: 8192, Last: 16383, Primary: cluster.Primary{ID: "2", Address: two.Addr()}},
		}), map[string]*redis.Client{one.Addr(): one.Client(t), two.Addr(): two.Client(t)},
	}
	s := &primaryStates{primaries: p}
	cfg := OutboxConfig{Bytes: 2 * config.MiB, Full: fullBlock}
	require.ErrorContains(t, s.checkAny(), "it is not known yet")
	m, err := s.measure(ctx, cfg)
	require.NoError(t, err)
	assert.Equal(t, int64(0), m.Bytes)
	require.ErrorContains(t, s.checkAny(), "primary "+one.Addr()+" takes no writes: no Sonic has opened it yet")
	require.ErrorContains(t, s.checkAny(), "primary "+two.Addr()+" takes no writes: no Sonic has opened it yet")

	open := func(srv *stack.RedisServer, ready bool) *redis.Client {
		db := srv.Client(t)
		conn := db.Conn()
		t.Cleanup(func() { _ = conn.Close() })
		require.NoError(t, script.Load(ctx, db))
		l := redislib.NewPrimary(conn, redislib.Config{Zone: "a", Others: []string{"b"}, Default: policyLWW})
		require.NoError(t, l.Open(ctx, redislib.PrimaryState{Opened: true}, ready, 0))
		_, err := l.Hold(ctx, []int{0, 16383})
		require.NoError(t, err)
		return db
	}
	db := open(one, true)
	open(two, false)
	slot := script.SlotKeys(0)
	require.NoError(t, db.Do(ctx, "FCALL", "sonic_set", 1, slot.Outbox, "0", strings.TrimSuffix(slot.Markers, "mark")+"x", make([]byte, 3<<19)).Err())
	m, err = s.measure(ctx, cfg)
	require.NoError(t, err)
	assert.Greater(t, m.Bytes, int64(3<<19))
	assert.True(t, m.full, "it is less than both may have, and more than one may")
	assert.Equal(t, "the outbox is full: Pulsar has not stored ", m.problem()[:42])
	assert.NotContains(t, m.problem(), "old")
	require.NoError(t, s.checkAny())
	require.EqualError(t, writeProblems(s.notReady()), "primary "+two.Addr()+" takes no writes: it may have older data than before: it waits for effects of the zones a, b")
	require.Len(t, s.notReady(), 1)

	c := &clusterState{cluster: stillCluster{m: p.m}, unreachable: func() map[string]error { return nil }, notReady: s.notReady}
	assert.Contains(t, c.status().Primaries[1].NotReady, "waits for effects")
	assert.Empty(t, c.status().Primaries[0].NotReady)
	assert.NoError(t, testutil.CollectAndCompare(newClusterCollector(c), strings.NewReader(`
# HELP sonic_cluster_primary_ready 1 while the primary takes writes. Absent in a zone that is alone.
# TYPE sonic_cluster_primary_ready gauge
sonic_cluster_primary_ready{primary="`+one.Addr()+`"} 1
sonic_cluster_primary_ready{primary="`+two.Addr()+`"} 0
`), "sonic_cluster_primary_ready"))

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
