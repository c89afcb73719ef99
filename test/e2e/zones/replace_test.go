package zones

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/stretchr/testify/require"
)

// replace starts the zone again, empty. Its Pulsar cluster has a new name: brokers tell apart what a
// cluster replicates by the ids of its ledgers, which start at 0 again. Under the former name they
// would take it for what they have, and drop it.
func (w *fixture) replace() {
	w.t.Helper()
	z := w.zones[first]
	former := z.cluster
	z.cluster += "2"
	require.NoError(w.t, z.pulsar.Erase(z.cluster))
	require.NoError(w.t, z.pulsar.Start(w.t.Context()))
	require.NoError(w.t, os.RemoveAll(filepath.Join(z.redis.Dir(), "appendonlydir")))
	require.NoError(w.t, z.redis.Start(w.t.Context()))
	w.say("zone %s has an empty Redis, and an empty Pulsar cluster, %s", z.name, z.cluster)
	all := strings.Join(w.clusters(0, 1, 2, 3), ",")
	var commands []string
	for j, other := range w.zones[second:] {
		commands = append(commands, fmt.Sprintf("clusters create %s --url %s --broker-url pulsar://%s --listener-name from-%s",
			other.cluster, other.pulsar.AdminURL(), w.pulsars.Links[first][second+j].Addr(), former))
	}
	commands = append(commands, "tenants create aviary --allowed-clusters "+all)
	for _, ns := range []string{sonicNamespace, ordersNamespace, eventsNamespace} {
		clusters := z.cluster // zone a gets these two, and writes none
		if ns == sonicNamespace {
			clusters = all
		}
		commands = append(commands, "namespaces create "+ns+" --clusters "+clusters,
			"namespaces set-deduplication "+ns+" --enable", "namespaces set-retention "+ns+" --time -1 --size -1")
	}
	w.admin(z, append(commands, fmt.Sprintf("topics create-partitioned-topic %s --partitions %d", w.orders.topic, orderPartitions))...)
	for i, other := range w.zones[second:] {
		w.replicate(second+i, []string{
			fmt.Sprintf("clusters create %s --url %s --broker-url pulsar://%s --listener-name from-%s",
				z.cluster, z.pulsar.AdminURL(), w.pulsars.Links[second+i][first].Addr(), other.cluster),
			"tenants update aviary --allowed-clusters " + all,
		}, all)
	}
	for _, other := range w.zones[second:] {
		w.awaitReplication(other, z, sonicTopic+"-"+other.name+"-0")
	}
	for i := range orderPartitions {
		w.awaitReplication(w.zones[second], z, fmt.Sprintf("%s-partition-%d", w.orders.topic, i))
	}
	z.beforeCluster = w.orders.known()
	out, err := w.runSonic(first, w.peers(second), "-bootstrap", w.zones[second].name)
	require.NoError(w.t, err, "%s", out)
	w.say("%s", strings.TrimSpace(out))
	z.sonic.Start()
	w.awaitReady(z.sonic)
	z.down.Store(false)
}

// awaitReplication waits until a topic is replicated from one zone to another.
func (w *fixture) awaitReplication(from, to *zone, topic string) {
	w.t.Helper()
	path := from.pulsar.AdminURL() + "/admin/v2/" + strings.Replace(topic, "://", "/", 1) + "/stats"
	w.await(topic+" is replicated to zone "+to.name, func() bool {
		var stats struct {
			Replication map[string]struct {
				Connected bool `json:"connected"`
			} `json:"replication"`
		}
		return json.Unmarshal([]byte(get(path)), &stats) == nil && stats.Replication[to.cluster].Connected
	})
}
