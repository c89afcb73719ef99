package connector_test

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"

	"github.com/aviaryhq/aviary/internal/connector"
)

func TestMetricsOfRoutesAreForgotten(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := connector.NewMetrics(reg)
	count := func(route, role, system string) {
		p := m.Part(route, role)
		p.Counter("gaps_of_"+system, "h", "topic").WithLabelValues("t").Inc()
		p.Gauge("up_of_"+system, "h", "role").WithLabelValues().Set(1)
	}
	series := func() int {
		n, err := testutil.GatherAndCount(reg)
		assert.NoError(t, err)
		return n
	}
	for _, route := range []string{"a", "b"} {
		count(route, "source", "x")
		count(route, "sink", "x")
		count(route, "sink", "y")
	}
	assert.Equal(t, 2*(1+2)+2*2, series())
	m.Forget("a")
	assert.Equal(t, 1+2+2, series(), "those of b stay")
	m.Forget("b")
	assert.Zero(t, series())
}
