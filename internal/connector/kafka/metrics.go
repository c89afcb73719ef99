package kafka

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rcrowley/go-metrics"
)

// noMetrics keeps the library from counting anything: that costs it more than some messages do, and the lanes count already. Its switch for this,
// metrics.UseNilMetrics, is a variable of the whole process.
type noMetrics struct{ metrics.Registry }

func (noMetrics) GetOrRegister(_ string, made any) any {
	switch made.(type) {
	case func() metrics.Counter:
		return metrics.NilCounter{}
	case func() metrics.Meter:
		return metrics.NilMeter{}
	case func() metrics.Timer:
		return metrics.NilTimer{}
	case func() metrics.Gauge:
		return metrics.NilGauge{}
	case func() metrics.Histogram:
		return metrics.NilHistogram{}
	}
	return made
}

func (noMetrics) Register(string, any) error { return nil }
func (noMetrics) Get(string) any             { return nil }
func (noMetrics) Unregister(string)          {}
func (noMetrics) Each(func(string, any))     {}

// Metrics are those of all routes' sources.
type Metrics struct{ gaps *prometheus.CounterVec }

// RouteMetrics are those of one route.
type RouteMetrics struct{ gaps *prometheus.CounterVec } // topic

// NewMetrics registers the metrics.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{gaps: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "pigeonhole_kafka_gaps_total",
		Help: "Times that a partition went on from its oldest message because those after the committed offset are gone.",
	}, []string{"route", "topic"})}
	reg.MustRegister(m.gaps)
	return m
}

// Route returns the metrics of one route.
func (m *Metrics) Route(name string) *RouteMetrics {
	return &RouteMetrics{gaps: m.gaps.MustCurryWith(prometheus.Labels{"route": name})}
}

// Forget removes the metrics of a route that is no more.
func (m *Metrics) Forget(name string) {
	m.gaps.DeletePartialMatch(prometheus.Labels{"route": name})
}
