package delivery

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/storetest"
)

func TestMetricsAreWellNamedAndThereFromTheStart(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := newMetrics(reg, &Processor{source: &registry{Store: storetest.NewStore(storetest.Snapshot(t, 0, nil, nil))}, instances: &fleet{}})
	s := newSubscriber("s", model.OrderNone)
	m.of(&s)
	n, err := testutil.GatherAndCount(reg, "eventbridge_deliveries_total")
	require.NoError(t, err)
	assert.Len(t, outcomes(), n, "each outcome is counted from 0 on")
	problems, err := testutil.GatherAndLint(reg)
	require.NoError(t, err)
	assert.Empty(t, problems)
}
