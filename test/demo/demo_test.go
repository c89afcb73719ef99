package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
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
		ctx, hurry := obey(signals, display.New(&out))
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

// TestAFailureIsOneLine on stderr, and the exit status is 1.
func TestAFailureIsOneLine(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), fakeVariable+"=failing demo")
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	assert.Equal(t, 1, exit.ExitCode())
	assert.Equal(t, "demo: a failure of two lines\n", string(out))
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
