package connector

import (
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// The labels that sources and sinks share.
const (
	labelRoute = "route"
	labelRole  = "role"
)

// Metrics registers the metrics of all routes' sources and sinks, each at its first use. It is safe
// for concurrent use.
type Metrics struct {
	reg prometheus.Registerer

	mu      sync.Mutex
	vectors map[string]vector // by name
}

// vector is one metric with the series of all routes.
type vector interface {
	prometheus.Collector
	DeletePartialMatch(labels prometheus.Labels) int
}

// NewMetrics returns metrics that register at reg. Names like kafka_gaps_total have no prefix of the
// program: reg adds it.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	return &Metrics{reg: reg, vectors: map[string]vector{}}
}

// PartMetrics are the metrics of one part of a route: a source or a sink.
type PartMetrics struct {
	metrics     *Metrics
	route, role string
}

// Part returns the metrics of a part: role is its role in the route, such as source.
func (m *Metrics) Part(route, role string) *PartMetrics {
	return &PartMetrics{metrics: m, route: route, role: role}
}

// Counter returns a counter with the label route and those of labels. The values of route and role
// are set; the caller gives the others.
func (p *PartMetrics) Counter(name, help string, labels ...string) *prometheus.CounterVec {
	v := shared(p, name, labels, func(labels []string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	})
	return v.MustCurryWith(p.values(labels))
}

// Gauge is [PartMetrics.Counter] for gauges.
func (p *PartMetrics) Gauge(name, help string, labels ...string) *prometheus.GaugeVec {
	v := shared(p, name, labels, func(labels []string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	})
	return v.MustCurryWith(p.values(labels))
}

func (p *PartMetrics) values(labels []string) prometheus.Labels {
	values := prometheus.Labels{labelRoute: p.route}
	if slices.Contains(labels, labelRole) {
		values[labelRole] = p.role
	}
	return values
}

// shared returns the vector of that name. It creates and registers a new one.
func shared[V vector](p *PartMetrics, name string, labels []string, create func(labels []string) V) V {
	m := p.metrics
	m.mu.Lock()
	defer m.mu.Unlock()
	if known, ok := m.vectors[name].(V); ok {
		return known
	}
	v := create(append([]string{labelRoute}, labels...))
	m.reg.MustRegister(v)
	m.vectors[name] = v
	return v
}

// Forget removes the series of a route that was removed.
func (m *Metrics) Forget(route string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, v := range m.vectors {
		v.DeletePartialMatch(prometheus.Labels{labelRoute: route})
	}
}
