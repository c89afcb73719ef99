package lane

import (
	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are those of all routes' lanes.
type Metrics struct {
	messages *prometheus.CounterVec // route, result
	bytes    *prometheus.CounterVec // route
	refused  *prometheus.CounterVec // route, reason
	stage    *prometheus.HistogramVec
}

// The stages of a message: the time from the broker's storing it at the source to the
// destination's acknowledgement is their sum.
const (
	stagePull  = "pull"  // from stored at the source (or made, where its broker does not say) to received here
	stageQueue = "queue" // from received to handed to the sink
	stageSend  = "send"  // until the sink's client has taken it: its queue, when that is full
	stageWrite = "write" // until the destination has acknowledged it
)

// NewMetrics registers the metrics.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		messages: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pigeonhole_messages_total",
			Help: "Messages done with, by result: stored, filtered, looped (came back to where they have been), dead_lettered.",
		}, []string{"route", "result"}),
		bytes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pigeonhole_stored_bytes_total", Help: "Bytes of the messages stored, as they are charged against the bounds in bytes.",
		}, []string{"route"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pigeonhole_refused_total", Help: "Messages that the sink or the route's own rules refused for good, by reason.",
		}, []string{"route", "reason"}),
		stage: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "pigeonhole_stage_duration_seconds",
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
		looped: m.messages.WithLabelValues(name, "looped"), dead: m.messages.WithLabelValues(name, "dead_lettered"),
		bytes: m.bytes.WithLabelValues(name), refused: m.refused.MustCurryWith(prometheus.Labels{"route": name}),
		pull: m.stage.WithLabelValues(name, stagePull), queue: m.stage.WithLabelValues(name, stageQueue),
		send: m.stage.WithLabelValues(name, stageSend), write: m.stage.WithLabelValues(name, stageWrite),
	}
}

// Forget removes the metrics of a route that is no more.
func (m *Metrics) Forget(name string) {
	labels := prometheus.Labels{"route": name}
	for _, v := range []interface {
		DeletePartialMatch(prometheus.Labels) int
	}{m.messages, m.bytes, m.refused, m.stage} {
		v.DeletePartialMatch(labels)
	}
}

// RouteMetrics are those of one route.
type RouteMetrics struct {
	stored, filtered, looped, dead, bytes prometheus.Counter
	refused                               *prometheus.CounterVec
	pull, queue, send, write              prometheus.Observer
}
