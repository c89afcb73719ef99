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
)

// TestEverySignalIsAStop: the second one is only faster, and no further one leaves servers behind.
func TestEverySignalIsAStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		signals := make(chan os.Signal, 2)
		ctx, hurry := obey(signals, &screen{out: &out})
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
		assert.Zero(t, time.Since(began), "not stopTimeout")
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
	require.ErrorIs(t, d.unasked(ctx, errGone), errGone)
	require.ErrorIs(t, (&demo{smoke: true}).unasked(ctx, watching), context.Canceled)
}

// TestScreenThatIsGone: a demo that nobody sees, behind "| head" or on a terminal that was closed, ends.
func TestScreenThatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &screen{out: gone{}}
		s.status(func() string { return "1/s" })
		require.ErrorIs(t, s.refresh(t.Context()), errGone)
	})
}

var errGone = errors.New("gone")

type gone struct{}

func (gone) Write([]byte) (int, error) { return 0, errGone }

// TestNoFlowDrownsAnother: a flow with many samples shows one a second, and leaves the room of others alone.
func TestNoFlowDrownsAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		s := &screen{out: &out}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- s.refresh(ctx) }()
		for i := range 10_000 { // ten seconds
			s.sample("fast", func() string { return "a sample" })
			if i%2000 == 0 {
				s.sample("slow", func() string { return "another" })
			}
			time.Sleep(time.Millisecond)
		}
		stop()
		require.ErrorIs(t, <-ended, context.Canceled)
		assert.InDelta(t, 11, bytes.Count(out.Bytes(), []byte("fast")), 1)
		assert.Equal(t, 5, bytes.Count(out.Bytes(), []byte("slow")))
	})
}
