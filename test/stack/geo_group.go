package stack

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/aviaryhq/aviary/test/stack/process"
	"github.com/aviaryhq/aviary/test/stack/pulsaradmin"
)

// A GeoGroup is several Pulsar clusters, zone-a, zone-b and so on, that replicate namespaces of one
// tenant, each to all others.
type GeoGroup struct {
	Clusters []*PulsarServer
	zones    []GeoZone
}

// A GeoZone says how to set up one of several clusters.
type GeoZone struct {
	// Options of this cluster, beside those that suit several brokers on one machine.
	Options []Option
	// Via are the addresses, host:port, of proxies through which this cluster replicates to the
	// others, by their index. Empty, or too short: directly.
	Via []string
}

// PrivateGeoGroup starts clusters that only this test uses, under the rules of [PrivatePulsar].
// begin, if not nil, is called when they run and do not replicate yet: it starts the proxies.
func PrivateGeoGroup(t testing.TB, zones []GeoZone, begin func(clusters []*PulsarServer) error) *GeoGroup {
	t.Helper()
	names := geoClusters(len(zones))
	all := make([][]Option, len(zones))
	for j, z := range zones {
		all[j] = append([]Option{Memory(geoMemory)}, z.Options...)
		for i, from := range zones {
			if j < len(from.Via) && from.Via[j] != "" {
				all[j] = append(all[j], advertiseAs(replicationListener(names[i]), from.Via[j]))
			}
		}
	}
	g := &GeoGroup{Clusters: privatePulsars(t, names, all...), zones: zones}
	if begin != nil {
		if err := begin(g.Clusters); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	if err := g.wire(ctx); err != nil {
		t.Fatalf("cannot set up replication: %v", err)
	}
	return g
}

// replicationListener is the name of the listener that a cluster's replication to others asks for.
func replicationListener(cluster string) string { return "from-" + cluster }

// via is the address through which cluster i replicates to cluster j; empty: directly.
func (g *GeoGroup) via(i, j int) string {
	if i >= len(g.zones) || j >= len(g.zones[i].Via) {
		return ""
	}
	return g.zones[i].Via[j]
}

// KeepAll has all clusters keep everything that is stored in a namespace.
func (g *GeoGroup) KeepAll(t testing.TB, ns string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
	defer cancel()
	for _, c := range g.Clusters {
		if err := c.keepAll(ctx, ns); err != nil {
			t.Fatalf("cannot set the retention of namespace %s: %v", ns, err)
		}
	}
}

// Namespace creates a namespace that all clusters replicate and deletes it when the test ends.
func (g *GeoGroup) Namespace(t testing.TB) string {
	t.Helper()
	ns := geoTenant + "/" + uniqueName(t)
	ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
	defer cancel()
	if err := g.createNamespace(ctx, ns); err != nil {
		t.Fatalf("cannot create namespace %s: %v", ns, err)
	}
	t.Cleanup(func() { g.cleanNamespace(t, ns) })
	return ns
}

// cleanNamespace ends replication first, in all clusters: a cluster refuses to delete what it
// shares with another.
func (g *GeoGroup) cleanNamespace(t testing.TB, ns string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
	defer cancel()
	for i, cluster := range g.names() {
		side := g.Clusters[i]
		if !side.Reachable() {
			continue
		}
		if err := side.admin.Do(ctx, http.MethodPost, "/admin/v2/namespaces/"+ns+"/replication", []string{cluster}, nil); err != nil {
			t.Logf("cannot end replication of %s in %s: %v", ns, cluster, err)
		}
	}
	for _, side := range g.Clusters {
		side.cleanNamespace(t, ns)
	}
}

// Topic creates a topic of that many partitions in all clusters; see [PulsarServer.Topic].
func (g *GeoGroup) Topic(t testing.TB, ns string, partitions int) string {
	t.Helper()
	topic := "persistent://" + ns + "/" + uniqueName(t)
	ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
	defer cancel()
	if err := g.createTopic(ctx, topic, partitions); err != nil {
		t.Fatalf("cannot create topic %s: %v", topic, err)
	}
	return topic
}

func (g *GeoGroup) names() []string { return geoClusters(len(g.Clusters)) }

// wire makes fresh standalones know each other. They have separate metadata, so each is told the
// same.
func (g *GeoGroup) wire(ctx context.Context) error {
	type cluster struct {
		ServiceURL       string `json:"serviceUrl"`
		BrokerServiceURL string `json:"brokerServiceUrl"`
		ListenerName     string `json:"listenerName,omitempty"`
	}
	names := g.names()
	for i, side := range g.Clusters {
		for j, other := range g.Clusters {
			// A standalone registers itself without the URLs a replicator needs: update it, create
			// the other.
			method := http.MethodPut
			if i == j {
				method = http.MethodPost
			}
			in := cluster{ServiceURL: other.AdminURL(), BrokerServiceURL: other.URL()}
			if addr := g.via(i, j); addr != "" {
				// A broker sends whoever names a listener to its address, else replication would go
				// past the proxy.
				in.BrokerServiceURL, in.ListenerName = "pulsar://"+addr, replicationListener(names[i])
			}
			if err := side.admin.Do(ctx, method, "/admin/v2/clusters/"+names[j], in, nil); err != nil {
				return err
			}
		}
	}
	// The tenant "public" is allowed on the own cluster only.
	tenant := map[string]any{"adminRoles": []string{}, "allowedClusters": names}
	for _, side := range g.Clusters {
		if err := side.admin.Do(ctx, http.MethodPut, "/admin/v2/tenants/"+geoTenant, tenant, nil); err != nil {
			return err
		}
	}
	if err := g.createNamespace(ctx, geoNamespace); err != nil {
		return err
	}
	// The probe goes through the REST API, whose producer a topic with deduplication refuses.
	if err := g.createNamespaceWith(ctx, geoProbe, map[string]any{"deduplicationEnabled": false}); err != nil {
		return err
	}
	return g.probe(ctx)
}

func (g *GeoGroup) createNamespace(ctx context.Context, ns string) error {
	return g.createNamespaceWith(ctx, ns, map[string]any{})
}

func (g *GeoGroup) createNamespaceWith(ctx context.Context, ns string, policies map[string]any) error {
	policies["replication_clusters"] = g.names()
	for _, side := range g.Clusters {
		if err := side.admin.Do(ctx, http.MethodPut, "/admin/v2/namespaces/"+ns, policies, nil); err != nil {
			return err
		}
	}
	return nil
}

// createTopic accepts that creating a topic in one cluster may have created it in the other.
func (g *GeoGroup) createTopic(ctx context.Context, topic string, partitions int) error {
	for _, side := range g.Clusters {
		if err := side.admin.CreateTopic(ctx, topic, partitions); err != nil && !pulsaradmin.IsStatus(err, http.StatusConflict) {
			return err
		}
	}
	return nil
}

// probe returns when a message has crossed from each cluster to each other.
func (g *GeoGroup) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, errors.New("no message crossed"))
	defer cancel()
	for i, from := range g.Clusters {
		topic := fmt.Sprintf("persistent://%s/from-%d", geoProbe, i)
		if err := g.createTopic(ctx, topic, 0); err != nil {
			return err
		}
		if err := from.admin.Produce(ctx, topic, "probe"); err != nil {
			return err
		}
		for j, to := range g.Clusters {
			if j == i {
				continue
			}
			if err := process.Poll(ctx, 20*time.Millisecond, func() (bool, error) {
				st, err := to.admin.Stats(ctx, topic)
				return st.MsgInCounter > 0, err
			}); err != nil {
				return fmt.Errorf("from %s to %s: %w", from.URL(), to.URL(), err)
			}
		}
	}
	return nil
}
