package processor

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry"
)

// Metrics are those of the processor. Labels are names of buses and subscribers, and kinds of targets.
type Metrics struct {
	deliveries *prometheus.CounterVec
	seconds    *prometheus.HistogramVec
	age        *prometheus.HistogramVec
	underWay   *prometheus.GaugeVec
	breaker    *prometheus.GaugeVec
	backlog    *prometheus.GaugeVec
	backlogAge *prometheus.GaugeVec
	troubled   prometheus.Gauge
}

// NewMetrics registers them.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	seconds := []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}
	subscriber := []string{"bus", "subscriber"}
	m := &Metrics{
		deliveries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "eventbridge_deliveries_total",
			Help: "Attempts by what came of them: delivered, retry, dead_letter, gone, lost (live subscribers).",
		}, []string{"bus", "subscriber", "outcome"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "eventbridge_delivery_seconds", Help: "Time that attempts took.", Buckets: seconds,
		}, []string{"target", "outcome"}),
		age: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "eventbridge_delivered_age_seconds", Buckets: seconds,
			Help: "Time from the storing of a copy in the send topic to its delivery.",
		}, []string{"bus"}),
		underWay: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "eventbridge_deliveries_under_way", Help: "Attempts that are being made.",
		}, subscriber),
		breaker: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "eventbridge_breaker_state", Help: "The breaker of a subscriber: 0 closed, 1 half open, 2 open.",
		}, subscriber),
		backlog: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "eventbridge_backlog", Help: "Events that a subscriber has not got, those that wait for another attempt included. Needs the admin API.",
		}, subscriber),
		backlogAge: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "eventbridge_backlog_age_seconds", Help: "Age of the oldest event that waits in a send topic. Needs the admin API.",
		}, subscriber),
		troubled: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "eventbridge_troubled_subscribers", Help: "Subscribers that cannot be consumed or delivered to at present.",
		}),
	}
	reg.MustRegister(m.deliveries, m.seconds, m.age, m.underWay, m.breaker, m.backlog, m.backlogAge, m.troubled)
	return m
}

// subscriberMetrics are those of one subscriber.
type subscriberMetrics struct {
	deliveries *prometheus.CounterVec // by outcome
	seconds    prometheus.ObserverVec // by outcome
	age        prometheus.Observer
	underWay   prometheus.Gauge
	breaker    prometheus.Gauge
}

func (m *Metrics) of(s *registry.Subscriber) *subscriberMetrics {
	labels := prometheus.Labels{"bus": s.Bus, "subscriber": s.Name}
	return &subscriberMetrics{
		deliveries: m.deliveries.MustCurryWith(labels), seconds: m.seconds.MustCurryWith(prometheus.Labels{"target": kindOf(&s.Target)}),
		age: m.age.WithLabelValues(s.Bus), underWay: m.underWay.With(labels), breaker: m.breaker.With(labels),
	}
}

// forget removes those of a subscriber that is no more.
func (m *Metrics) forget(bus, subscriber string) {
	labels := prometheus.Labels{"bus": bus, "subscriber": subscriber}
	for _, v := range []interface {
		DeletePartialMatch(prometheus.Labels) int
	}{m.deliveries, m.underWay, m.breaker, m.backlog, m.backlogAge} {
		v.DeletePartialMatch(labels)
	}
}

// kindOf names what a target is.
func kindOf(t *registry.Target) string {
	switch {
	case t.Webhook != nil:
		return "webhook"
	case t.Pulsar != nil:
		return "pulsar"
	case t.Kafka != nil:
		return "kafka"
	case t.RabbitMQ != nil:
		return "rabbitmq"
	case t.Redis != nil:
		return "redis"
	default:
		return "log"
	}
}
