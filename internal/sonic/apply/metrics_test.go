package apply

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestMetricsAreWellNamedAndThereFromTheStart(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := NewMetrics(reg)
	m.initOrigin("b")
	for name, want := range map[string]int{"sonic_gaps_total": 1, "sonic_duplicate_messages_total": 1, "sonic_applied_effects_total": 4} {
		n, err := testutil.GatherAndCount(reg, name)
		require.NoError(t, err)
		assert.Equal(t, want, n, name)
	}
	m.delay.WithLabelValues("b")
	m.ahead.WithLabelValues("b")
	problems, err := testutil.GatherAndLint(reg)
	require.NoError(t, err)
	assert.Empty(t, problems)
}
