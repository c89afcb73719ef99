package sonic

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/sonic/proxy"
)

// TestEveryLimitReachesTheEndpoint: none is forgotten or mixed up.
func TestEveryLimitReachesTheEndpoint(t *testing.T) {
	t.Parallel()
	require.NoError(t, defaultLimits().Validate())
	l := defaultLimits()
	l.IdleTimeout = 7
	want := proxy.Limits{
		Clients: 10_000, BulkBytes: 512 << 20, QueryBytes: 1 << 30, OutputBytes: 1 << 30, OutputPause: 1 << 20, AuthBulkBytes: 16 << 10,
		AuthTimeout: 30e9, IdleTimeout: 7,
	}
	require.Equal(t, want, l.proxy())
	from, to := reflect.TypeFor[Limits](), reflect.TypeFor[proxy.Limits]()
	for i := range from.NumField() {
		_, found := to.FieldByName(from.Field(i).Name)
		assert.True(t, found, from.Field(i).Name)
	}
	l.BulkBytes, l.OutputBytes = config.KiB, config.KiB
	assert.EqualValues(t, 1<<10, l.proxy().AuthBulkBytes)
	assert.EqualValues(t, 1<<10, l.proxy().OutputPause)
}
