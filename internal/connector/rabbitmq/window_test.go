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
		w := newWindow(10)
		acquired := make(chan error, 1)
		require.NoError(t, w.acquire(t.Context(), 4))
		go func() { acquired <- w.acquire(t.Context(), 1000) }()
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
		require.NoError(t, w.acquire(t.Context(), 10))
	})
}

func TestWindowStopsWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWindow(10)
		require.NoError(t, w.acquire(t.Context(), 10))
		ctx, cancel := context.WithCancel(t.Context())
		canceled := make(chan error, 1)
		go func() { canceled <- w.acquire(ctx, 1) }()
		synctest.Wait()
		assert.Empty(t, canceled)
		cancel()
		require.ErrorIs(t, <-canceled, context.Canceled)
		w.waitEmpty(ctx) // returns: ctx has ended
		w.release(10)
		w.waitEmpty(t.Context())
	})
}
