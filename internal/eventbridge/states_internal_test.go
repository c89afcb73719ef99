package eventbridge

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/eventbridge/delivery"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/instances"
)

// TestEachStateCanBeTold: one that was too long was not told, and the one before stood as the
// present one. A target's error is in it, whatever that is.
func TestEachStateCanBeTold(t *testing.T) {
	for _, text := range []string{"<", "\x00", "\xff", "\u2028", "x"} {
		state, err := stateOf(delivery.Status{Delivering: true, Breaker: delivery.BreakerHalfOpen, ProbeAt: time.Now(), StandsBy: true, Unhealthy: strings.Repeat(text, 5000)})
		require.NoError(t, err)
		require.LessOrEqual(t, len(state), instances.MaxStateBytes, "%q", text)
	}
}
