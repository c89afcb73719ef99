package messaging

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the package's own. Labels are the profile's name and, for
// consumers, the subscription's: never a topic or a key.
type metrics struct {
	published      *prometheus.CounterVec   // profile, result: ok | error
	publishedBytes *prometheus.CounterVec   // profile
	ackSeconds     *prometheus.HistogramVec // profile
	pending        *prometheus.GaugeVec     // profile
	pendingBytes   *prometheus.GaugeVec     // profile
	recreated      *prometheus.CounterVec   // profile, reason
	stalled        *prometheus.GaugeVec     // profile

	consumer consumerMetrics
}

// latencyBuckets run from a loopback acknowledgement to a long outage.
func latencyBuckets() []float64 {
	return []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}
}

func newMetrics(reg prometheus.Registerer) *metrics {
	return &metrics{
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
		consumer: newConsumerMetrics(reg),
	}
}

// register registers c, or returns the equal collector that another client
// registered before, so that several clients of a process share one set.
func register[C prometheus.Collector](reg prometheus.Registerer, c C) C {
	err := reg.Register(c)
	var dup prometheus.AlreadyRegisteredError
	if errors.As(err, &dup) {
		if old, ok := dup.ExistingCollector.(C); ok {
			return old
		}
	}
	if err != nil {
		panic(err) // two different metrics of one name: a programming error
	}
	return c
}
