package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/demo/display"
)

// TestEverySignalIsAStop: the second one is only faster, and no further one leaves servers behind.
func TestEverySignalIsAStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		signals := make(chan os.Signal, 2)
		ctx, hurry := obey(signals, display.NewLines(&out))
		signals <- syscall.SIGHUP
		<-ctx.Done()
		require.NoError(t, hurry.Err())
		stopped := make(chan error)
		go func() {
			stopped <- bounded(hurry, func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		}()
		began := time.Now()
		signals <- syscall.SIGINT
		require.ErrorIs(t, <-stopped, context.Canceled)
		assert.Zero(t, time.Since(began), "not patience")
		signals <- syscall.SIGINT
		synctest.Wait()
		assert.Contains(t, out.String(), "hangup: stopping")
	})
}

// TestTheEndThatWasAskedForIsNoFailure, but what fails in the stop is one.
func TestTheEndThatWasAskedForIsNoFailure(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	d, watching := new(demo), fmt.Errorf("watching: %w", context.Canceled)
	require.ErrorIs(t, d.unasked(ctx, watching), context.Canceled, "nobody has asked")
	stop()
	require.NoError(t, d.unasked(ctx, watching))
	require.ErrorIs(t, d.unasked(ctx, errOther), errOther)
	require.ErrorIs(t, (&demo{smoke: true}).unasked(ctx, watching), context.Canceled)
}

var errOther = errors.New("another failure")
