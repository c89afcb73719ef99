package messaging

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/consume"
	inside "github.com/aviaryhq/aviary/pkg/messaging/internal/publish"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/read"
)

// Counters that alerts watch are there before they count anything: the first failure is a rise from
// 0, which rate() and increase() see.
func TestCountersAreThereFromTheStart(t *testing.T) {
	reg := prometheus.NewRegistry()
	consume.NewMetrics(reg).Of("s")
	inside.NewMetrics(reg).Of("p")
	read.NewMetrics(reg).Of("r")
	for name, reasons := range map[string]int{
		"aviary_messaging_failed_copies_total": 5, "aviary_messaging_resubscribes_total": 11, "aviary_messaging_producers_recreated_total": 9,
		"aviary_messaging_unreadable_messages_total": 3,
		"aviary_messaging_reader_resubscribes_total": 8, "aviary_messaging_handled_messages_total": 7, "aviary_messaging_published_records_total": 2,
	} {
		n, err := testutil.GatherAndCount(reg, name)
		require.NoError(t, err)
		assert.Equal(t, reasons, n, name)
	}
}

// The names and help texts are as Prometheus wants them (promtool check metrics).
func TestMetricsAreWellNamed(t *testing.T) {
	reg := prometheus.NewRegistry()
	consume.NewMetrics(reg).Of("s")
	inside.NewMetrics(reg).Of("p")
	read.NewMetrics(reg).Of("r")
	problems, err := testutil.GatherAndLint(reg)
	require.NoError(t, err)
	assert.Empty(t, problems)
}
