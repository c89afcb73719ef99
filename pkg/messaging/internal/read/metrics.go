package read

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/clientquirks"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/cluster"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/record"
)

// Metrics are labelled by the reader's name and, where there are kinds, by a bounded word.
type Metrics struct {
	messages     *prometheus.CounterVec
	bytes        *prometheus.CounterVec
	age          *prometheus.GaugeVec
	interrupted  *prometheus.GaugeVec
	resubscribes *prometheus.CounterVec // reason
}

func newMetrics(reg prometheus.Registerer) Metrics {
	counter, gauge := cluster.Counters(reg, "reader"), cluster.Gauges(reg, "reader")
	return Metrics{
		messages: counter("aviary_messaging_reader_messages_total", "Messages that readers returned."),
		bytes:    counter("aviary_messaging_reader_bytes_total", "Bytes of the messages that readers returned: keys and payloads."),
		age: gauge("aviary_messaging_reader_age_seconds",
			"Age of the latest message when a reader returned it, since it was published."),
		interrupted: gauge("aviary_messaging_reader_interrupted_partitions", "Partitions that readers do not read now."),
		resubscribes: counter("aviary_messaging_reader_resubscribes_total",
			"Attempts of readers to subscribe again, because a connection was lost "+
				"or the broker ended or refused the subscription.", "reason"),
	}
}

// NamedMetrics are Metrics with the reader's label applied.
type NamedMetrics struct {
	messages, bytes  prometheus.Counter
	age, interrupted prometheus.Gauge
	resubscribes     *prometheus.CounterVec // reason
}

func (m Metrics) of(reader string) NamedMetrics {
	for _, reason := range []string{
		"connection", "silent", "no_answer", "busy", "unauthorized", "topic_not_found", "terminated", "closed",
	} {
		m.resubscribes.WithLabelValues(reader, reason) // from the start, so that an alert sees the first one
	}
	return NamedMetrics{
		messages:     m.messages.WithLabelValues(reader),
		bytes:        m.bytes.WithLabelValues(reader),
		age:          m.age.WithLabelValues(reader),
		interrupted:  m.interrupted.WithLabelValues(reader),
		resubscribes: m.resubscribes.MustCurryWith(prometheus.Labels{"reader": reader}),
	}
}

// returned counts a message. Readers of one name in one process share the gauge of the age, and
// show one of theirs.
func (m NamedMetrics) returned(d *record.Delivery) {
	m.messages.Inc()
	m.bytes.Add(float64(len(d.Payload) + len(d.Key)))
	m.age.Set(max(time.Since(d.PublishTime), 0).Seconds())
}

// resubscribe counts another try, by a short, bounded word for why.
func (m NamedMetrics) resubscribe(err error) {
	reason := clientquirks.CloseReason(err)
	switch {
	case errors.Is(err, errReconnects):
		reason = "connection"
	case errors.Is(err, cluster.ErrSubscribeHangs):
		reason = "no_answer"
	case errors.Is(err, errSilent):
		reason = "silent"
	}
	m.resubscribes.WithLabelValues(reason).Inc()
}
