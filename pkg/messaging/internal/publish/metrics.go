package publish

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/cluster"
)

// publisherMetrics are labelled by the profile and, where there are kinds, by a bounded word.
type publisherMetrics struct {
	published      *prometheus.CounterVec   // profile, result: ok | error
	publishedBytes *prometheus.CounterVec   // profile
	ackSeconds     *prometheus.HistogramVec // profile
	pending        *prometheus.GaugeVec     // profile
	pendingBytes   *prometheus.GaugeVec     // profile
	recreated      *prometheus.CounterVec   // profile, reason
	stalled        *prometheus.GaugeVec     // profile
}

func newMetrics(reg prometheus.Registerer) publisherMetrics {
	counter, gauge := cluster.Counters(reg, "profile"), cluster.Gauges(reg, "profile")
	return publisherMetrics{
		published: counter("aviary_messaging_published_records_total", "Records whose outcome is known, by result.", "result"),
		publishedBytes: counter("aviary_messaging_published_bytes_total",
			"Bytes of acknowledged records, before compression, keys and properties included."),
		ackSeconds: cluster.Register(reg, prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "aviary_messaging_ack_duration_seconds",
			Help:    "Time from a record's acceptance to its acknowledgement, of a sample of records.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}, []string{"profile"})),
		pending:      gauge("aviary_messaging_pending_records", "Records accepted and not yet acknowledged."),
		pendingBytes: gauge("aviary_messaging_pending_bytes", "Bytes accepted and not yet acknowledged."),
		recreated: counter("aviary_messaging_producers_recreated_total",
			"Producers of partitions that were lost: the broker closed or fenced them, stopped acknowledging, "+
				"or took a record for a duplicate. A lost producer is replaced unless the publisher owns its topic.", "reason"),
		stalled: gauge("aviary_messaging_stalled_partitions",
			"Partitions with records pending and no acknowledgement for 5 seconds."),
	}
}

// profileMetrics are publisherMetrics with the profile's label applied.
type profileMetrics struct {
	acked, failed, ackedBytes      prometheus.Counter
	ack                            prometheus.Observer
	pending, pendingBytes, stalled prometheus.Gauge
	recreated                      *prometheus.CounterVec // reason
}

func (m publisherMetrics) of(profile string) profileMetrics {
	for _, r := range append(reasons(), reason{label: "other"}) {
		m.recreated.WithLabelValues(profile, r.label) // from the start, so that an alert sees the first one
	}
	return profileMetrics{
		acked:        m.published.WithLabelValues(profile, "ok"),
		failed:       m.published.WithLabelValues(profile, "error"),
		ackedBytes:   m.publishedBytes.WithLabelValues(profile),
		ack:          m.ackSeconds.WithLabelValues(profile),
		pending:      m.pending.WithLabelValues(profile),
		pendingBytes: m.pendingBytes.WithLabelValues(profile),
		stalled:      m.stalled.WithLabelValues(profile),
		recreated:    m.recreated.MustCurryWith(prometheus.Labels{"profile": profile}),
	}
}
