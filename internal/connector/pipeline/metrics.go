package pipeline

import (
	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are the metrics of the pipelines of all routes.
type Metrics struct {
	messages *prometheus.CounterVec // route, result
	bytes    *prometheus.CounterVec // route
	refused  *prometheus.CounterVec // route, reason
	stage    *prometheus.HistogramVec
}

// The stages of a message. pull, queue and write add up to the time from storing at the source to
// the destination's acknowledgement; send is the first part of write.
const (
	stagePull  = "pull"  // from stored at the source (or produced, if its broker does not say when) to received here
	stageQueue = "queue" // from received to given to the sink
	stageSend  = "send"  // until the sink's client has taken it, which waits while the client's queue is full
	stageWrite = "write" // from given to the sink to acknowledged by the destination
)

// NewMetrics registers the metrics. Names like messages_total have no prefix of the program: reg adds
// it.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		messages: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "messages_total",
			Help: "Messages by result: stored (counted again after each resend), filtered, looped (came back to where they have been), dead_lettered.",
		}, []string{"route", "result"}),
		bytes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "stored_bytes_total", Help: "Bytes of the messages stored, as they are charged against the bounds in bytes.",
		}, []string{"route"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "refused_total", Help: "Messages that the sink or the route's own rules refused for good, by reason.",
		}, []string{"route", "reason"}),
		stage: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "stage_duration_seconds",
			Help:    "Time of one in 64 messages by stage: pull (source's broker to here), queue (here), send (sink's client), write (destination's acknowledgement).",
			Buckets: prometheus.ExponentialBuckets(.0001, 2, 20),
		}, []string{"route", "stage"}),
	}
	reg.MustRegister(m.messages, m.bytes, m.refused, m.stage)
	return m
}

// Route returns the metrics of one route.
func (m *Metrics) Route(name string) *RouteMetrics {
	return &RouteMetrics{
		stored: m.messages.WithLabelValues(name, "stored"), filtered: m.messages.WithLabelValues(name, "filtered"),
		looped: m.messages.WithLabelValues(name, "looped"), deadLettered: m.messages.WithLabelValues(name, "dead_lettered"),
		bytes: m.bytes.WithLabelValues(name), refused: m.refused.MustCurryWith(prometheus.Labels{"route": name}),
		pull: m.stage.WithLabelValues(name, stagePull), queue: m.stage.WithLabelValues(name, stageQueue),
		send: m.stage.WithLabelValues(name, stageSend), write: m.stage.WithLabelValues(name, stageWrite),
	}
}

// Forget removes the metrics of a route that was removed.
func (m *Metrics) Forget(name string) {
	labels := prometheus.Labels{"route": name}
	for _, v := range []interface {
		DeletePartialMatch(prometheus.Labels) int
	}{m.messages, m.bytes, m.refused, m.stage} {
		v.DeletePartialMatch(labels)
	}
}

// RouteMetrics are the metrics of one route.
type RouteMetrics struct {
	stored, filtered, looped, deadLettered, bytes prometheus.Counter
	refused                                       *prometheus.CounterVec
	pull, queue, send, write                      prometheus.Observer
}
