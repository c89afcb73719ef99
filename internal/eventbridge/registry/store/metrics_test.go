package store_test

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/store"
)

func TestMetricsAreWellNamedAndThereFromTheStart(t *testing.T) {
	reg := prometheus.NewRegistry()
	store.NewMetrics(reg)
	n, err := testutil.GatherAndCount(reg, "eventbridge_registry_changes_total")
	require.NoError(t, err)
	assert.Equal(t, 7, n)
	problems, err := testutil.GatherAndLint(reg)
	require.NoError(t, err)
	assert.Empty(t, problems)
}
