package nightingale

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/aviaryhq/aviary/internal/nightingale/batch"
)

// metrics holds the metrics of the service. Label values come from small fixed sets: status codes,
// reasons and stages, never from senders. The publisher has the metrics of its queue and of the
// broker's latency: aviary_messaging_pending_* and aviary_messaging_ack_duration_seconds.
type metrics struct {
	requests, refused           *prometheus.CounterVec
	samples, rejected, filtered *prometheus.CounterVec
	metadata                    *prometheus.CounterVec
	bodyBytes                   *prometheus.CounterVec
	repeated                    *prometheus.CounterVec
	requestTime                 prometheus.Histogram
	stages                      *prometheus.HistogramVec
	inFlight, inFlightSize      prometheus.Gauge
	connections                 prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer, cfg Config) *metrics {
	buckets := []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}
	create := promauto.With(reg)
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return create.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	gauge := func(name, help string) prometheus.Gauge {
		return create.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	m := &metrics{
		requests: counter("nightingale_requests_total",
			"Write requests answered, by status code; 499 for senders that closed the connection.", "code"),
		refused: counter("nightingale_requests_refused_total", "Write requests not answered 204, by reason.", "reason"),
		samples: counter("nightingale_samples_total", "Samples by kind (sample, histogram, exemplar) and result: "+
			"written (acknowledged by the broker; under ack: queued, in the publish queue), filtered (by the configuration), "+
			"unwritten (the sender must repeat them), rejected (invalid) or throttled (over the quota).", "kind", "result"),
		rejected: counter("nightingale_samples_rejected_total", "Samples of invalid series, of all kinds, by reason.", "reason"),
		filtered: counter("nightingale_samples_filtered_total", "Samples of all kinds that the configuration filters out. "+
			"They count as written for the sender. By reason: relabel (a rule drops them), "+
			"nameless (a rule removes the metric's name) or format (it cannot contain them).", "reason"),
		metadata: counter("nightingale_metadata_total", "Metadata entries received, by result: remembered; "+
			"ignored (no name, name or unit too long, or limits.metadata_families is 0); "+
			"rejected (not UTF-8, or larger than limits.series_bytes); evicted (removed for another entry).", "result"),
		bodyBytes: counter("nightingale_bytes_total",
			"Bytes of request bodies, compressed and decoded, and of the messages published for them.", "state"),
		repeated: counter("nightingale_repeated_requests_total", "Requests with the body of an earlier request. "+
			"They are not published again. By state of the earlier request: joined (in flight) or answered (acknowledged).", "state"),
		requestTime: create.NewHistogram(prometheus.HistogramOpts{
			Name: "nightingale_request_duration_seconds", Help: "Time from a request's headers to its answer.", Buckets: buckets,
			// Also a native histogram, for a Prometheus that requests it.
			NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 100, NativeHistogramMinResetDuration: time.Hour,
		}),
		stages: create.NewHistogramVec(prometheus.HistogramOpts{
			Name: "nightingale_stage_duration_seconds", Help: "Time of a request in each stage.", Buckets: buckets,
		}, []string{"stage"}),
		inFlight: gauge("nightingale_requests_in_flight", "Write requests in flight."),
		inFlightSize: gauge("nightingale_in_flight_bytes",
			"Bytes that requests hold, until their messages are published: bodies, decoded elements, messages."),
		connections: gauge("nightingale_connections", "Senders' open connections."),
	}
	gauge("nightingale_in_flight_limit_bytes", "The bound of nightingale_in_flight_bytes.").Set(float64(cfg.Limits.InFlightBytes))
	queue := create.NewGaugeVec(prometheus.GaugeOpts{
		Name: "nightingale_queue_limit", Help: "Bounds of the publish queue, by unit: " +
			"records or bytes. Its use is in aviary_messaging_pending_records and aviary_messaging_pending_bytes.",
	}, []string{"unit"})
	queue.WithLabelValues("records").Set(float64(cfg.Profile.MaxPendingRecords))
	queue.WithLabelValues("bytes").Set(float64(cfg.Profile.MaxPendingBytes))

	// Present from the start, so that rates and alerts see the first increment.
	for _, result := range []string{"written", "filtered", "unwritten", "rejected", "throttled"} {
		m.countSamples(batch.Counts{}, result)
	}
	for reason := range batch.FilterReasons {
		m.filtered.WithLabelValues(batch.FilterReason(reason))
	}
	for counter, values := range map[*prometheus.CounterVec][]string{
		m.requests: {"204", "400", "401", "403", "404", "413", "429", "500", "503"},
		m.refused: {
			"forbidden_tenant", "in_flight_bytes", "in_flight_share", "internal", "invalid_series", "publish",
			"pulsar_unavailable", "queue_full", "slow_body", "tenant_quota", "timeout", "topic_unavailable",
			"unauthorized", "unknown_path",
		},
		m.metadata:  {"remembered", "ignored", "rejected", "evicted"},
		m.bodyBytes: {"compressed", "decoded", "published"},
		m.repeated:  {"joined", "answered"},
	} {
		for _, value := range values {
			counter.WithLabelValues(value)
		}
	}
	return m
}

// countSamples counts samples of all kinds under their result.
func (m *metrics) countSamples(c batch.Counts, result string) {
	m.samples.WithLabelValues("sample", result).Add(float64(c.Samples))
	m.samples.WithLabelValues("histogram", result).Add(float64(c.Histograms))
	m.samples.WithLabelValues("exemplar", result).Add(float64(c.Exemplars))
}

// countContents counts the contents of a request after an attempt to publish it.
func (m *metrics) countContents(c batch.Contents, err error) {
	if filtered := c.Filtered.Total(); err == nil {
		c.Valid.Subtract(filtered) // c is a copy
		m.countSamples(c.Valid, "written")
		m.countSamples(filtered, "filtered")
		for reason, n := range c.Filtered {
			if entries := n.Entries(); entries > 0 {
				m.filtered.WithLabelValues(batch.FilterReason(reason)).Add(float64(entries))
			}
		}
	} else {
		m.countSamples(c.Valid, "unwritten")
	}
	if len(c.Invalid.Reasons) > 0 {
		m.countSamples(c.Invalid.Counts, "rejected")
	}
	for reason, n := range c.Invalid.Reasons {
		m.rejected.WithLabelValues(reason).Add(float64(n))
	}
	m.metadata.WithLabelValues("remembered").Add(float64(c.Metadata.Remembered))
	m.metadata.WithLabelValues("ignored").Add(float64(c.Metadata.Ignored))
	m.metadata.WithLabelValues("evicted").Add(float64(c.Metadata.Evicted))
	m.metadata.WithLabelValues("rejected").Add(float64(c.Invalid.Metadata))
}

// stopwatch measures the stages of one request.
type stopwatch struct {
	metrics *metrics
	last    time.Time
}

func (s *stopwatch) lap(stage string) {
	now := time.Now()
	s.metrics.stages.WithLabelValues(stage).Observe(now.Sub(s.last).Seconds())
	s.last = now
}
