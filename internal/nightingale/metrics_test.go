package nightingale

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/nightingale/publish"
)

// Counters that alerts watch are there before they count anything, and all names and help texts are
// as Prometheus wants them (promtool check metrics).
func TestMetricsAreWellNamedAndThereFromTheStart(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := newMetrics(reg, DefaultConfig())
	publish.NewMetrics(reg)
	for name, least := range map[string]int{
		"nightingale_requests_total": 9, "nightingale_requests_refused_total": 14, "nightingale_samples_total": 15,
		"nightingale_samples_filtered_total": 3, "nightingale_metadata_total": 2, "nightingale_bytes_total": 3,
		"nightingale_repeated_requests_total": 2, "nightingale_dropped_messages_total": 1,
	} {
		n, err := testutil.GatherAndCount(reg, name)
		require.NoError(t, err)
		assert.GreaterOrEqual(t, n, least, name)
	}
	m.rejected.WithLabelValues("empty_label_name")
	m.stages.WithLabelValues("read")
	problems, err := testutil.GatherAndLint(reg)
	require.NoError(t, err)
	assert.Empty(t, problems)
}
