package rabbitmq

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	connections, redelivered, unroutable prometheus.Counter
	connected, blocked                   prometheus.Gauge
}

// newMetrics registers the metrics of a source or sink, or takes over those of one before it.
func newMetrics(r prometheus.Registerer, role string) (*metrics, error) {
	var err error
	name := func(s string) prometheus.Opts {
		return prometheus.Opts{Name: "pigeonhole_rabbitmq_" + s, ConstLabels: prometheus.Labels{"role": role}}
	}
	counter := func(s, help string) prometheus.Counter {
		o := prometheus.CounterOpts(name(s))
		o.Help = help
		return registered(r, &err, prometheus.NewCounter(o))
	}
	gauge := func(s, help string) prometheus.Gauge {
		o := prometheus.GaugeOpts(name(s))
		o.Help = help
		return registered(r, &err, prometheus.NewGauge(o))
	}
	m := &metrics{
		connections: counter("connections_total", "Connections made to RabbitMQ."),
		redelivered: counter("redelivered_total", "Messages that RabbitMQ had delivered before, to this or another consumer."),
		unroutable:  counter("unroutable_total", "Messages that RabbitMQ gave back because no queue takes them."),
		connected:   gauge("connected", "1 while there is a connection to RabbitMQ."),
		blocked:     gauge("blocked", "1 while RabbitMQ does not take messages because it is short of memory or disk."),
	}
	return m, err
}

// registered registers c, or returns the one that has been before. The first error is kept.
func registered[C prometheus.Collector](r prometheus.Registerer, kept *error, c C) C {
	if r == nil {
		return c
	}
	err := r.Register(c)
	var before prometheus.AlreadyRegisteredError
	if errors.As(err, &before) {
		if there, ok := before.ExistingCollector.(C); ok {
			return there
		}
	}
	if err != nil && *kept == nil {
		*kept = err
	}
	return c
}
