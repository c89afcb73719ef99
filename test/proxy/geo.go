package proxy

import (
	"testing"

	"github.com/aviaryhq/aviary/test/stack"
)

// Zones are Pulsar clusters of a test's own, each with a proxy for its clients and with a proxy on
// the way of its replication to each other cluster.
type Zones struct {
	*stack.GeoGroup
	// Clients are the proxies before the clusters. Clients name the listener [Listener].
	Clients []*Proxy
	// Links are the proxies between the clusters: Links[i][j] is on the way from cluster i to
	// cluster j, nil for i = j.
	Links [][]*Proxy
}

// URL is where clients of cluster i connect to.
func (z *Zones) URL(i int) string { return "pulsar://" + z.Clients[i].Addr() }

// PulsarZones starts n clusters that replicate to each other. Options apply to all.
func PulsarZones(t testing.TB, n int, opts ...stack.Option) *Zones {
	t.Helper()
	fresh := func() *Proxy {
		p, err := New()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Close)
		return p
	}
	z := &Zones{}
	zones := make([]stack.GeoZone, n)
	for i := range n {
		z.Clients = append(z.Clients, fresh())
		z.Links = append(z.Links, make([]*Proxy, n))
		zones[i].Via = make([]string, n)
		zones[i].Options = append([]stack.Option{stack.Advertise(z.Clients[i].Addr())}, opts...)
		for j := range n {
			if j != i {
				z.Links[i][j] = fresh()
				zones[i].Via[j] = z.Links[i][j].Addr()
			}
		}
	}
	z.GeoGroup = stack.PrivateGeoGroup(t, zones, func(clusters []*stack.PulsarServer) error {
		for j, c := range clusters {
			if err := z.Clients[j].Forward(c.URL()); err != nil {
				return err
			}
			for i := range n {
				if i == j {
					continue
				}
				if err := z.Links[i][j].Forward(c.URL()); err != nil {
					return err
				}
			}
		}
		return nil
	})
	return z
}
