package pigeonhole

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/aviaryhq/aviary/internal/connector/kafka"
	"github.com/aviaryhq/aviary/internal/connector/lane"
	"github.com/aviaryhq/aviary/internal/connector/rabbitmq"
)

// metrics are those of all routes.
type metrics struct {
	lanes    *lane.Metrics
	kafka    *kafka.Metrics
	rabbitmq *rabbitmq.Metrics
	client   prometheus.Registerer // takes those of the library for Pulsar, which know no routes
}

func newMetrics(reg prometheus.Registerer) *metrics {
	return &metrics{lanes: lane.NewMetrics(reg), kafka: kafka.NewMetrics(reg), rabbitmq: rabbitmq.NewMetrics(reg), client: reg}
}

// forget removes those of a route that is no more.
func (m *metrics) forget(route string) {
	m.lanes.Forget(route)
	m.kafka.Forget(route)
	m.rabbitmq.Forget(route)
}

// forgetParts removes those of parts that a route had before it was changed, or would have had
// after a change that was refused.
func (m *metrics) forgetParts(c RouteConfig) {
	letters := c.letters()
	for role, there := range map[string]bool{
		roleSource: c.Source.RabbitMQ != nil, roleSink: c.Sink.RabbitMQ != nil,
		roleDeadLetter: c.deadLetters() && letters != nil && letters.RabbitMQ != nil,
	} {
		if !there {
			m.rabbitmq.ForgetPart(c.Name, role)
		}
	}
}
