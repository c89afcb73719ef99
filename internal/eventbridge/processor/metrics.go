package processor

import (
	"sync/atomic"
	"time"

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
	letters    *prometheus.GaugeVec
	troubled   atomic.Pointer[func() int]
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
			Name: "eventbridge_delivery_duration_seconds", Help: "Time that attempts took.", Buckets: seconds,
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
			Name: "eventbridge_backlog_age_seconds",
			Help: "Age of the oldest event that a subscriber has not got, since it was stored for it. Needs the admin API.",
		}, subscriber),
		letters: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "eventbridge_dead_letters", Help: "Events of a subscriber that were given up and wait for a redrive. Needs the admin API.",
		}, subscriber),
	}
	troubled := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "eventbridge_troubled_subscribers", Help: "Subscribers that cannot be consumed or delivered to at present.",
	}, func() float64 {
		if count := m.troubled.Load(); count != nil {
			return float64((*count)())
		}
		return 0
	})
	reg.MustRegister(m.deliveries, m.seconds, m.age, m.underWay, m.breaker, m.backlog, m.backlogAge, m.letters, troubled)
	return m
}

// countTroubled says who counts the subscribers that are in trouble.
func (m *Metrics) countTroubled(count func() int) { m.troubled.Store(&count) }

// outcomes are what may come of an attempt.
func outcomes() []string { return []string{"delivered", "retry", "dead_letter", "gone", "lost"} }

// subscriberMetrics are those of one subscriber.
type subscriberMetrics struct {
	deliveries map[string]prometheus.Counter  // by outcome
	seconds    map[string]prometheus.Observer // by outcome
	age        prometheus.Observer
	underWay   prometheus.Gauge
	breaker    prometheus.Gauge
}

func (m *Metrics) of(s *registry.Subscriber) *subscriberMetrics {
	labels := prometheus.Labels{"bus": s.Bus, "subscriber": s.Name}
	of := &subscriberMetrics{
		deliveries: make(map[string]prometheus.Counter, len(outcomes())), seconds: make(map[string]prometheus.Observer, len(outcomes())),
		age: m.age.WithLabelValues(s.Bus), underWay: m.underWay.With(labels), breaker: m.breaker.With(labels),
	}
	for _, outcome := range outcomes() {
		of.deliveries[outcome] = m.deliveries.WithLabelValues(s.Bus, s.Name, outcome)
		of.seconds[outcome] = m.seconds.WithLabelValues(kindOf(&s.Target), outcome)
	}
	return of
}

// showBacklog sets what is known of a backlog.
func (m *Metrics) showBacklog(bus, subscriber string, b Backlog, age time.Duration) {
	m.backlog.WithLabelValues(bus, subscriber).Set(float64(b.Events))
	m.letters.WithLabelValues(bus, subscriber).Set(float64(b.DeadLetters))
	m.backlogAge.WithLabelValues(bus, subscriber).Set(age.Seconds())
}

// hideBacklog removes what is not known any more.
func (m *Metrics) hideBacklog(bus, subscriber string) {
	m.backlog.DeleteLabelValues(bus, subscriber)
	m.backlogAge.DeleteLabelValues(bus, subscriber)
	m.letters.DeleteLabelValues(bus, subscriber)
}

// forget removes those of a subscriber that is no more.
func (m *Metrics) forget(bus, subscriber string) {
	labels := prometheus.Labels{"bus": bus, "subscriber": subscriber}
	for _, v := range []interface {
		DeletePartialMatch(prometheus.Labels) int
	}{m.deliveries, m.underWay, m.breaker, m.backlog, m.backlogAge, m.letters} {
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
