package consume

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/cluster"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/record"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/retry"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/schedule"
)

// consumerMetrics are labelled by the subscription and, where there are kinds, by
// a bounded word: never by a topic or a key.
type consumerMetrics struct {
	received     *prometheus.CounterVec
	handled      *prometheus.CounterVec // result: ack | retry | dead_letter | panic | ...
	failedCopies *prometheus.CounterVec // reason
	seconds      *prometheus.HistogramVec
	inFlight     *prometheus.GaugeVec
	queued       *prometheus.GaugeVec
	queuedBytes  *prometheus.GaugeVec
	held         *prometheus.GaugeVec
	resubscribes *prometheus.CounterVec // reason
	redelivered  *prometheus.CounterVec
	stuck        *prometheus.GaugeVec
	failedAcks   *prometheus.CounterVec
	unreadable   *prometheus.CounterVec // reason
}

func newMetrics(reg prometheus.Registerer) consumerMetrics {
	counter, gauge := cluster.Counters(reg, "subscription"), cluster.Gauges(reg, "subscription")
	return consumerMetrics{
		received: counter("aviary_messaging_received_messages_total", "Messages received."),
		handled: counter("aviary_messaging_handled_messages_total",
			"Messages by result: acknowledged, another attempt arranged, stored as dead letter (truncated: only its beginning), "+
				"dead letter that cannot be stored and is parked, retry that belongs to another subscription, "+
				"and panic (counted besides the others).", "result"),
		failedCopies: counter("aviary_messaging_failed_copies_total",
			"Failed attempts to store a copy on a retry or dead-letter topic. "+
				"The message is not acknowledged until its copy is stored.", "reason"),
		seconds: cluster.Register(reg, prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "aviary_messaging_handler_duration_seconds",
			Help:    "Duration of handler calls; a sample of them if they are short.",
			Buckets: []float64{.00001, .0001, .001, .005, .01, .05, .1, .5, 1, 5, 10, 60, 600},
		}, []string{"subscription"})),
		inFlight:    gauge("aviary_messaging_handlers_in_flight", "Handlers running."),
		queued:      gauge("aviary_messaging_unfinished_messages", "Messages received and not finished, in flight and held included."),
		queuedBytes: gauge("aviary_messaging_unfinished_bytes", "Bytes of messages received and not finished."),
		held:        gauge("aviary_messaging_held_messages", "Messages held in this process for another attempt."),
		resubscribes: counter("aviary_messaging_resubscribes_total",
			"Times that a consumer subscribed again: the broker ended the subscription, messages are missing, "+
				"or the receive queue gets another length.", "reason"),
		redelivered: counter("aviary_messaging_redelivered_messages_total", "Messages that the broker delivered again."),
		stuck:       gauge("aviary_messaging_stuck_handlers", "Handlers running, and with RunAsync messages without a verdict, for longer than stuck_after."),
		failedAcks:  counter("aviary_messaging_failed_acks_total", "Acknowledgements that could not be sent; their messages are delivered again."),
		unreadable: counter("aviary_messaging_unreadable_messages_total",
			"Messages that no handler receives: encrypted (they stay in the subscription), "+
				"chunks (the client discarded an incomplete message), corrupted (the client acknowledged them).", "reason"),
	}
}

// subscriptionMetrics are consumerMetrics with the subscription's label applied.
type subscriptionMetrics struct {
	received, acks, retried, deadLettered, panics prometheus.Counter
	redelivered, ackFailed                        prometheus.Counter
	seconds                                       prometheus.Observer
	inFlight, queued, queuedBytes, held, stuck    prometheus.Gauge
	resubscribes                                  *prometheus.CounterVec

	truncated, parked        prometheus.Counter // dead letters
	otherSubscription        prometheus.Counter
	failedCopies, unreadable *prometheus.CounterVec // reason
}

func (m consumerMetrics) of(subscription string) subscriptionMetrics {
	handled := func(result string) prometheus.Counter { return m.handled.WithLabelValues(subscription, result) }
	for _, reason := range []string{"other", "too_large", "terminated", "queue_full", "no_subscription"} {
		m.failedCopies.WithLabelValues(subscription, reason) // from the start, so that an alert sees the first one
	}
	for _, reason := range []string{
		"busy", "unauthorized", "topic_not_found", "terminated", "closed", "dropped", "rewound", "partitions", "chunks", "longer_queue", "shorter_queue",
	} {
		m.resubscribes.WithLabelValues(subscription, reason)
	}
	for _, reason := range []string{"encrypted", "chunks", "corrupted"} {
		m.unreadable.WithLabelValues(subscription, reason)
	}
	return subscriptionMetrics{
		received:     m.received.WithLabelValues(subscription),
		acks:         handled("ack"),
		retried:      handled("retry"),
		deadLettered: handled("dead_letter"),
		panics:       handled("panic"),
		redelivered:  m.redelivered.WithLabelValues(subscription),
		ackFailed:    m.failedAcks.WithLabelValues(subscription),
		seconds:      m.seconds.WithLabelValues(subscription),
		inFlight:     m.inFlight.WithLabelValues(subscription),
		queued:       m.queued.WithLabelValues(subscription),
		queuedBytes:  m.queuedBytes.WithLabelValues(subscription),
		held:         m.held.WithLabelValues(subscription),
		stuck:        m.stuck.WithLabelValues(subscription),
		resubscribes: m.resubscribes,

		truncated:         handled("dead_letter_truncated"),
		parked:            handled("dead_letter_parked"),
		otherSubscription: handled("other_subscription"),
		failedCopies:      m.failedCopies.MustCurryWith(prometheus.Labels{"subscription": subscription}),
		unreadable:        m.unreadable.MustCurryWith(prometheus.Labels{"subscription": subscription}),
	}
}

// gauge sets the gauges. Consumers that share a subscription's name in one process
// share these, and show one of them.
func (m subscriptionMetrics) gauge(s *schedule.Scheduler, ws []*worker) {
	count, bytes, held := s.Load()
	m.queued.Set(float64(count))
	m.queuedBytes.Set(float64(bytes))
	m.held.Set(float64(held))
	busy := 0
	for _, w := range ws {
		if !w.Busy().IsZero() {
			busy++
		}
	}
	m.inFlight.Set(float64(busy))
}

// failedCopy counts a copy that was not stored, by a short, bounded word for why.
func (m subscriptionMetrics) failedCopy(err error) {
	reason := "other"
	switch {
	case errors.Is(err, record.ErrTooLarge):
		reason = "too_large"
	case errors.Is(err, record.ErrTopicTerminated):
		reason = "terminated"
	case errors.Is(err, record.ErrQueueFull):
		reason = "queue_full"
	case errors.Is(err, retry.ErrNotKept):
		reason = "no_subscription"
	}
	m.failedCopies.WithLabelValues(reason).Inc()
}

// clear says that nothing is here any more.
func (m subscriptionMetrics) clear() {
	for _, g := range []prometheus.Gauge{m.inFlight, m.queued, m.queuedBytes, m.held} {
		g.Set(0)
	}
}
