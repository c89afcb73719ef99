package consume

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Counters that alerts watch are there before they count anything: the first failure is a rise from
// 0, which rate() and increase() see. Names and help texts are as promtool wants them.
func TestMetricsAreThereFromTheStart(t *testing.T) {
	reg := prometheus.NewRegistry()
	newMetrics(reg).of("x")
	for name, reasons := range map[string]int{
		"aviary_messaging_failed_copies_total":       5,
		"aviary_messaging_resubscribes_total":        11,
		"aviary_messaging_unreadable_messages_total": 3,
		"aviary_messaging_handled_messages_total":    8,
	} {
		n, err := testutil.GatherAndCount(reg, name)
		require.NoError(t, err)
		assert.Equal(t, reasons, n, name)
	}
	problems, err := testutil.GatherAndLint(reg)
	require.NoError(t, err)
	assert.Empty(t, problems)
}
