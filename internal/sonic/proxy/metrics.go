package proxy

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/aviaryhq/aviary/internal/sonic/command"
)

// metrics holds the metrics of the proxy.
type metrics struct {
	rejected       prometheus.Counter
	slowClients    prometheus.Counter
	unknownOutcome prometheus.Counter // commands with an unknown outcome
	connected      prometheus.Gauge
	commands       [command.Classes]prometheus.Counter
	latency        prometheus.Histogram
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		rejected: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sonic_clients_rejected_total", Help: "Clients that were refused because limits.clients was reached or the TLS handshake failed.",
		}),
		slowClients: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sonic_clients_slow_total",
			Help: "Clients that were disconnected because they did not read their replies, or because one reply exceeded limits.output_bytes.",
		}),
		unknownOutcome: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sonic_commands_unknown_outcome_total",
			Help: "Commands whose clients got an error because the connection to Redis was lost: before the reply, or before Pulsar had stored the effect.",
		}),
		connected: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "sonic_redis_connected", Help: "1 while there is a connection to Redis.",
		}),
		latency: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "sonic_command_duration_seconds",
			Help:    "Time from reading a command to reading its reply. Sampled: one command per round of the event loop.",
			Buckets: prometheus.ExponentialBuckets(1e-6, 2, 25),
		}),
	}
	commands := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "sonic_commands_total", Help: "Commands of clients by class."}, []string{"class"})
	for class := range command.Classes {
		m.commands[class] = commands.WithLabelValues(class.String())
	}
	reg.MustRegister(m.rejected, m.slowClients, m.unknownOutcome, m.connected, m.latency, commands)
	return m
}
