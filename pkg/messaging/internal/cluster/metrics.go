package cluster

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// Counters makes what registers counters of a label, and of more where there are kinds.
func Counters(reg prometheus.Registerer, label string) func(name, help string, kinds ...string) *prometheus.CounterVec {
	return func(name, help string, kinds ...string) *prometheus.CounterVec {
		return Register(reg, prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help},
			append([]string{label}, kinds...)))
	}
}

// Gauges makes what registers gauges of a label.
func Gauges(reg prometheus.Registerer, label string) func(name, help string) *prometheus.GaugeVec {
	return func(name, help string) *prometheus.GaugeVec {
		return Register(reg, prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, []string{label}))
	}
}

// Register registers c, or returns the equal collector that another client
// registered before, so that several clients of a process share one set.
func Register[C prometheus.Collector](reg prometheus.Registerer, c C) C {
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
