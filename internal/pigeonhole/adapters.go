package pigeonhole

import (
	"context"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/connector/kafka"
	"github.com/aviaryhq/aviary/internal/connector/pulsar"
	"github.com/aviaryhq/aviary/internal/connector/rabbitmq"
)

// The roles of a route's parts.
const (
	roleSource     = "source"
	roleSink       = "sink"
	roleDeadLetter = "dead_letter"
)

// options are what every source and sink is made with.
type options struct {
	route, role string
	log         *zap.Logger
	report      func(error)
	metrics     *metrics
	patience    context.Context // ends when a stop must not wait any longer
	inFlight    int             // messages that the route may have
}

// leastPending is how many messages a sink is ready for however few the route may have in
// flight: its share may grow when others leave.
const leastPending = 4000

func (o options) kafka() kafka.Options {
	return kafka.Options{Log: o.log, Report: o.report, Metrics: o.metrics.kafka.Route(o.route), Patience: o.patience}
}

func (o options) rabbitmq() rabbitmq.Options {
	return rabbitmq.Options{Log: o.log, Report: o.report, Metrics: o.metrics.rabbitmq.Of(o.route, o.role), Patience: o.patience}
}

func (o options) pulsar() pulsar.Options {
	return pulsar.Options{Log: o.log, Report: o.report, Registerer: o.metrics.client, Patience: o.patience, MaxPending: max(o.inFlight, leastPending)}
}

// newSource makes the source of a route; it connects when it runs.
func newSource(rc RouteConfig, o options) (source, error) {
	switch c := rc.Source; {
	case c.Kafka != nil:
		return kafka.NewSource(c.Kafka.SourceConfig, o.kafka())
	case c.RabbitMQ != nil:
		return rabbitmq.NewSource(c.RabbitMQ.SourceConfig, o.rabbitmq())
	default:
		return pulsar.NewSource(c.Pulsar.SourceConfig, o.pulsar())
	}
}

// newSink makes a sink; it connects when it runs.
func newSink(c SinkConfig, guarantee string, o options) (sink, error) {
	switch {
	case c.Kafka != nil:
		return kafka.NewSink(c.Kafka.SinkConfig, o.kafka())
	case c.RabbitMQ != nil:
		return rabbitmq.NewSink(c.RabbitMQ.SinkConfig, o.rabbitmq())
	default:
		cfg := c.Pulsar.SinkConfig
		cfg.Guarantee = guarantee
		return pulsar.NewSink(cfg, o.pulsar())
	}
}
