package proxy

import (
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/aviaryhq/aviary/internal/sonic/command"
)

// metrics holds the metrics of the proxy. Metrics of every command are atomic counters, which a
// scrape reads.
type metrics struct {
	rejected       prometheus.Counter
	slowClients    prometheus.Counter
	unknownOutcome prometheus.Counter // commands with an unknown outcome
	connected      prometheus.Gauge
	commands       [command.Classes]atomic.Uint64
	latency        latency
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		rejected: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sonic_clients_rejected_total", Help: "Clients that were refused: there were too many, or the handshake of TLS failed.",
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
			Name: "sonic_redis_connected", Help: "1 when there is a connection to Redis.",
		}),
	}
	reg.MustRegister(m.rejected, m.slowClients, m.unknownOutcome, m.connected, collector{m})
	return m
}

// collector exports the atomic counters.
type collector struct{ m *metrics }

func commandsDesc() *prometheus.Desc {
	return prometheus.NewDesc("sonic_commands_total", "Commands of clients by class.", []string{"class"}, nil)
}

func latencyDesc() *prometheus.Desc {
	return prometheus.NewDesc("sonic_command_duration_seconds",
		"Time from the moment a command was read to the moment its reply was: a sample, one command a round.", nil, nil)
}

// Describe implements prometheus.Collector.
func (c collector) Describe(to chan<- *prometheus.Desc) {
	to <- commandsDesc()
	to <- latencyDesc()
}

// Collect implements prometheus.Collector.
func (c collector) Collect(to chan<- prometheus.Metric) {
	for class := range command.Classes {
		n := c.m.commands[class].Load()
		to <- prometheus.MustNewConstMetric(commandsDesc(), prometheus.CounterValue, float64(n), class.String())
	}
	to <- c.m.latency.metric()
}

// latency is a histogram with buckets up to 1 us, 2 us, 4 us and so on, up to about 17 s, and one
// for the rest.
type latency struct {
	buckets [26]atomic.Uint64
	sum     atomic.Int64 // nanoseconds
}

func (h *latency) observe(d time.Duration) {
	i := bits.Len64(uint64(max(0, (d-1)/time.Microsecond)))
	h.buckets[min(i, len(h.buckets)-1)].Add(1)
	h.sum.Add(int64(d))
}

func (h *latency) metric() prometheus.Metric {
	var count uint64
	buckets := make(map[float64]uint64, len(h.buckets))
	for i := range h.buckets {
		count += h.buckets[i].Load()
		if i < len(h.buckets)-1 {
			buckets[float64(uint64(1)<<i)/1e6] = count
		}
	}
	return prometheus.MustNewConstHistogram(latencyDesc(), count, time.Duration(h.sum.Load()).Seconds(), buckets)
}
