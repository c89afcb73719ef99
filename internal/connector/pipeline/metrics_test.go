package pipeline

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestMetricsAreWellNamed(t *testing.T) {
	reg := prometheus.NewRegistry()
	NewMetrics(reg).Route("orders").refused.WithLabelValues("too_large")
	problems, err := testutil.GatherAndLint(reg)
	require.NoError(t, err)
	assert.Empty(t, problems)
}
