package delivery

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
)

// metrics are the metrics of the processor. Labels are names of buses and subscribers, and kinds of
// targets.
type metrics struct {
	deliveries *prometheus.CounterVec
	seconds    *prometheus.HistogramVec
	age        *prometheus.HistogramVec
	inFlight   *prometheus.GaugeVec
	breaker    *prometheus.GaugeVec
}

// newMetrics registers the metrics of p.
func newMetrics(reg prometheus.Registerer, p *Processor) *metrics {
	seconds := []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}
	subscriber := []string{"bus", "subscriber"}
	m := &metrics{
		deliveries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "eventbridge_deliveries_total",
			Help: "Attempts by outcome: delivered, retry, dead_letter, gone.",
		}, []string{"bus", "subscriber", "outcome"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "eventbridge_delivery_duration_seconds", Help: "Duration of an attempt.", Buckets: seconds,
		}, []string{"target", "outcome"}),
		age: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "eventbridge_delivered_age_seconds", Buckets: seconds,
			Help: "Time from the storing of a copy in the send topic to its delivery.",
		}, []string{"bus"}),
		inFlight: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "eventbridge_deliveries_in_flight", Help: "Attempts in flight.",
		}, subscriber),
		breaker: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "eventbridge_breaker_state", Help: "The breaker of a subscriber: 0 closed, 1 half open, 2 open.",
		}, subscriber),
	}
	unhealthy := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "eventbridge_unhealthy_subscribers", Help: "Subscribers that cannot be consumed or delivered to.",
	}, func() float64 { return float64(p.unhealthy()) })
	interrupted := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "eventbridge_interrupted_jobs",
		Help: "Subscribers whose latest redrive, replay or discarding was interrupted. Each processor shows it for all.",
	}, func() float64 { return float64(p.interruptedJobs()) })
	reg.MustRegister(m.deliveries, m.seconds, m.age, m.inFlight, m.breaker, unhealthy, interrupted)
	return m
}

// outcomes returns the possible outcomes of an attempt.
func outcomes() []string { return []string{"delivered", "retry", "dead_letter", "gone"} }

// subscriberMetrics are the metrics of one subscriber.
type subscriberMetrics struct {
	deliveries map[string]prometheus.Counter  // by outcome
	seconds    map[string]prometheus.Observer // by outcome
	age        prometheus.Observer
	inFlight   prometheus.Gauge
	breaker    prometheus.Gauge
}

func (m *metrics) of(s *model.Subscriber) *subscriberMetrics {
	labels := prometheus.Labels{"bus": s.Bus, "subscriber": s.Name}
	of := &subscriberMetrics{
		deliveries: make(map[string]prometheus.Counter, len(outcomes())), seconds: make(map[string]prometheus.Observer, len(outcomes())),
		age: m.age.WithLabelValues(s.Bus), inFlight: m.inFlight.With(labels), breaker: m.breaker.With(labels),
	}
	for _, outcome := range outcomes() {
		of.deliveries[outcome] = m.deliveries.WithLabelValues(s.Bus, s.Name, outcome)
		of.seconds[outcome] = m.seconds.WithLabelValues(s.Target.Kind(), outcome)
	}
	return of
}

// forget removes the metrics of a deleted subscriber.
func (m *metrics) forget(bus, subscriber string) {
	labels := prometheus.Labels{"bus": bus, "subscriber": subscriber}
	for _, v := range []interface {
		DeletePartialMatch(prometheus.Labels) int
	}{m.deliveries, m.inFlight, m.breaker} {
		v.DeletePartialMatch(labels)
	}
}
