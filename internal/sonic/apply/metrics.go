package apply

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/aviaryhq/aviary/internal/sonic/lane"
)

// Metrics are those of all appliers.
type Metrics struct {
	effects    *prometheus.CounterVec
	duplicates *prometheus.CounterVec
	gaps       *prometheus.CounterVec
	delay      *prometheus.HistogramVec
	ahead      *prometheus.GaugeVec
}

// NewMetrics registers them.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		effects: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sonic_applied_effects_total",
			Help: "Effects of other zones by what became of them: applied, lost to a newer write, dead (the key had expired), diverged (the key was of another type).",
		}, []string{"origin", "outcome"}),
		duplicates: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sonic_duplicate_messages_total", Help: "Messages of other zones that had been applied before and were dropped.",
		}, []string{"origin"}),
		gaps: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sonic_gaps_total", Help: "Times that effects of another zone were missing before a message, once for each place.",
		}, []string{"origin"}),
		delay: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "sonic_apply_delay_seconds", Help: "Age of a message's last effect when it was applied, by the clocks of both zones.",
			Buckets: []float64{.001, .002, .003, .004, .005, .0075, .01, .015, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300},
		}, []string{"origin"}),
		ahead: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "sonic_clock_ahead_seconds", Help: "How far another zone's clock is ahead of this one's, at least.",
		}, []string{"origin"}),
	}
	reg.MustRegister(m.effects, m.duplicates, m.gaps, m.delay, m.ahead)
	return m
}

// from has the counters of a zone be there from the start, so that an alert sees the first one.
func (m *Metrics) from(origin string) {
	m.duplicates.WithLabelValues(origin)
	m.gaps.WithLabelValues(origin)
	for _, outcome := range []string{"applied", "lost", "dead", "diverged"} {
		m.effects.WithLabelValues(origin, outcome)
	}
}

// applied counts what became of a message.
func (m *Metrics) applied(origin string, r lane.Result) {
	if r.Status == lane.Duplicate {
		m.duplicates.WithLabelValues(origin).Inc()
		return
	}
	for outcome, n := range map[string]int64{"applied": r.Applied, "lost": r.Lost, "dead": r.Dead, "diverged": r.Diverged} {
		if n > 0 {
			m.effects.WithLabelValues(origin, outcome).Add(float64(n))
		}
	}
}
