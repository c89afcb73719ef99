package sonic

import (
	"errors"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/cluster"
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
	problems, err := testutil.CollectAndLint(newClusterCollector(c))
	require.NoError(t, err)
	assert.Empty(t, problems)
	assert.NoError(t, testutil.CollectAndCompare(newClusterCollector(c), strings.NewReader(`
# HELP sonic_cluster_primary_slots How many slots the primary has.
# TYPE sonic_cluster_primary_slots gauge
sonic_cluster_primary_slots{primary="a:1"} 100
sonic_cluster_primary_slots{primary="b:2"} 16284
# HELP sonic_cluster_primary_up 1 while there is a connection to the primary.
# TYPE sonic_cluster_primary_up gauge
sonic_cluster_primary_up{primary="a:1"} 1
sonic_cluster_primary_up{primary="b:2"} 0
# HELP sonic_cluster_unserved_slots Slots of the Redis Cluster that have no primary, or one that cannot be reached. Commands for them get errors.
# TYPE sonic_cluster_unserved_slots gauge
sonic_cluster_unserved_slots 16284
`)))
}
