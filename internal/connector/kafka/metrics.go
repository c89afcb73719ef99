package kafka

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rcrowley/go-metrics"

	"github.com/aviaryhq/aviary/internal/connector"
)

// noMetrics turns the library's metrics off: they are expensive, and the pipelines count already. The
// library's own switch, metrics.UseNilMetrics, is a variable of the whole process.
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

// gapsCounter counts gaps by topic.
func gapsCounter(m *connector.PartMetrics) *prometheus.CounterVec {
	return m.Counter("kafka_gaps_total",
		"Times that a partition went on from its oldest message because those after the committed offset are gone.", "topic")
}

// startsCounter counts, by topic, partitions that were begun without a committed offset.
func startsCounter(m *connector.PartMetrics) *prometheus.CounterVec {
	return m.Counter("kafka_starts_total",
		"Times that a partition with messages was read from its oldest one because the group had no committed offset: the group is new, or its offsets have expired.", "topic")
}
