package sonic

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/e2e/sonic/clients"
	"github.com/aviaryhq/aviary/test/systems"
)

// TestStockClientsOfZonesWithRedisClusters: stock clients without cluster settings use a zone that
// has a Redis Cluster as they use one Redis, and what they leave crosses.
func TestStockClientsOfZonesWithRedisClusters(t *testing.T) {
	t.Parallel()
	w := startZones(t, []int{3, 2}, "SONIC_REDIS_SPLIT_MSET=true")
	t.Run("clients", func(t *testing.T) {
		clients.Run(t, "redis://"+w.places[0].Address("redis"), "select")
	})
	var all []map[string]held
	systems.Await(t, await.Patience, "both zones hold the same", func() bool {
		all = nil
		for _, p := range w.places {
			all = append(all, (&site{name: p.name, redis: p.one, nodes: p.nodes}).holdings(t, 0))
		}
		return len(differences(all)) == 0
	})
	assert.NotEmpty(t, all[0])
	t.Logf("%d keys", len(all[0]))
}
