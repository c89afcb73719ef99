package outbox

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/wire"
)

// TestPauseOfReading: the stream is read again when somebody waits for more, or after a time; when
// writes are frequent only after a time.
func TestPauseOfReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		q := newQueue()
		begin := time.Now()
		awaitNextRead(ctx, q, 100, busyPause)
		require.Equal(t, readPause, time.Since(begin))

		go func() { _, _ = q.take(ctx, false) }()
		synctest.Wait() // it waits
		begin = time.Now()
		awaitNextRead(ctx, q, 100, busyPause)
		require.Zero(t, time.Since(begin))

		require.NoError(t, q.put(ctx, []wire.Entry{{Effects: "x"}}))
		synctest.Wait() // it has taken that
		go func() { _, _ = q.take(ctx, false) }()
		synctest.Wait()
		begin = time.Now()
		awaitNextRead(ctx, q, 9<<10, busyPause)
		require.Equal(t, busyPause, time.Since(begin))
		begin = time.Now()
		awaitNextRead(ctx, q, 16<<10, busyPause)
		require.Equal(t, fullPause, time.Since(begin))

		cancel()
		begin = time.Now()
		awaitNextRead(ctx, q, 16<<10, busyPause)
		require.Zero(t, time.Since(begin))
	})
}

// TestSpacing: the longer pause brings more at once, and must not be taken for a higher rate.
func TestSpacing(t *testing.T) {
	t.Parallel()
	const write = 128 // bytes of a short one
	for rate, want := range map[int]time.Duration{
		1_000: 0, 10_000: 0, 15_000: 0, 18_000: busyPause, 22_000: busyPause, 26_000: fullPause, 100_000: fullPause,
	} {
		for _, elapsed := range []time.Duration{busyPause, fullPause, 30 * time.Millisecond} {
			bytes := int(float64(rate*write) * elapsed.Seconds())
			require.Equal(t, want, pauseAfter(bytes, elapsed), "%d writes a second, %s", rate, elapsed)
		}
	}
	require.Zero(t, pauseAfter(4<<10, time.Microsecond), "a few writes at once are no rate")
	require.Zero(t, pauseAfter(100, 0))
}

// TestSpaceOfMessages: with Off messages keep their distance while effects are frequent, counted
// from their beginning.
func TestSpaceOfMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue()
		began := time.Now()
		time.Sleep(3 * time.Millisecond)
		awaitNextMessage(t.Context(), q, began, 100, fullPause)
		require.Equal(t, 3*time.Millisecond, time.Since(began))
		awaitNextMessage(t.Context(), q, began, 64<<10, fullPause)
		require.Equal(t, fullPause, time.Since(began))
		awaitNextMessage(t.Context(), q, began, 64<<10, fullPause)
		require.Equal(t, fullPause, time.Since(began))
	})
}

// TestWholeMessagesKeepNoDistance: else no more than one message's worth would be stored in each
// fullPause, 25 MiB or 51,200 effects a second, and Redis would drop what comes beyond that,
// however fast Pulsar is.
func TestWholeMessagesKeepNoDistance(t *testing.T) {
	for name, most := range map[string]wire.Entry{
		"many":  {Effects: strings.Repeat("x", 90)},
		"large": {Effects: strings.Repeat("x", wire.PackBytes/8)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const messages = 8
				q := newQueue()
				began := time.Now()
				q.add(slices.Repeat([]wire.Entry{most}, messages*wire.PackEntries))
				for range messages - 1 {
					taken, err := q.take(t.Context(), false)
					require.NoError(t, err)
					awaitNextMessage(t.Context(), q, time.Now(), sizeOf(taken), fullPause)
				}
				require.Zero(t, time.Since(began))
			})
		})
	}
}
