package cluster

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// TestACallThatIsStoppedWarnsOfNothing: a stop in the middle of a start is nothing that is wrong.
func TestACallThatIsStoppedWarnsOfNothing(t *testing.T) {
	core, logs := observer.New(zap.DebugLevel)
	ctx, stop := context.WithCancel(t.Context())
	err := Insist(ctx, zap.New(core), func() error {
		stop()
		return ctx.Err()
	})
	require.ErrorIs(t, err, context.Canceled)
	require.Zero(t, logs.Len())

	ctx, stop = context.WithCancel(t.Context())
	defer stop()
	tries := 0
	require.NoError(t, Insist(ctx, zap.New(core), func() error {
		if tries++; tries == 1 {
			return errors.New("unavailable")
		}
		return nil
	}))
	require.Equal(t, 1, logs.FilterMessage("no answer about a topic yet, will keep trying").Len())
}
