package outbox

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/message"
)

// TestPauseOfReading: the stream is read again when somebody waits for more, or after a time; when writes are frequent only after
// a time.
func TestPauseOfReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		q := newQueue()
		begin := time.Now()
		pause(ctx, q, 100)
		require.Equal(t, readPause, time.Since(begin))

		go func() { _, _ = q.take(ctx, false) }()
		synctest.Wait() // it waits
		begin = time.Now()
		pause(ctx, q, 100)
		require.Zero(t, time.Since(begin))

		require.NoError(t, q.put(ctx, []message.Entry{{Effects: "x"}}))
		synctest.Wait() // it has taken that
		go func() { _, _ = q.take(ctx, false) }()
		synctest.Wait()
		begin = time.Now()
		pause(ctx, q, busyBytes)
		require.Equal(t, busyPause, time.Since(begin))

		cancel()
		begin = time.Now()
		pause(ctx, q, busyBytes)
		require.Zero(t, time.Since(begin))
	})
}
