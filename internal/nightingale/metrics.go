package nightingale

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/aviaryhq/aviary/internal/nightingale/batch"
)

// metrics holds the metrics of the service. Label values come from small fixed sets: status codes,
// reasons and stages, never from senders.
type metrics struct {
	*opsMetrics
	requests     *prometheus.CounterVec   // code
	refused      *prometheus.CounterVec   // reason
	samples      *prometheus.CounterVec   // kind, result
	rejected     *prometheus.CounterVec   // reason
	filtered     *prometheus.CounterVec   // reason
	metadata     *prometheus.CounterVec   // result
	bodyBytes    *prometheus.CounterVec   // state: compressed | decoded | published
	requestTime  prometheus.Histogram     // whole requests
	stages       *prometheus.HistogramVec // stage
	inFlight     prometheus.Gauge
	inFlightSize prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) *metrics {
	buckets := []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}
	m := &metrics{
		opsMetrics: newOpsMetrics(reg),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "nightingale_requests_total",
			Help: "Write requests answered, by status code; 499 for senders that closed the connection.",
		}, []string{"code"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "nightingale_requests_refused_total",
			Help: "Write requests not answered 204, by reason.",
		}, []string{"reason"}),
		samples: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "nightingale_samples_total",
			Help: "Samples by kind (sample, histogram, exemplar) and result: written (acknowledged by the broker; under ack: queued, taken into the publish queue), filtered (left out by the configuration), unwritten (the sender was asked to retry), rejected (invalid) or throttled (over the tenant's quota).",
		}, []string{"kind", "result"}),
		rejected: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "nightingale_samples_rejected_total",
			Help: "Samples of invalid series, of all kinds, by reason.",
		}, []string{"reason"}),
		filtered: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "nightingale_samples_filtered_total",
			Help: "Samples of all kinds that the configuration leaves out and senders are told are written, by reason: relabel (dropped by relabel_configs), nameless (relabel_configs took the metric's name), format (which has no place for histograms and exemplars).",
		}, []string{"reason"}),
		metadata: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "nightingale_metadata_total",
			Help: "Metadata entries received, by result: remembered; ignored (no name, name or unit too long, or limits.metadata_families is 0); rejected (not UTF-8, or larger than limits.series_bytes); evicted (removed for another entry).",
		}, []string{"result"}),
		bodyBytes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "nightingale_bytes_total",
			Help: "Bytes of request bodies, compressed and decoded, and of the messages published for them.",
		}, []string{"state"}),
		requestTime: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "nightingale_request_duration_seconds", Help: "Time from a request's headers to its answer.", Buckets: buckets,
			// Also a native histogram, for a Prometheus that requests it.
			NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 100, NativeHistogramMinResetDuration: time.Hour,
		}),
		stages: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "nightingale_stage_duration_seconds", Help: "Time of a request in each stage.", Buckets: buckets,
		}, []string{"stage"}),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "nightingale_requests_in_flight", Help: "Write requests being handled.",
		}),
		inFlightSize: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "nightingale_in_flight_bytes",
			Help: "Bytes that requests hold, until their messages are published: bodies, decoded elements, messages.",
		}),
	}
	reg.MustRegister(m.requests, m.refused, m.samples, m.rejected, m.filtered, m.metadata, m.bodyBytes, m.requestTime, m.stages, m.inFlight, m.inFlightSize)
	// Present from the start, so that rates and alerts see the first increment.
	for _, result := range []string{"written", "filtered", "unwritten", "rejected", "throttled"} {
		for _, kind := range []string{"sample", "histogram", "exemplar"} {
			m.samples.WithLabelValues(kind, result)
		}
	}
	for _, code := range []int{204, 400, 401, 403, 404, 413, 429, 500, 503} {
		m.requests.WithLabelValues(strconv.Itoa(code))
	}
	for _, reason := range []string{
		"forbidden_tenant", "in_flight_bytes", "in_flight_share", "internal", "invalid_series", "publish", "pulsar_unavailable", "queue_full", "slow_body",
		"tenant_quota", "timeout", "topic_unavailable", "unauthorized", "unknown_path",
	} {
		m.refused.WithLabelValues(reason)
	}
	for reason := range batch.FilterReasons {
		m.filtered.WithLabelValues(batch.FilterReason(reason))
	}
	for _, result := range []string{"remembered", "ignored", "rejected", "evicted"} {
		m.metadata.WithLabelValues(result)
	}
	for _, state := range []string{"compressed", "decoded", "published"} {
		m.bodyBytes.WithLabelValues(state)
	}
	return m
}

func (m *metrics) count(c batch.Counts, result string) {
	m.samples.WithLabelValues("sample", result).Add(float64(c.Samples))
	m.samples.WithLabelValues("histogram", result).Add(float64(c.Histograms))
	m.samples.WithLabelValues("exemplar", result).Add(float64(c.Exemplars))
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
