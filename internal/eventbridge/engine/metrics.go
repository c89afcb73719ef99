package engine

import "github.com/prometheus/client_golang/prometheus"

// Metrics are the metrics of the engine. Labels are names of buses.
type Metrics struct {
	events    *prometheus.CounterVec
	records   *prometheus.CounterVec
	age       *prometheus.HistogramVec
	rebuild   prometheus.Histogram
	queues    *prometheus.GaugeVec
	unhealthy *prometheus.GaugeVec
	forgot    prometheus.Counter
	rules     *prometheus.GaugeVec
}

// NewMetrics registers the metrics.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	seconds := []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}
	m := &Metrics{
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "eventbridge_engine_events_total",
			Help: "Events by outcome: matched, unmatched, duplicate (dropped), refused (dead letters of the bus).",
		}, []string{"bus", "outcome"}),
		records: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "eventbridge_engine_copies_total",
			Help: "Copies for subscribers by outcome: stored, refused (too large).",
		}, []string{"bus", "outcome"}),
		age: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "eventbridge_engine_stored_age_seconds", Buckets: seconds,
			Help: "Time from the publishing of a matched event until all its copies were stored.",
		}, []string{"bus"}),
		rebuild: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "eventbridge_engine_window_rebuild_duration_seconds", Buckets: seconds,
			Help: "Time to read the deduplication window of a partition after this engine was assigned the partition.",
		}),
		queues: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "eventbridge_engine_open_topics", Help: "Send topics, or partitions of them, with a producer of this engine.",
		}, []string{"bus"}),
		unhealthy: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "eventbridge_engine_unhealthy_topics", Help: "Send topics, or partitions of them, that accept nothing: the bus waits for them.",
		}, []string{"bus"}),
		forgot: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "eventbridge_engine_dedup_evicted_total", Help: "Events removed from the window before its end, because of engine.dedup_events.",
		}),
		rules: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "eventbridge_engine_rules", Help: "Rules that this engine matches events of the bus against.",
		}, []string{"bus"}),
	}
	reg.MustRegister(m.events, m.records, m.age, m.rebuild, m.queues, m.unhealthy, m.forgot, m.rules)
	return m
}

// busMetrics are the metrics of one bus.
type busMetrics struct {
	matched, unmatched, duplicate, refusedEvents prometheus.Counter
	stored, refusedCopies                        prometheus.Counter
	age                                          prometheus.Observer
	queues, unhealthy, rules                     prometheus.Gauge
	forgot                                       prometheus.Counter
	rebuild                                      prometheus.Observer
}

func (m *Metrics) of(bus string) *busMetrics {
	event := func(outcome string) prometheus.Counter { return m.events.WithLabelValues(bus, outcome) }
	copies := func(outcome string) prometheus.Counter { return m.records.WithLabelValues(bus, outcome) }
	return &busMetrics{
		matched: event("matched"), unmatched: event("unmatched"), duplicate: event("duplicate"), refusedEvents: event("refused"),
		stored: copies("stored"), refusedCopies: copies("refused"),
		age: m.age.WithLabelValues(bus), queues: m.queues.WithLabelValues(bus), unhealthy: m.unhealthy.WithLabelValues(bus),
		rules: m.rules.WithLabelValues(bus), forgot: m.forgot, rebuild: m.rebuild,
	}
}

// forget removes the metrics of a deleted bus.
func (m *Metrics) forget(bus string) {
	for _, v := range []interface {
		DeletePartialMatch(prometheus.Labels) int
	}{m.events, m.records, m.age, m.queues, m.unhealthy, m.rules} {
		v.DeletePartialMatch(prometheus.Labels{"bus": bus})
	}
}
