package proxy

import (
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/aviaryhq/aviary/internal/sonic/command"
)

// metrics are those of the endpoint. Those of every command are plain counters of the loops, which a scrape adds up.
type metrics struct {
	rejected    prometheus.Counter
	slowClients prometheus.Counter
	unknown     prometheus.Counter // outcomes
	connected   prometheus.Gauge
	commands    [command.Classes]atomic.Uint64
	latency     latency
}

func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		rejected: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sonic_clients_rejected_total", Help: "Clients that were refused: there were too many, or the handshake of TLS failed.",
		}),
		slowClients: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sonic_clients_slow_total", Help: "Clients that were disconnected because they did not read their replies.",
		}),
		unknown: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sonic_commands_unknown_outcome_total",
			Help: "Commands that were under way when the connection to Redis was lost.",
		}),
		connected: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "sonic_redis_connected", Help: "1 when there is a connection to Redis.",
		}),
	}
	reg.MustRegister(m.rejected, m.slowClients, m.unknown, m.connected, collector{m})
	return m
}

// collector gives what loops count themselves.
type collector struct{ m *metrics }

func commandsDesc() *prometheus.Desc {
	return prometheus.NewDesc("sonic_commands_total", "Commands of clients by class.", []string{"class"}, nil)
}

func latencyDesc() *prometheus.Desc {
	return prometheus.NewDesc("sonic_local_duration_seconds",
		"Time from the moment a command was read to the moment its reply was: a sample, one command a round.", nil, nil)
}

// Describe is prometheus.Collector's.
func (c collector) Describe(to chan<- *prometheus.Desc) {
	to <- commandsDesc()
	to <- latencyDesc()
}

// Collect is prometheus.Collector's.
func (c collector) Collect(to chan<- prometheus.Metric) {
	for class := range command.Classes {
		n := c.m.commands[class].Load()
		to <- prometheus.MustNewConstMetric(commandsDesc(), prometheus.CounterValue, float64(n), class.String())
	}
	to <- c.m.latency.metric()
}

// latency counts in powers of two of microseconds: up to 1 us, 2 us, .. about 34 s.
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
