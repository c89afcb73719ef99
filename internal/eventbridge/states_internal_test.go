package eventbridge

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/eventbridge/delivery"
)

// The docs promise at most 2 KiB, whatever the target's error is.
func TestStatesAreBoundedInSize(t *testing.T) {
	for _, text := range []string{"<", "\x00", "\xff", "\u2028", "x"} {
		state, err := stateOf(delivery.Status{Delivering: true, Breaker: delivery.BreakerHalfOpen, ProbeAt: time.Now(), StandsBy: true, Unhealthy: strings.Repeat(text, 5000)})
		require.NoError(t, err)
		require.LessOrEqual(t, len(state), 2048, "%q", text)
	}
}
