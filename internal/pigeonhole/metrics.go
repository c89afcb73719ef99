package pigeonhole

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/aviaryhq/aviary/internal/pigeonhole/kafka"
	"github.com/aviaryhq/aviary/internal/pigeonhole/lane"
	"github.com/aviaryhq/aviary/internal/pigeonhole/rabbitmq"
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
