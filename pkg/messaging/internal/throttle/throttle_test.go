package throttle_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/throttle"
)

func TestOneLinePassesPerInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lines throttle.Throttle
		suppressed, ok := lines.Allow()
		require.True(t, ok)
		require.Zero(t, suppressed)
		for range 3 {
			_, ok = lines.Allow()
			require.False(t, ok)
		}
		time.Sleep(time.Second)
		suppressed, ok = lines.Allow()
		require.True(t, ok)
		require.Equal(t, 3, suppressed)
	})
}
