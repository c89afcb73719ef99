package outbox

import (
	"context"
	"time"

	"github.com/aviaryhq/aviary/pkg/backoff"
)

const (
	// readPause is the pause between reads of the stream, unless store waits for more entries.
	// Redis answers a blocking read at the next write: without a pause, each read could return a
	// single write.
	readPause = 2 * time.Millisecond
	// busyPause is the pause when writes are frequent, even if store waits. fullPause is the pause
	// when they are very frequent: a message costs the broker about as much as a hundred short
	// writes cost Redis.
	busyPause = 4 * time.Millisecond
	fullPause = 10 * time.Millisecond
	// busyRate and fullRate define frequent and very frequent, in bytes of effects per second. An
	// effect with a value of 64 bytes takes 128 bytes: 16,000 and 24,000 writes per second. At
	// 1,000 writes per second an effect waits only until the previous message is stored.
	busyRate = 2 << 20
	fullRate = 3 << 20
)

// pauseAfter returns the pause after a read or a message of that many bytes, by the rate of bytes
// in elapsed. It is 0 if effects are not frequent.
func pauseAfter(bytes int, elapsed time.Duration) time.Duration {
	switch rate := float64(bytes) / max(elapsed, busyPause).Seconds(); {
	case rate >= fullRate:
		return fullPause
	case rate >= busyRate:
		return busyPause
	default:
		return 0
	}
}

// awaitNextRead waits until the next read of the stream. bytes is the size of the last read,
// elapsed the time since the one before it.
func awaitNextRead(ctx context.Context, q *queue, bytes int, elapsed time.Duration) {
	long, hungry := readPause, q.takeWaits
	if busy := pauseAfter(bytes, elapsed); busy > 0 {
		long, hungry = busy, nil
	}
	timer := time.NewTimer(long)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-hungry:
	case <-ctx.Done():
	}
}

// awaitNextMessage waits until the next message is to be made of the held effects. While effects
// are frequent, that is the time of spacing after began, when the last message began. That message
// had bytes, and began elapsed after the one before. awaitNextMessage returns at once if the held
// effects fill a message: more effects would only wait, and with a single message per fullPause the
// held effects would grow past maxHeldBytes.
func awaitNextMessage(ctx context.Context, q *queue, began time.Time, bytes int, elapsed time.Duration) {
	left := time.Until(began.Add(pauseAfter(bytes, elapsed)))
	if left <= 0 || q.fillsMessage() {
		return
	}
	backoff.Sleep(ctx, left)
}
