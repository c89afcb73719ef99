package clientquirks_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/clientquirks"
)

func TestResultOfACallThatWasGivenUpIsUndone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := errors.New("gone")
		ctx, cancel := context.WithCancelCause(t.Context())
		hangs, undone := make(chan struct{}), make(chan int, 1)
		call := func() (int, error) { <-hangs; return 7, nil }
		go func() {
			synctest.Wait()
			cancel(gone)
		}()
		_, err := clientquirks.CallUntil(ctx, call, func(v int) { undone <- v })
		require.ErrorIs(t, err, gone)
		require.False(t, clientquirks.Within(ctx, func() { <-hangs }))
		close(hangs)
		require.Equal(t, 7, <-undone)
		v, err := clientquirks.CallUntil(t.Context(), call, func(v int) { undone <- v })
		require.NoError(t, err)
		require.Equal(t, 7, v)
		require.Empty(t, undone)
	})
}

func TestContextEndsWithEither(t *testing.T) {
	gone := errors.New("gone")
	life, end := context.WithCancelCause(t.Context())
	ctx, done := clientquirks.EitherEnds(t.Context(), life)
	defer done()
	require.NoError(t, ctx.Err())
	end(gone)
	<-ctx.Done()
	require.ErrorIs(t, context.Cause(ctx), gone)
	require.Error(t, clientquirks.Canceled().Err())
}
