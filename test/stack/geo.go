package stack

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"
)

const (
	geoTenant    = "aviary"
	geoNamespace = "aviary/geo"
	// geoProbe is the namespace of the messages that prove replication works; nobody else uses it.
	geoProbe = "aviary/probe"

	clusterA = "zone-a"
	clusterB = "zone-b"

	// Two brokers share the machine; tests that want more use PULSAR_MEM or Memory.
	geoMemory = "-Xms192m -Xmx512m -XX:MaxDirectMemorySize=512m"
)

func (s *Stack) geoService() service {
	return service{
		name:  "pulsar-geo",
		fetch: s.fetchPulsar,
		start: s.startGeo,
		check: checkBrokers,
	}
}

func (s *Stack) startGeo(ctx context.Context, dir string, rec *record) error {
	var brokers []*broker
	var daemons []daemon
	for _, cluster := range []string{clusterA, clusterB} {
		b, err := s.newBroker(ctx, cluster, dir+"/"+cluster, 0, 0)
		if err != nil {
			return err
		}
		defer b.releasePorts()
		Memory(geoMemory)(&b.options)
		brokers, daemons = append(brokers, b), append(daemons, b)
	}
	if err := s.startRecorded(ctx, rec, daemons...); err != nil {
		return err
	}
	for _, b := range brokers {
		rec.Servers = append(rec.Servers, b.serverRecord())
	}
	a, b := brokers[0], brokers[1]
	pair := newGeoPair(
		&PulsarServer{url: a.url(), admin: newAdmin(a.adminURL(), "")},
		&PulsarServer{url: b.url(), admin: newAdmin(b.adminURL(), "")})
	began := time.Now()
	if err := pair.wire(ctx); err != nil {
		return fmt.Errorf("cannot set up replication: %w", err)
	}
	s.log.printf("%s: messages cross both ways after another %v", rec.Service, time.Since(began).Round(10*time.Millisecond))
	rec.Env = []string{
		"PULSAR_A_URL=" + a.url(), "PULSAR_A_ADMIN_URL=" + a.adminURL(),
		"PULSAR_B_URL=" + b.url(), "PULSAR_B_ADMIN_URL=" + b.adminURL(),
		"PULSAR_GEO_NAMESPACE=" + geoNamespace,
	}
	return nil
}

// A GeoPair is two Pulsar clusters that replicate namespaces of one tenant to each other.
type GeoPair struct {
	A, B *PulsarServer
}

func newGeoPair(a, b *PulsarServer) *GeoPair { return &GeoPair{A: a, B: b} }

// Geo returns the shared pair of clusters: the ones that AVIARY_TEST_PULSAR_A_URL, AVIARY_TEST_PULSAR_A_ADMIN_URL and
// the same with B name (which must know each other as clusters zone-a and zone-b, with the tenant "aviary" allowed on
// both), else those of this checkout, under the rules of [Pulsar].
func Geo(t testing.TB) *GeoPair {
	t.Helper()
	a := fromEnvironment(t, "AVIARY_TEST_PULSAR_A_URL", "AVIARY_TEST_PULSAR_A_ADMIN_URL")
	b := fromEnvironment(t, "AVIARY_TEST_PULSAR_B_URL", "AVIARY_TEST_PULSAR_B_ADMIN_URL")
	switch {
	case a != nil && b != nil:
		return newGeoPair(a, b)
	case a != nil || b != nil:
		t.Fatal("set the URLs of both AVIARY_TEST_PULSAR_A_ and AVIARY_TEST_PULSAR_B_, or none")
	}
	servers := sharedPulsars(t, "pulsar-geo")
	return newGeoPair(servers[0], servers[1])
}

// PrivateGeo starts a pair that only this test uses, under the rules of [PrivatePulsar]. Options apply to both.
func PrivateGeo(t testing.TB, opts ...Option) *GeoPair {
	t.Helper()
	opts = append([]Option{Memory(geoMemory)}, opts...)
	servers := privatePulsars(t, opts, clusterA, clusterB)
	pair := newGeoPair(servers[0], servers[1])
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	if err := pair.wire(ctx); err != nil {
		t.Fatalf("cannot set up replication: %v", err)
	}
	return pair
}

// Namespace creates a namespace that both clusters replicate and deletes it when the test ends.
func (g *GeoPair) Namespace(t testing.TB) string {
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

// cleanNamespace ends replication first, on both sides: a cluster refuses to delete what it shares with another.
func (g *GeoPair) cleanNamespace(t testing.TB, ns string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
	defer cancel()
	for i, cluster := range []string{clusterA, clusterB} {
		side := g.sides()[i]
		if !side.reachable() {
			continue
		}
		if err := side.admin.do(ctx, http.MethodPost, "/admin/v2/namespaces/"+ns+"/replication", []string{cluster}, nil); err != nil {
			t.Logf("cannot end replication of %s in %s: %v", ns, cluster, err)
		}
	}
	for _, side := range g.sides() {
		side.cleanNamespace(t, ns)
	}
}

// Topic creates a topic of that many partitions in both clusters; see [PulsarServer.Topic].
func (g *GeoPair) Topic(t testing.TB, ns string, partitions int) string {
	t.Helper()
	topic := "persistent://" + ns + "/" + uniqueName(t)
	ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
	defer cancel()
	if err := g.createTopic(ctx, topic, partitions); err != nil {
		t.Fatalf("cannot create topic %s: %v", topic, err)
	}
	return topic
}

func (g *GeoPair) sides() []*PulsarServer { return []*PulsarServer{g.A, g.B} }

// wire makes two fresh standalones know each other. They have separate metadata, so each is told the same.
func (g *GeoPair) wire(ctx context.Context) error {
	type cluster struct {
		ServiceURL       string `json:"serviceUrl"`
		BrokerServiceURL string `json:"brokerServiceUrl"`
	}
	names := []string{clusterA, clusterB}
	for i, side := range g.sides() {
		for j, other := range g.sides() {
			// A standalone registers itself without the URLs a replicator needs: update it, create the other.
			method := http.MethodPut
			if i == j {
				method = http.MethodPost
			}
			in := cluster{ServiceURL: other.AdminURL(), BrokerServiceURL: other.URL()}
			if err := side.admin.do(ctx, method, "/admin/v2/clusters/"+names[j], in, nil); err != nil {
				return err
			}
		}
	}
	// The tenant "public" is allowed on the own cluster only.
	tenant := map[string]any{"adminRoles": []string{}, "allowedClusters": names}
	for _, side := range g.sides() {
		if err := side.admin.do(ctx, http.MethodPut, "/admin/v2/tenants/"+geoTenant, tenant, nil); err != nil {
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

func (g *GeoPair) createNamespace(ctx context.Context, ns string) error {
	return g.createNamespaceWith(ctx, ns, map[string]any{})
}

func (g *GeoPair) createNamespaceWith(ctx context.Context, ns string, policies map[string]any) error {
	policies["replication_clusters"] = []string{clusterA, clusterB}
	for _, side := range g.sides() {
		if err := side.admin.do(ctx, http.MethodPut, "/admin/v2/namespaces/"+ns, policies, nil); err != nil {
			return err
		}
	}
	return nil
}

// createTopic accepts that creating a topic in one cluster may have created it in the other.
func (g *GeoPair) createTopic(ctx context.Context, topic string, partitions int) error {
	for _, side := range g.sides() {
		if err := side.admin.createTopic(ctx, topic, partitions); err != nil && !isStatus(err, http.StatusConflict) {
			return err
		}
	}
	return nil
}

// probe returns when a message has crossed in each direction.
func (g *GeoPair) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, errors.New("no message crossed"))
	defer cancel()
	for i, from := range g.sides() {
		to := g.sides()[1-i]
		topic := fmt.Sprintf("persistent://%s/from-%d", geoProbe, i)
		if err := g.createTopic(ctx, topic, 0); err != nil {
			return err
		}
		if err := from.admin.produce(ctx, topic, "probe"); err != nil {
			return err
		}
		if err := poll(ctx, 20*time.Millisecond, func() (bool, error) {
			st, err := to.admin.stats(ctx, topic)
			return st.MsgInCounter > 0, err
		}); err != nil {
			return fmt.Errorf("from %s to %s: %w", from.URL(), to.URL(), err)
		}
	}
	return nil
}
