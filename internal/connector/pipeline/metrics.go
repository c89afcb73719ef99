package pipeline

import "github.com/prometheus/client_golang/prometheus"

// Metrics are the metrics of the pipelines of all routes.
type Metrics struct {
	messages *prometheus.CounterVec   // route, result
	bytes    *prometheus.CounterVec   // route
	refused  *prometheus.CounterVec   // route, reason
	stage    *prometheus.HistogramVec // route, stage
}

// NewMetrics registers the metrics. reg adds the prefix of the program to their names.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		messages: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "messages_total",
			Help: "Messages by result: stored (counted again after each resend), filtered, " +
				"looped (dropped before they returned to a topic or queue of their hops), dead_lettered.",
		}, []string{"route", "result"}),
		bytes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "stored_bytes_total", Help: "Bytes of the messages stored, as in_flight.bytes counts them.",
		}, []string{"route"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "refused_total", Help: "Messages that the sink or the route refused and that no retry can store, by reason.",
		}, []string{"route", "reason"}),
		stage: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "stage_duration_seconds",
			Help: "Time of one in 64 messages by stage: pull (from the source's broker to this process), " +
				"queue (until given to the sink), send (until the sink's client has taken it; part of write), write (until the destination's acknowledgement).",
			Buckets: prometheus.ExponentialBuckets(.0001, 2, 20),
		}, []string{"route", "stage"}),
	}
	reg.MustRegister(m.messages, m.bytes, m.refused, m.stage)
	return m
}

// Route returns the metrics of one route.
func (m *Metrics) Route(name string) *RouteMetrics {
	count := func(result string) prometheus.Counter { return m.messages.WithLabelValues(name, result) }
	stage := func(stage string) prometheus.Observer { return m.stage.WithLabelValues(name, stage) }
	return &RouteMetrics{
		stored: count("stored"), filtered: count("filtered"), looped: count("looped"), deadLettered: count("dead_lettered"),
		bytes: m.bytes.WithLabelValues(name), refused: m.refused.MustCurryWith(prometheus.Labels{"route": name}),
		pull: stage("pull"), queue: stage("queue"), send: stage("send"), write: stage("write"),
	}
}

// Forget removes the metrics of a route that was removed.
func (m *Metrics) Forget(name string) {
	labels := prometheus.Labels{"route": name}
	m.messages.DeletePartialMatch(labels)
	m.bytes.DeletePartialMatch(labels)
	m.refused.DeletePartialMatch(labels)
	m.stage.DeletePartialMatch(labels)
}

// RouteMetrics are the metrics of one route.
type RouteMetrics struct {
	stored, filtered, looped, deadLettered, bytes prometheus.Counter
	refused                                       *prometheus.CounterVec

	// The stages of a message. pull, queue and write add up to the time from storing at the source to
	// the destination's acknowledgement.
	pull  prometheus.Observer // from stored at the source (or produced, if its broker does not say when) to received here
	queue prometheus.Observer // from received to given to the sink
	send  prometheus.Observer // until the sink's client has taken it: the first part of write
	write prometheus.Observer // from given to the sink to acknowledged by the destination
}
