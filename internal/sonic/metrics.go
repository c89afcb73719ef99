package sonic

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/aviaryhq/aviary/internal/sonic/outbox"
)

// collector exports the state of the parts as metrics.
type collector struct{ service *service }

// Describe implements prometheus.Collector. It sends nothing, because the state says which metrics
// there are.
func (collector) Describe(chan<- *prometheus.Desc) {}

func (c collector) Collect(out chan<- prometheus.Metric) {
	s := c.service
	z := s.status()
	if z.Cluster != nil {
		gauge(out, "cluster_unserved_slots", "Slots of the Redis Cluster without a primary, or with one that cannot be reached. Commands for these slots get errors.",
			z.Cluster.UnservedSlots, nil)
		for _, p := range z.Cluster.Primaries {
			of := prometheus.Labels{"primary": p.Address}
			gauge(out, "cluster_primary_up", "1 while there is a connection to the primary.", is(p.Unhealthy == ""), of)
			gauge(out, "cluster_primary_slots", "How many slots the primary has.", p.Slots, of)
			if s.cluster.primary != nil {
				gauge(out, "cluster_primary_ready", "1 while the primary takes writes. Absent in a zone that is alone.", is(p.NotReady == ""), of)
			}
		}
	}
	if s.shipper == nil {
		return
	}
	for _, o := range z.Origins {
		of := prometheus.Labels{"origin": o.Zone}
		if o.LagSeconds >= 0 {
			gauge(out, "lag_seconds", "How far this zone is behind another one, in time. Absent in the first seconds.", o.LagSeconds, of)
			gauge(out, "lag_commands", "How many effects of another zone are in this cluster's topic and not applied, as of some seconds ago.",
				o.LagCommands, of)
		}
		gauge(out, "gap", "1 while this zone lacks effects of another zone that the topic no longer has.", is(o.Gap), of)
		gauge(out, "configuration_differs", "1 while another zone's configuration differs in a setting that must be equal in all zones: zones, conflicts, or databases of Redis.",
			is(len(o.Differs) > 0), of)
		gauge(out, "applier_up", "1 while applying another zone's effects has no current error.", is(o.Unhealthy == ""), of)
	}
	if z.Outbox.Length >= 0 {
		gauge(out, "outbox_effects", "Effects in the outbox, which Pulsar has not stored yet. Absent while Redis does not report them.", z.Outbox.Length, nil)
	}
	if z.Outbox.AgeSeconds >= 0 {
		gauge(out, "outbox_age_seconds", "Age of the oldest effect in the outbox.", z.Outbox.AgeSeconds, nil)
	}
	if z.Outbox.Bytes >= 0 {
		gauge(out, "outbox_bytes", "Approximate memory that the outbox takes in Redis.", z.Outbox.Bytes, nil)
	}
	if z.Outbox.Lost >= 0 {
		gauge(out, "outbox_dropping", "1 while effects of writes are dropped, and the changed keys are noted for shipping later.",
			is(z.Outbox.Dropping), nil)
		gauge(out, "outbox_pending_resends", "Keys, elements and counters whose state waits to be shipped, because effects were dropped.",
			z.Outbox.PendingResends, nil)
		lost := prometheus.NewDesc("sonic_outbox_lost_effects_total", "Upper bound of the writes of this zone that other zones never get. Each Sonic of the zone reports the same value.", nil, nil)
		out <- prometheus.MustNewConstMetric(lost, prometheus.CounterValue, float64(z.Outbox.Lost))
	}
	memory := s.memory.problems()
	gauge(out, "outbox_full", "1 while a bound of the outbox is exceeded.", is(z.Outbox.Full), nil)
	gauge(out, "outbox_owner", "1 while this process ships the zone's effects. One process of the zone does at a time.", is(z.Outbox.Owner), nil)
	gauge(out, "history_rejected", "1 while this process owns the topic and publishes nothing, because Redis and the topic have different histories.",
		is(errors.Is(s.shipper.Unhealthy(), outbox.ErrHistory)), nil)
	gauge(out, "redis_evicting", "1 while Redis, or a primary of the Redis Cluster, evicts keys by itself: its maxmemory-policy is not noeviction.",
		is(memory.evicts != ""), nil)
	gauge(out, "redis_memory_full", "1 while Redis, or a primary of the Redis Cluster, has reached its maxmemory: it refuses writes of clients and still applies writes of other zones.",
		is(memory.full != ""), nil)
}

// gauge exports a value with constant labels, if any.
func gauge[T int | int64 | float64](out chan<- prometheus.Metric, name, help string, value T, labels prometheus.Labels) {
	desc := prometheus.NewDesc("sonic_"+name, help, nil, labels)
	out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(value))
}

func is(b bool) int {
	if b {
		return 1
	}
	return 0
}
