package sonic

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/aviaryhq/aviary/internal/sonic/outbox"
)

// collector exports the state of the parts as metrics.
type collector struct {
	service *service
	all     []*prometheus.Desc

	lagSeconds, lagCommands, gap, differs, up        *prometheus.Desc // by origin
	length, bytes, age, full, owner, rejected        *prometheus.Desc
	dropping, noted, lost, evicts, memoryFull        *prometheus.Desc
	unserved, primaryUp, primarySlots, primaryWrites *prometheus.Desc // of a Redis Cluster
}

func newCollector(s *service) *collector {
	c := &collector{service: s}
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		d := prometheus.NewDesc("sonic_"+name, help, labels, nil)
		c.all = append(c.all, d)
		return d
	}
	c.lagSeconds = desc("lag_seconds", "How far this zone is behind another one, in time. Absent in the first seconds.", "origin")
	c.lagCommands = desc("lag_commands", "How many effects of another zone are in this cluster's topic and not applied, as of some seconds ago.", "origin")
	c.gap = desc("gap", "1 while effects of another zone are missing that the topic does not have any more.", "origin")
	c.differs = desc("configuration_differs", "1 while another zone's configuration differs where all have to be equal: zones, conflicts, or databases of Redis.", "origin")
	c.up = desc("applier_up", "1 while applying another zone's effects has no current error.", "origin")
	c.length = desc("outbox_effects", "Effects that Pulsar has not stored yet. Absent while Redis cannot tell.")
	c.bytes = desc("outbox_bytes", "About what they take in Redis.")
	c.age = desc("outbox_age_seconds", "Age of the oldest of them.")
	c.full = desc("outbox_full", "1 while a bound of the outbox is exceeded.")
	c.dropping = desc("outbox_dropping", "1 while effects of writes are dropped, and the changed keys are noted for shipping later.")
	c.noted = desc("outbox_pending_resends", "Keys, elements and counters whose state waits to be shipped, because effects were dropped.")
	c.lost = desc("outbox_lost_effects_total", "Writes of the zone that other zones never get, at most. The same in each of its Sonics.")
	c.evicts = desc("redis_evicting", "1 while Redis, or a primary of the Redis Cluster, evicts keys by itself: its maxmemory-policy is not noeviction.")
	c.rejected = desc("history_rejected", "1 while this process owns the topic and publishes nothing, because Redis and the topic have different histories.")
	c.memoryFull = desc("redis_memory_full", "1 while Redis, or a primary of the Redis Cluster, has reached its maxmemory: it refuses writes of clients. Those of other zones are applied all the same.")
	c.owner = desc("outbox_owner", "1 while this process ships the zone's effects: one process does.")
	c.unserved = desc("cluster_unserved_slots", "Slots of the Redis Cluster that have no primary, or one that cannot be reached. Commands for them get errors.")
	c.primaryUp = desc("cluster_primary_up", "1 while there is a connection to the primary.", "primary")
	c.primarySlots = desc("cluster_primary_slots", "How many slots the primary has.", "primary")
	c.primaryWrites = desc("cluster_primary_ready", "1 while the primary takes writes. Absent in a zone that is alone.", "primary")
	return c
}

func is(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range c.all {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	s := c.service
	z := s.status()
	if z.Cluster != nil {
		gauge(c.unserved, float64(z.Cluster.UnservedSlots))
		for _, p := range z.Cluster.Primaries {
			gauge(c.primaryUp, is(p.Unhealthy == ""), p.Address)
			gauge(c.primarySlots, float64(p.Slots), p.Address)
			if s.cluster.primary != nil {
				gauge(c.primaryWrites, is(p.NotReady == ""), p.Address)
			}
		}
	}
	if s.shipper == nil {
		return
	}
	for _, o := range z.Origins {
		if o.LagSeconds >= 0 {
			gauge(c.lagSeconds, o.LagSeconds, o.Zone)
			gauge(c.lagCommands, float64(o.LagCommands), o.Zone)
		}
		gauge(c.gap, is(o.Gap), o.Zone)
		gauge(c.differs, is(len(o.Differs) > 0), o.Zone)
		gauge(c.up, is(o.Unhealthy == ""), o.Zone)
	}
	if z.Outbox.Length >= 0 {
		gauge(c.length, float64(z.Outbox.Length))
		gauge(c.age, z.Outbox.AgeSeconds)
	}
	if z.Outbox.Bytes >= 0 {
		gauge(c.bytes, float64(z.Outbox.Bytes))
	}
	if z.Outbox.Lost >= 0 {
		gauge(c.dropping, is(z.Outbox.Dropping))
		gauge(c.noted, float64(z.Outbox.PendingResends))
		out <- prometheus.MustNewConstMetric(c.lost, prometheus.CounterValue, float64(z.Outbox.Lost))
	}
	gauge(c.full, is(z.Outbox.Full))
	gauge(c.owner, is(z.Outbox.Owner))
	gauge(c.rejected, is(errors.Is(s.shipper.Unhealthy(), outbox.ErrHistory)))
	gauge(c.evicts, is(s.memory.evicting()))
	gauge(c.memoryFull, is(s.memory.problem() != ""))
}
