package cluster_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/aviaryhq/aviary/internal/sonic/cluster"
)

// TestSlot: the examples are answers of CLUSTER KEYSLOT.
func TestSlot(t *testing.T) {
	t.Parallel()
	for key, slot := range map[string]int{
		"": 0, "foo": 12182, "bar": 5061, "123456789": 12739, "{foo}bar": 12182, "a{foo}{bar}": 12182, "foo{}{bar}": 8363, "foo{{bar}}zap": 4015, "{user1000}.following": 3443,
	} {
		assert.Equal(t, slot, cluster.Slot([]byte(key)), key)
	}
}

func TestMap(t *testing.T) {
	t.Parallel()
	a, b := cluster.Primary{ID: "a", Address: "127.0.0.1:1"}, cluster.Primary{ID: "b", Address: "127.0.0.1:2"}
	m := cluster.NewMap([]cluster.Range{{First: 10, Last: cluster.Slots - 1, Primary: b}, {First: 0, Last: 8, Primary: a}})
	assert.Equal(t, []cluster.Primary{a, b}, m.Primaries())
	assert.Equal(t, a.Address, m.Owner(8))
	assert.Empty(t, m.Owner(9))
	assert.Equal(t, b.Address, m.Owner(10))
	assert.Equal(t, 9, m.Count(a.Address))
	assert.Equal(t, 1, m.Count(""))
	assert.True(t, m.Equal(cluster.NewMap([]cluster.Range{{First: 0, Last: 8, Primary: a}, {First: 10, Last: cluster.Slots - 1, Primary: b}})))

	again := cluster.Primary{ID: "c", Address: a.Address}
	m = cluster.NewMap([]cluster.Range{{First: 0, Last: 8, Primary: a}, {First: 9, Last: 9, Primary: again}})
	assert.Equal(t, []cluster.Primary{a}, m.Primaries(), "one node with two ids")
	assert.Equal(t, a.Address, m.Owner(9))
	assert.Equal(t, 10, m.Count(a.Address))
}
