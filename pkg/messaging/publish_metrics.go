package messaging

import "github.com/prometheus/client_golang/prometheus"

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

// latencyBuckets run from a loopback acknowledgement to a long outage.
func latencyBuckets() []float64 {
	return []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}
}

func newPublisherMetrics(reg prometheus.Registerer) publisherMetrics {
	return publisherMetrics{
		published: register(reg, prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "messaging_published_records_total",
			Help: "Records whose outcome is known, by result.",
		}, []string{"profile", "result"})),
		publishedBytes: register(reg, prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "messaging_published_bytes_total",
			Help: "Bytes of acknowledged records, before compression, keys and properties included.",
		}, []string{"profile"})),
		ackSeconds: register(reg, prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "messaging_ack_seconds",
			Help:    "Time from a record's admission to its acknowledgement, sampled.",
			Buckets: latencyBuckets(),
		}, []string{"profile"})),
		pending: register(reg, prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "messaging_pending_records",
			Help: "Records accepted and not yet acknowledged.",
		}, []string{"profile"})),
		pendingBytes: register(reg, prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "messaging_pending_bytes",
			Help: "Bytes accepted and not yet acknowledged.",
		}, []string{"profile"})),
		recreated: register(reg, prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "messaging_producers_recreated_total",
			Help: "Partition producers lost because the broker closed or fenced them or stopped acknowledging, and replaced unless the publisher owns its topic.",
		}, []string{"profile", "reason"})),
		stalled: register(reg, prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "messaging_stalled_partitions",
			Help: "Partitions with records pending and no acknowledgement for 5 seconds.",
		}, []string{"profile"})),
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
