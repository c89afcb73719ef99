package stack

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/aviaryhq/aviary/test/stack/process"
	"github.com/aviaryhq/aviary/test/stack/pulsaradmin"
)

const (
	geoTenant    = "aviary"
	geoNamespace = "aviary/geo"
	// geoProbe is the namespace of the messages that prove replication works; nobody else uses it.
	geoProbe = "aviary/probe"

	// Several brokers share the machine; tests that want more use PULSAR_MEM or Memory.
	geoMemory = "-Xms192m -Xmx512m -XX:MaxDirectMemorySize=512m"
)

// geoClusters are the names of n clusters: zone-a, zone-b and so on.
func geoClusters(n int) []string {
	var names []string
	for i := range n {
		names = append(names, "zone-"+string(rune('a'+i)))
	}
	return names
}

func (s *Stack) geoService() service {
	return service{
		name:    "pulsar-geo",
		fetch:   func(ctx context.Context) error { return s.fetchPulsar(ctx, true) },
		missing: s.packages.Missing("Pulsar "+pulsarVersion, pulsarArtifact()),
		start:   s.startGeo,
		check:   checkBrokers,
	}
}

func (s *Stack) startGeo(ctx context.Context, dir string, rec *record) error {
	var brokers []*broker
	var daemons []process.Daemon
	for _, cluster := range geoClusters(2) {
		b, err := s.newBroker(ctx, cluster, dir+"/"+cluster, 0, 0)
		if err != nil {
			return err
		}
		defer b.ReleasePorts()
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
		&PulsarServer{url: a.url(), admin: pulsaradmin.New(a.adminURL(), "")},
		&PulsarServer{url: b.url(), admin: pulsaradmin.New(b.adminURL(), "")})
	began := time.Now()
	if err := pair.wire(ctx); err != nil {
		return fmt.Errorf("cannot set up replication: %w", err)
	}
	s.log.Printf("%s: messages cross both ways after another %v", rec.Service, time.Since(began).Round(10*time.Millisecond))
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

// Geo returns the shared pair of clusters: the ones that AVIARY_TEST_PULSAR_A_URL,
// AVIARY_TEST_PULSAR_A_ADMIN_URL and the same with B name (which must know each other as clusters
// zone-a and zone-b, with the tenant "aviary" allowed on both), else those of this checkout, under
// the rules of [Pulsar].
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

// PrivateGeo starts a pair that only this test uses, under the rules of [PrivatePulsar]. Options
// apply to both.
func PrivateGeo(t testing.TB, opts ...Option) *GeoPair {
	t.Helper()
	opts = append([]Option{Memory(geoMemory)}, opts...)
	servers := privatePulsars(t, geoClusters(2), opts, opts)
	pair := newGeoPair(servers[0], servers[1])
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	if err := pair.wire(ctx); err != nil {
		t.Fatalf("cannot set up replication: %v", err)
	}
	return pair
}

// Namespace creates a namespace that both clusters replicate and deletes it when the test ends.
func (g *GeoPair) Namespace(t testing.TB) string { t.Helper(); return g.group().Namespace(t) }

// Topic creates a topic of that many partitions in both clusters; see [PulsarServer.Topic].
func (g *GeoPair) Topic(t testing.TB, ns string, partitions int) string {
	t.Helper()
	return g.group().Topic(t, ns, partitions)
}

func (g *GeoPair) group() *GeoGroup { return &GeoGroup{Clusters: []*PulsarServer{g.A, g.B}} }

func (g *GeoPair) wire(ctx context.Context) error { return g.group().wire(ctx) }
