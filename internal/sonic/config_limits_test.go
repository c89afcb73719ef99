package sonic

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/proxy"
)

// TestEveryLimitReachesTheEndpoint: none is forgotten or mixed up.
func TestEveryLimitReachesTheEndpoint(t *testing.T) {
	t.Parallel()
	var l Limits
	from := reflect.ValueOf(&l).Elem()
	for i := range from.NumField() {
		from.Field(i).SetInt(int64(i) + 1)
	}
	to := reflect.ValueOf(l.proxy())
	require.Equal(t, from.NumField(), to.NumField())
	for i := range from.NumField() {
		name := from.Type().Field(i).Name
		if name == "OutputPauseBytes" {
			name = "OutputPause"
		}
		field := to.FieldByName(name)
		require.True(t, field.IsValid(), name)
		assert.Equal(t, int64(i)+1, field.Int(), name)
	}
}

// TestDefaultsOfLimitsAreValid and those that the proxy has by itself.
func TestDefaultsOfLimitsAreValid(t *testing.T) {
	t.Parallel()
	require.NoError(t, defaultLimits().Validate())
	require.Equal(t, proxy.Limits{
		Clients: 10_000, BulkBytes: 512 << 20, Arguments: 1 << 20, QueryBytes: 1 << 30, OutputBytes: 1 << 30, OutputPause: 1 << 20,
		Pipeline: 1024, AuthBulkBytes: 16 << 10, AuthArguments: 10, AuthTimeout: 30e9,
	}, defaultLimits().proxy(), "as the proxy's documentation has them")
}
