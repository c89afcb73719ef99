package store

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
)

// Metrics are the metrics of the registry.
type Metrics struct {
	revision, buses, subscribers, rules, unreadable prometheus.Gauge
	changes                                         *prometheus.CounterVec
	seconds                                         prometheus.Histogram
}

// NewMetrics registers the metrics with reg. With a nil reg they are not exported.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: "eventbridge_registry_" + name, Help: help})
	}
	m := &Metrics{
		revision:    gauge("revision", "Revision of the last change that this instance has read."),
		buses:       gauge("buses", "Buses."),
		subscribers: gauge("subscribers", "Subscribers of all buses."),
		rules:       gauge("rules", "Rules of all subscribers."),
		unreadable:  gauge("unreadable_records", "Buses and subscribers that are unavailable because their records cannot be read."),
		changes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "eventbridge_registry_changes_total", Help: "Changes requested from this instance, by result.",
		}, []string{"result"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "eventbridge_registry_change_duration_seconds", Help: "Duration of a change.",
			Buckets: []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}),
	}
	for _, result := range []string{"stored", "same", "invalid", "conflict", "not_found", "unknown", "failed"} {
		m.changes.WithLabelValues(result) // from the start, so that an alert sees the first one
	}
	if reg != nil {
		reg.MustRegister(m.revision, m.buses, m.subscribers, m.rules, m.unreadable, m.changes, m.seconds)
	}
	return m
}

func (m *Metrics) show(s *Snapshot) {
	buses, subscribers := s.Counts()
	m.revision.Set(float64(s.Revision()))
	m.buses.Set(float64(buses))
	m.subscribers.Set(float64(subscribers))
	m.rules.Set(float64(s.Rules()))
	m.unreadable.Set(float64(len(s.unreadable)))
}

func (m *Metrics) changed(stored bool, err error, took time.Duration) {
	var invalid *model.Invalid
	result := "failed"
	switch {
	case err == nil && stored:
		result = "stored"
	case err == nil:
		result = "same"
	case errors.As(err, &invalid):
		result = "invalid"
	case errors.Is(err, model.ErrConflict):
		result = "conflict"
	case errors.Is(err, model.ErrNotFound):
		result = "not_found"
	case errors.Is(err, model.ErrUnknown):
		result = "unknown"
	}
	m.changes.WithLabelValues(result).Inc()
	m.seconds.Observe(took.Seconds())
}
