package outbox

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/aviaryhq/aviary/internal/sonic/wire"
)

// Metrics are the metrics of all shippers.
type Metrics struct {
	publish  prometheus.Histogram
	age      prometheus.Histogram
	effects  prometheus.Counter
	messages prometheus.Counter
	bytes    prometheus.Counter
}

// NewMetrics creates and registers the metrics.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	buckets := []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}
	m := &Metrics{
		publish: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "sonic_publish_duration_seconds", Help: "Time from sending a message to its acknowledgement.", Buckets: buckets,
		}),
		age: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "sonic_published_age_seconds", Help: "Age of a message's first effect when the message was acknowledged.", Buckets: buckets,
		}),
		effects:  prometheus.NewCounter(prometheus.CounterOpts{Name: "sonic_published_effects_total", Help: "Effects stored in the zone's topic."}),
		messages: prometheus.NewCounter(prometheus.CounterOpts{Name: "sonic_published_messages_total", Help: "Messages stored in the zone's topic."}),
		bytes:    prometheus.NewCounter(prometheus.CounterOpts{Name: "sonic_published_bytes_total", Help: "Bytes of messages stored in the zone's topic."}),
	}
	reg.MustRegister(m.publish, m.age, m.effects, m.messages, m.bytes)
	return m
}

// stored records that the parts of a message are stored, with so many effects.
func (m *Metrics) stored(parts []wire.Message, effects int64, took time.Duration) {
	m.publish.Observe(took.Seconds())
	if effects > 0 {
		m.age.Observe(max(time.Since(time.UnixMilli(int64(parts[0].Header.First.Ms))), 0).Seconds())
	}
	m.effects.Add(float64(effects))
	m.messages.Add(float64(len(parts)))
	for i := range parts {
		m.bytes.Add(float64(len(parts[i].Payload)))
	}
}
