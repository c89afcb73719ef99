package pigeonhole

import (
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/pigeonhole/kafka"
	"github.com/aviaryhq/aviary/internal/pigeonhole/pulsar"
	"github.com/aviaryhq/aviary/internal/pigeonhole/rabbitmq"
)

// options are what every source and sink is made with.
type options struct {
	log        *zap.Logger
	report     func(error)
	registerer prometheus.Registerer
}

// newSource makes the source of a route; it connects when it runs.
func newSource(rc RouteConfig, o options) (source, error) {
	switch c := rc.Source; {
	case c.Kafka != nil:
		return kafka.NewSource(c.Kafka.SourceConfig, kafka.Options{Log: o.log, Report: o.report, Registerer: o.registerer})
	case c.RabbitMQ != nil:
		return rabbitmq.NewSource(c.RabbitMQ.SourceConfig, rabbitmq.Options{Log: o.log, Report: o.report, Registerer: o.registerer})
	default:
		return pulsar.NewSource(c.Pulsar.SourceConfig, pulsar.Options{Log: o.log, Report: o.report, Registerer: o.registerer})
	}
}

// newSink makes a sink; it connects when it runs.
func newSink(c SinkConfig, guarantee string, o options) (sink, error) {
	switch {
	case c.Kafka != nil:
		return kafka.NewSink(c.Kafka.SinkConfig, kafka.Options{Log: o.log, Report: o.report, Registerer: o.registerer})
	case c.RabbitMQ != nil:
		return rabbitmq.NewSink(c.RabbitMQ.SinkConfig, rabbitmq.Options{Log: o.log, Report: o.report, Registerer: o.registerer})
	default:
		cfg := c.Pulsar.SinkConfig
		cfg.Guarantee = guarantee
		return pulsar.NewSink(cfg, pulsar.Options{Log: o.log, Report: o.report, Registerer: o.registerer})
	}
}
