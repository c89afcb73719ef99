package connector_test

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"

	"github.com/aviaryhq/aviary/internal/connector"
)

func TestMetricsOfRoutesAndPartsAreForgotten(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := connector.NewMetrics(reg)
	count := func(route, role, system string) {
		p := m.Part(route, role, system)
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
	m.ForgetOthers("a", "sink", "y")
	assert.Equal(t, 2*(1+2)+2*2-1, series(), "the route's own counter of x stays")
	m.ForgetOthers("b", "sink", "")
	assert.Equal(t, 2*(1+2)+2*2-3, series())
	m.Forget("a")
	m.Forget("b")
	assert.Zero(t, series())
}
