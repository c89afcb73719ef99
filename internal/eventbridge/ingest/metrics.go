package ingest

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the metrics of ingestion. Labels have small fixed sets of values: status codes and
// reasons, never anything that a sender chooses.
type metrics struct {
	requests         *prometheus.CounterVec // code
	requestsAccepted prometheus.Counter     // requests of 202
	refused          *prometheus.CounterVec // reason, of requests
	refusedEvent     *prometheus.CounterVec // reason, of entries of batches
	events           struct{ accepted, unstored, refused, throttled prometheus.Counter }
	bytes            struct{ received, decoded, published prometheus.Counter }
	requestTime      prometheus.Histogram
	inFlight         prometheus.Gauge
	inFlightSize     prometheus.Gauge
	connections      prometheus.Gauge
	topics           prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer, limits Limits) *metrics {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: "eventbridge_ingest_" + name, Help: help})
	}
	counters := func(name, help, label string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "eventbridge_ingest_" + name, Help: help}, []string{label})
	}
	m := &metrics{
		requests:     counters("requests_total", "Requests answered, by status code; 499 for senders that closed the connection.", "code"),
		refused:      counters("requests_refused_total", "Requests not answered 202, by reason.", "reason"),
		refusedEvent: counters("events_refused_total", "Events of batches that were refused, by reason.", "reason"),
		requestTime: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "eventbridge_ingest_request_duration_seconds", Help: "Time from a request's headers to its answer.",
			Buckets:                     []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
			NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 100, NativeHistogramMinResetDuration: time.Hour,
		}),
		inFlight:     gauge("requests_in_flight", "Requests in progress."),
		inFlightSize: gauge("in_flight_bytes", "Bytes that requests and their events hold until they are acknowledged."),
		connections:  gauge("connections", "Open connections of senders."),
		topics:       gauge("topics", "Topics of buses that are open for publishing."),
	}
	limit := gauge("in_flight_limit_bytes", "The bound of eventbridge_ingest_in_flight_bytes.")
	limit.Set(float64(limits.InFlightBytes))
	events := counters("events_total", "Events by result: accepted (stored), unstored (the sender was asked to send again), refused (of batches) or throttled (over the tenant's quota).", "result")
	bytes := counters("bytes_total", "Bytes of bodies as they were received and as they were decoded, and of the events stored.", "state")
	m.events.accepted, m.events.unstored = events.WithLabelValues("accepted"), events.WithLabelValues("unstored")
	m.events.refused, m.events.throttled = events.WithLabelValues("refused"), events.WithLabelValues("throttled")
	m.bytes.received, m.bytes.decoded, m.bytes.published = bytes.WithLabelValues("received"), bytes.WithLabelValues("decoded"), bytes.WithLabelValues("published")
	reg.MustRegister(m.requests, m.refused, m.refusedEvent, events, bytes, m.requestTime, m.inFlight, m.inFlightSize, m.connections, m.topics, limit)
	m.requestsAccepted = m.requests.WithLabelValues(strconv.Itoa(http.StatusAccepted))
	// They are present from the start, so that rates and alerts see the first increase.
	for _, code := range []int{400, 401, 403, 404, 413, 415, 422, 429, 503} {
		m.requests.WithLabelValues(strconv.Itoa(code))
	}
	for _, reason := range reasons() {
		m.refused.WithLabelValues(reason)
		m.refusedEvent.WithLabelValues(reason)
	}
	return m
}

// reasons returns the reasons of refusals, as docs/eventbridge-parts/preprocessor.md lists them.
func reasons() []string {
	return []string{
		"not_json", "invalid_utf8", "duplicate_key", "too_deep", "too_many_values", "number_out_of_range", "not_an_object",
		"missing_attribute", "invalid_attribute", "invalid_data", "invalid_header",
		"content_encoding", "hops", "unreadable_body", "unauthorized", "forbidden_bus", "unsigned_attributes", "unknown_bus",
		"body_bytes", "decoded_bytes", "batch_too_large", "event_too_large", "in_flight_bytes", "broker_size",
		"content_type", "no_mapping", "schema", "mapping", "batch", "tenant_quota",
		"timeout", "publish", "pulsar_unavailable", "topic_unavailable", "in_flight_share", "slow_body", "bus_definition",
	}
}
