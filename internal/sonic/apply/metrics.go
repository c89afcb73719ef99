package apply

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/aviaryhq/aviary/internal/sonic/redislib"
)

// Metrics are the metrics of all appliers.
type Metrics struct {
	effects    *prometheus.CounterVec
	duplicates *prometheus.CounterVec
	foreign    *prometheus.CounterVec
	gaps       *prometheus.CounterVec
	delay      *prometheus.HistogramVec
	ahead      *prometheus.GaugeVec
}

// NewMetrics creates and registers the metrics.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		effects: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sonic_applied_effects_total",
			Help: "Effects of other zones by outcome: applied, lost to a newer write, dead (the key had expired), diverged (the key was of another type, or in a database that a Redis Cluster does not have).",
		}, []string{"origin", "outcome"}),
		duplicates: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sonic_duplicate_messages_total", Help: "Messages of other zones that Sonic skipped because it had applied them before.",
		}, []string{"origin"}),
		foreign: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sonic_foreign_messages_total", Help: "Messages in the topic of another zone that Sonic skipped because no Sonic wrote them.",
		}, []string{"origin"}),
		gaps: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sonic_gaps_total", Help: "How often effects of another zone were missing before a message. Each place counts once.",
		}, []string{"origin"}),
		delay: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "sonic_apply_delay_seconds", Help: "Age of a message's last effect when it was applied, by the clocks of both zones.",
			Buckets: []float64{.001, .002, .003, .004, .005, .0075, .01, .015, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300},
		}, []string{"origin"}),
		ahead: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "sonic_clock_ahead_seconds", Help: "Lower bound of the time by which another zone's clock is ahead of this zone's clock.",
		}, []string{"origin"}),
	}
	reg.MustRegister(m.effects, m.duplicates, m.foreign, m.gaps, m.delay, m.ahead)
	return m
}

// initOrigin creates the counters of a zone with the value 0, so that alerts see the first
// increment.
func (m *Metrics) initOrigin(origin string) {
	m.duplicates.WithLabelValues(origin)
	m.foreign.WithLabelValues(origin)
	m.gaps.WithLabelValues(origin)
	for _, outcome := range []string{"applied", "lost", "dead", "diverged"} {
		m.effects.WithLabelValues(origin, outcome)
	}
}

// countOutcomes counts the outcomes of a message's effects.
func (m *Metrics) countOutcomes(origin string, r redislib.Result) {
	if r.Status == redislib.Duplicate {
		m.duplicates.WithLabelValues(origin).Inc()
		return
	}
	for outcome, n := range map[string]int64{"applied": r.Applied, "lost": r.Lost, "dead": r.Dead, "diverged": r.Diverged} {
		if n > 0 {
			m.effects.WithLabelValues(origin, outcome).Add(float64(n))
		}
	}
}
