package rabbitmq

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestWindowAdmitsALargerMessageAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newByteWindow(10)
		acquired := make(chan error, 1)
		require.NoError(t, w.acquire(t.Context(), t.Context(), 4))
		go func() { acquired <- w.acquire(t.Context(), t.Context(), 1000) }()
		synctest.Wait()
		assert.Empty(t, acquired)
		w.release(4)
		require.NoError(t, <-acquired)
		empty := make(chan struct{})
		go func() { w.waitEmpty(t.Context()); close(empty) }()
		synctest.Wait()
		select {
		case <-empty:
			t.Error("1000 bytes are in use")
		default:
		}
		w.release(1000)
		<-empty
		require.NoError(t, w.acquire(t.Context(), t.Context(), 10))
	})
}

func TestWindowStopsWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newByteWindow(10)
		require.NoError(t, w.acquire(t.Context(), t.Context(), 10))
		running, stop := context.WithCancel(t.Context())
		ctx, cancel := context.WithCancel(t.Context())
		stopped, canceled := make(chan error, 1), make(chan error, 1)
		go func() { stopped <- w.acquire(t.Context(), running, 1) }()
		go func() { canceled <- w.acquire(ctx, t.Context(), 1) }()
		synctest.Wait()
		assert.Empty(t, stopped)
		assert.Empty(t, canceled)
		stop()
		require.ErrorIs(t, <-stopped, errStopped)
		cancel()
		require.ErrorIs(t, <-canceled, context.Canceled)
		w.waitEmpty(ctx) // returns: ctx has ended
		w.release(10)
		w.waitEmpty(t.Context())
	})
}
