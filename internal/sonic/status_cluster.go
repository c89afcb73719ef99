package sonic

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/aviaryhq/aviary/internal/health"
	"github.com/aviaryhq/aviary/internal/sonic/cluster"
)

// ClusterStatus is the state of the zone's Redis Cluster.
type ClusterStatus struct {
	// Primaries are those that have slots.
	Primaries []PrimaryStatus `json:"primaries"`
	// UnservedSlots is how many slots have no primary, or one that cannot be reached: commands for
	// them get errors.
	UnservedSlots int `json:"unserved_slots"`
	// Unhealthy says which slots are not served, and why.
	Unhealthy string `json:"unhealthy,omitempty"`
}

// PrimaryStatus is the state of one primary of a Redis Cluster.
type PrimaryStatus struct {
	Address string `json:"address"`
	Slots   int    `json:"slots"`
	// Unhealthy is why the primary cannot be reached. NotReady is why it takes no writes; it is empty
	// if the zone is alone.
	Unhealthy string `json:"unhealthy,omitempty"`
	NotReady  string `json:"not_ready,omitempty"`
}

// clusterState is what is known of the zone's Redis Cluster. It is safe for concurrent use.
type clusterState struct {
	cluster interface {
		Map() *cluster.Map
		Err() error
	}
	unreachable func() map[string]error // by address of a primary
	notReady    func() map[string]error // by address: why it takes no writes; nil: the zone is alone
}

// errNoMap says that no node of the cluster has answered yet.
var errNoMap = errors.New("no node of the Redis Cluster has answered yet")

// problem returns how many slots are not served, and why, by primary.
func (c *clusterState) problem() (unserved int, err error) {
	m := c.cluster.Map()
	if m == nil {
		return cluster.Slots, errors.Join(errNoMap, c.cluster.Err())
	}
	var errs []error
	unreachable := c.unreachable()
	for _, p := range m.Primaries() {
		if why := unreachable[p.Address]; why != nil {
			slots := m.Count(p.Address)
			unserved += slots
			errs = append(errs, fmt.Errorf("primary %s, which has %d slots, cannot be reached: %w", p.Address, slots, why))
		}
	}
	if none := m.Count(""); none > 0 {
		unserved += none
		errs = append(errs, fmt.Errorf("%d slots have no primary", none))
	}
	return unserved, errors.Join(errs...)
}

// ready is the readiness check. A cluster that is down in part is ready: its other slots are served,
// and another Sonic of the zone could not serve more.
func (c *clusterState) ready() error {
	unserved, err := c.problem()
	if unserved < cluster.Slots {
		return nil
	}
	return err
}

// status returns the state for people.
func (c *clusterState) status() *ClusterStatus {
	unserved, err := c.problem()
	s := &ClusterStatus{Primaries: []PrimaryStatus{}, UnservedSlots: unserved, Unhealthy: text(err)}
	if m := c.cluster.Map(); m != nil {
		unreachable, notReady := c.unreachable(), map[string]error{}
		if c.notReady != nil {
			notReady = c.notReady()
		}
		for _, p := range m.Primaries() {
			s.Primaries = append(s.Primaries, PrimaryStatus{
				Address: p.Address, Slots: m.Count(p.Address), Unhealthy: text(unreachable[p.Address]), NotReady: text(notReady[p.Address]),
			})
		}
	}
	return s
}

// stateInterval is how often watch looks at the state of the cluster.
const stateInterval = time.Second

// watch logs until ctx ends which slots are not served, and which primaries take no writes.
func (c *clusterState) watch(ctx context.Context, state, writes *health.State) error {
	ticker := time.NewTicker(stateInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
		_, err := c.problem()
		state.Set(err)
		if c.notReady != nil {
			writes.Set(writeProblems(c.notReady()))
		}
	}
}

// clusterCollector exports the state of a Redis Cluster as metrics.
type clusterCollector struct {
	state                      *clusterState
	unserved, up, slots, ready *prometheus.Desc
}

func newClusterCollector(state *clusterState) clusterCollector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("sonic_cluster_"+name, help, labels, nil)
	}
	return clusterCollector{
		state:    state,
		unserved: desc("unserved_slots", "Slots of the Redis Cluster that have no primary, or one that cannot be reached. Commands for them get errors."),
		up:       desc("primary_up", "1 while there is a connection to the primary.", "primary"),
		ready:    desc("primary_ready", "1 while the primary takes writes. Absent in a zone that is alone.", "primary"),
		slots:    desc("primary_slots", "How many slots the primary has.", "primary"),
	}
}

// Describe implements prometheus.Collector.
func (c clusterCollector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.unserved, c.up, c.slots, c.ready} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c clusterCollector) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	s := c.state.status()
	gauge(c.unserved, float64(s.UnservedSlots))
	for _, p := range s.Primaries {
		gauge(c.up, is(p.Unhealthy == ""), p.Address)
		if c.state.notReady != nil {
			gauge(c.ready, is(p.NotReady == ""), p.Address)
		}
		gauge(c.slots, float64(p.Slots), p.Address)
	}
}
