package rabbitmq

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/aviaryhq/aviary/internal/connector"
)

// metrics are those of one source or sink.
type metrics struct {
	connections, redelivered, unroutable prometheus.Counter
	connected, blocked                   prometheus.Gauge
}

func newMetrics(m *connector.PartMetrics) *metrics {
	counter := func(name, help string) prometheus.Counter {
		return m.Counter("rabbitmq_"+name, help, "role").WithLabelValues()
	}
	gauge := func(name, help string) prometheus.Gauge {
		return m.Gauge("rabbitmq_"+name, help, "role").WithLabelValues()
	}
	return &metrics{
		connections: counter("connections_total", "Connections made to RabbitMQ."),
		redelivered: counter("redelivered_total", "Messages that RabbitMQ had delivered before, to this or another consumer."),
		unroutable:  counter("unroutable_total", "Messages that RabbitMQ returned because no queue takes them."),
		connected:   gauge("connected", "1 while there is a connection to RabbitMQ."),
		blocked:     gauge("blocked", "1 while RabbitMQ does not take messages because it is short of memory or disk."),
	}
}
