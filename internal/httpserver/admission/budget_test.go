package admission

import (
	"net/http"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/httpserver/refusal"
)

func statusOf(t *testing.T, err error) int {
	t.Helper()
	refused := (*refusal.Error)(nil)
	require.ErrorAs(t, err, &refused)
	return refused.Status
}

// TestTenantsHaveAShareOfTheBytesInFlight: one of them cannot deny the others.
func TestTenantsHaveAShareOfTheBytesInFlight(t *testing.T) {
	gauge := prometheus.NewGauge(prometheus.GaugeOpts{})
	b := NewBudget(100, .75, gauge)
	first, second, other := b.Hold("a"), b.Hold("a"), b.Hold("b")
	require.NoError(t, first.Set(70))
	err := second.Set(6)
	assert.Equal(t, http.StatusServiceUnavailable, statusOf(t, err))
	assert.Contains(t, err.Error(), "the tenant has too many bytes in flight, at most 75")
	require.NoError(t, second.Grow(5))
	require.NoError(t, other.Set(25))
	assert.Equal(t, http.StatusServiceUnavailable, statusOf(t, other.Set(26)))
	assert.Equal(t, http.StatusRequestEntityTooLarge, statusOf(t, other.Set(101)), "it would never fit")
	assert.Equal(t, int64(100), b.Used())
	assert.InDelta(t, 100, testutil.ToFloat64(gauge), 0)

	outlives := first.Transfer(80)
	assert.Equal(t, int64(110), b.Used(), "what has begun goes on")
	first.Release()
	assert.Equal(t, int64(110), b.Used())
	outlives.Release()
	second.Release()
	require.NoError(t, other.Set(100), "one request may be as large as any")
	other.Shrink(30)
	assert.Equal(t, int64(70), other.Bytes())
	other.Release()
	assert.Zero(t, b.Used())
	assert.Empty(t, b.tenants, "names cost nothing when nothing is held")
}
