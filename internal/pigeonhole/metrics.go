package pigeonhole

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/aviaryhq/aviary/internal/connector"
	"github.com/aviaryhq/aviary/internal/connector/pipeline"
)

// metrics are the metrics of all routes.
type metrics struct {
	pipelines *pipeline.Metrics
	parts     *connector.Metrics    // the metrics of sources and sinks
	reg       prometheus.Registerer // for the metrics of the Pulsar client, which have no label route
}

func newMetrics(reg prometheus.Registerer) *metrics {
	named := prometheus.WrapRegistererWithPrefix("pigeonhole_", reg)
	return &metrics{pipelines: pipeline.NewMetrics(named), parts: connector.NewMetrics(named), reg: reg}
}

// forget removes the series of a route that was removed.
func (m *metrics) forget(route string) {
	m.pipelines.Forget(route)
	m.parts.Forget(route)
}

// forgetParts removes the series of parts that a route does not have: those from before a change,
// and those of a change that was rejected.
func (m *metrics) forgetParts(c RouteConfig) {
	deadLetters, _ := c.deadLetterSink()
	m.parts.ForgetOthers(c.Name, roleSource, c.Source.system())
	m.parts.ForgetOthers(c.Name, roleSink, c.Sink.system())
	m.parts.ForgetOthers(c.Name, roleDeadLetter, deadLetters)
}
