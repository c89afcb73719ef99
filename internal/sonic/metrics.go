package sonic

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/aviaryhq/aviary/internal/sonic/outbox"
)

// collector exports the state of the parts as metrics.
type collector struct {
	service                          *service
	lagSeconds, lagCommands, gap, up *prometheus.Desc
	differs                          *prometheus.Desc
	length, bytes, age, full, owner  *prometheus.Desc
	rejected                         *prometheus.Desc
	skips, noted, lost, evicts, oom  *prometheus.Desc
}

func newCollector(s *service) *collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("sonic_"+name, help, labels, nil)
	}
	return &collector{
		service:     s,
		lagSeconds:  desc("lag_seconds", "How far this zone is behind another one, in time. Absent in the first seconds.", "origin"),
		lagCommands: desc("lag_commands", "How many effects of another zone are in this cluster's topic and not applied, as of some seconds ago.", "origin"),
		gap:         desc("gap", "1 while effects of another zone are missing that the topic does not have any more.", "origin"),
		differs:     desc("configuration_differs", "1 while another zone's configuration differs where all have to be equal: zones, conflicts, or databases of Redis.", "origin"),
		up:          desc("applier_up", "1 while applying another zone's effects has no current error.", "origin"),
		length:      desc("outbox_effects", "Effects that Pulsar has not stored yet. Absent while Redis cannot tell."),
		bytes:       desc("outbox_bytes", "About what they take in Redis."),
		age:         desc("outbox_age_seconds", "Age of the oldest of them."),
		full:        desc("outbox_full", "1 while a bound of the outbox is exceeded."),
		skips:       desc("outbox_dropping", "1 while effects of writes are dropped, and the changed keys are noted for shipping later."),
		noted:       desc("outbox_pending_resends", "Keys, elements and counters whose state waits to be shipped, because effects were dropped."),
		lost:        desc("outbox_lost_effects_total", "Writes of the zone that other zones never get, at most. The same in each of its Sonics."),
		evicts:      desc("redis_evicting", "1 while Redis evicts keys by itself: its maxmemory-policy is not noeviction."),
		rejected:    desc("history_rejected", "1 while this process owns the topic and publishes nothing, because Redis and the topic have different histories."),
		oom:         desc("redis_memory_full", "1 while Redis has reached its maxmemory: it refuses writes of clients. Those of other zones are applied all the same."),
		owner:       desc("outbox_owner", "1 while this process ships the zone's effects: one process does."),
	}
}

func is(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.lagSeconds, c.lagCommands, c.gap, c.differs, c.up, c.length, c.bytes, c.age, c.full, c.owner, c.skips, c.noted, c.lost, c.evicts, c.rejected, c.oom} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	now, zones := time.Now(), c.service.cfg.zones()
	for i, a := range c.service.appliers {
		origin, s := zones[i+1], a.Status()
		if lag, effects, known := s.Behind(now); known {
			gauge(c.lagSeconds, lag.Seconds(), origin)
			gauge(c.lagCommands, float64(effects), origin)
		}
		_, unhealthy, _ := a.Health()
		gauge(c.gap, is(s.Gap), origin)
		gauge(c.differs, is(len(s.Differs) > 0), origin)
		gauge(c.up, is(unhealthy == nil), origin)
	}
	m := c.service.monitor.state()
	if m.Entries >= 0 {
		gauge(c.length, float64(m.Entries))
		gauge(c.age, m.Age.Seconds())
	}
	if m.Bytes >= 0 {
		gauge(c.bytes, float64(m.Bytes))
	}
	if m.Lost >= 0 {
		gauge(c.skips, is(m.Dropping))
		gauge(c.noted, float64(m.Noted))
		out <- prometheus.MustNewConstMetric(c.lost, prometheus.CounterValue, float64(m.Lost))
	}
	gauge(c.full, is(m.full))
	gauge(c.rejected, is(errors.Is(c.service.shipper.Unhealthy(), outbox.ErrHistory)))
	if c.service.memory != nil {
		gauge(c.evicts, is(c.service.memory.evicting()))
		gauge(c.oom, is(c.service.memory.problem() != ""))
	}
	gauge(c.owner, is(c.service.shipper.Status().Owner))
}
