package kafka

import (
	"errors"

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

// register adds c, or returns the one that a former source of the same registerer has added.
func register[C prometheus.Collector](to prometheus.Registerer, c C) (C, error) {
	if to == nil {
		return c, nil
	}
	err := to.Register(c)
	var already prometheus.AlreadyRegisteredError
	if errors.As(err, &already) {
		if former, ok := already.ExistingCollector.(C); ok {
			return former, nil
		}
	}
	return c, err
}
