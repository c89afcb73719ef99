package rabbitmq

import "github.com/prometheus/client_golang/prometheus"

// Metrics are those of all routes' sources and sinks.
type Metrics struct {
	connections, redelivered, unroutable *prometheus.CounterVec
	connected, blocked                   *prometheus.GaugeVec
}

// PartMetrics are those of one source or sink.
type PartMetrics struct {
	connections, redelivered, unroutable prometheus.Counter
	connected, blocked                   prometheus.Gauge
}

// NewMetrics registers the metrics.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	labels := []string{"route", "role"}
	counter := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "pigeonhole_rabbitmq_" + name, Help: help}, labels)
	}
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "pigeonhole_rabbitmq_" + name, Help: help}, labels)
	}
	m := &Metrics{
		connections: counter("connections_total", "Connections made to RabbitMQ."),
		redelivered: counter("redelivered_total", "Messages that RabbitMQ had delivered before, to this or another consumer."),
		unroutable:  counter("unroutable_total", "Messages that RabbitMQ gave back because no queue takes them."),
		connected:   gauge("connected", "1 while there is a connection to RabbitMQ."),
		blocked:     gauge("blocked", "1 while RabbitMQ does not take messages because it is short of memory or disk."),
	}
	for _, c := range m.all() {
		reg.MustRegister(c)
	}
	return m
}

// vector is what the metrics have in common.
type vector interface {
	prometheus.Collector
	DeletePartialMatch(labels prometheus.Labels) int
}

func (m *Metrics) all() []vector {
	return []vector{m.connections, m.redelivered, m.unroutable, m.connected, m.blocked}
}

// Of returns the metrics of a route's part: its role is source, sink or dead_letter.
func (m *Metrics) Of(route, role string) *PartMetrics {
	return &PartMetrics{
		connections: m.connections.WithLabelValues(route, role), redelivered: m.redelivered.WithLabelValues(route, role),
		unroutable: m.unroutable.WithLabelValues(route, role), connected: m.connected.WithLabelValues(route, role),
		blocked: m.blocked.WithLabelValues(route, role),
	}
}

// Forget removes the metrics of a route that is no more.
func (m *Metrics) Forget(route string) {
	for _, v := range m.all() {
		v.DeletePartialMatch(prometheus.Labels{"route": route})
	}
}

// ForgetPart removes the metrics of a part that a route does not have any more.
func (m *Metrics) ForgetPart(route, role string) {
	for _, v := range m.all() {
		v.DeletePartialMatch(prometheus.Labels{"route": route, "role": role})
	}
}
