package rabbitmq

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/connector"
)

func TestMetricsAreWellNamed(t *testing.T) {
	reg := prometheus.NewRegistry()
	newMetrics(connector.NewMetrics(reg).Part("orders", "source"))
	problems, err := testutil.GatherAndLint(reg)
	require.NoError(t, err)
	assert.Empty(t, problems)
}
