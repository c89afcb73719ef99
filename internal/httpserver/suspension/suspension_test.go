package suspension_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/httpserver/refusal"
	"github.com/aviaryhq/aviary/internal/httpserver/suspension"
)

func TestRequestsAreRefusedUntilTheQueueIsAcknowledged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := suspension.New(func() error { return errors.New("connection refused") })
		ctx, cancel := context.WithCancel(t.Context())
		acknowledged := make(chan struct{})
		flushes := 0
		ended := make(chan error, 1)
		go func() {
			ended <- s.Run(ctx, zap.NewNop(), func(context.Context) error {
				flushes++
				<-acknowledged
				return nil
			})
		}()
		require.NoError(t, s.Refusal())

		s.NoteLate()
		s.NoteLate() // another request of the same time
		synctest.Wait()
		var refused *refusal.Error
		require.ErrorAs(t, s.Refusal(), &refused)
		require.Equal(t, "pulsar_unavailable", refused.Reason)
		require.ErrorContains(t, s.Err(), "connection refused")

		close(acknowledged)
		synctest.Wait()
		require.NoError(t, s.Err())
		require.Equal(t, 1, flushes)

		cancel()
		require.NoError(t, <-ended)
	})
}

func TestACauseThatBeganElsewhereIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := suspension.New(nil)
		lost := errors.New("the topic has another owner")
		s.Begin(lost)
		s.NoteLate()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			ended <- s.Run(ctx, zap.NewNop(), func(context.Context) error { return errors.New("flushed") })
		}()
		synctest.Wait()
		require.ErrorIs(t, s.Err(), lost)
		s.End()
		require.NoError(t, s.Err())
		cancel()
		require.NoError(t, <-ended)
	})
}

func TestRunEndsWithAFailedFlush(t *testing.T) {
	s := suspension.New(nil)
	s.NoteLate()
	closed := errors.New("closed")
	require.ErrorIs(t, s.Run(t.Context(), zap.NewNop(), func(context.Context) error { return closed }), closed)
	require.Error(t, s.Err())
}
