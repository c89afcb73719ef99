package nightingale

import (
	"net"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
)

// opsMetrics holds the metrics of connections, repeated requests and limits. The publisher has
// those of its queue and of the broker's latency: aviary_messaging_pending_* and
// aviary_messaging_ack_duration_seconds.
type opsMetrics struct {
	repeated    *prometheus.CounterVec // state
	connections prometheus.Gauge
	queueLimit  *prometheus.GaugeVec // unit
	flightLimit prometheus.Gauge
}

func newOpsMetrics(reg prometheus.Registerer) *opsMetrics {
	m := &opsMetrics{
		repeated: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "nightingale_repeated_requests_total",
			Help: "Requests with the body of an earlier one, which were not published again, by its state: joined (still under way) or answered (acknowledged before).",
		}, []string{"state"}),
		connections: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "nightingale_connections", Help: "Senders' open connections.",
		}),
		queueLimit: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "nightingale_queue_limit", Help: "Bounds of the publish queue, by unit: records or bytes. Its use is in aviary_messaging_pending_records and aviary_messaging_pending_bytes.",
		}, []string{"unit"}),
		flightLimit: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "nightingale_in_flight_limit_bytes", Help: "The bound of nightingale_in_flight_bytes.",
		}),
	}
	reg.MustRegister(m.repeated, m.connections, m.queueLimit, m.flightLimit)
	for _, state := range []string{"joined", "answered"} {
		m.repeated.WithLabelValues(state)
	}
	return m
}

// limits exports the limits next to the metrics of their use.
func (m *opsMetrics) limits(cfg Config) {
	m.queueLimit.WithLabelValues("records").Set(float64(cfg.Profile.MaxPendingRecords))
	m.queueLimit.WithLabelValues("bytes").Set(float64(cfg.Profile.MaxPendingBytes))
	m.flightLimit.Set(float64(cfg.Limits.InFlightBytes))
}

// connState counts connections.
func (m *opsMetrics) connState(_ net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		m.connections.Inc()
	case http.StateClosed, http.StateHijacked:
		m.connections.Dec()
	case http.StateActive, http.StateIdle:
	}
}
