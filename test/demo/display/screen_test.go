package display

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestScreenThatIsGone: a demo that nobody sees, behind "| head" or on a terminal that was closed,
// ends.
func TestScreenThatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(gone{})
		s.Status("flow", func() Figures { return Figures{} })
		require.ErrorIs(t, s.Refresh(t.Context()), errGone)
	})
}

var errGone = errors.New("gone")

type gone struct{}

func (gone) Write([]byte) (int, error) { return 0, errGone }

// TestNoFlowDrownsAnother: a flow with many samples shows one a second, and leaves the room of
// others alone.
func TestNoFlowDrownsAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		s := New(&out)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- s.Refresh(ctx) }()
		for i := range 10_000 { // ten seconds
			s.Sample("fast", func() string { return "a sample" })
			if i%2000 == 0 {
				s.Sample("slow", func() string { return "another" })
			}
			time.Sleep(time.Millisecond)
		}
		stop()
		require.ErrorIs(t, <-ended, context.Canceled)
		assert.InDelta(t, 11, bytes.Count(out.Bytes(), []byte("fast")), 1)
		assert.Equal(t, 5, bytes.Count(out.Bytes(), []byte("slow")))
	})
}
