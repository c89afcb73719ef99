package outbox

import (
	"context"
	"time"
)

const (
	// readPause is how long the stream is not read while nobody waits for what it holds. Redis answers a read that waits at the next write: without a
	// pause each of a zone's writes could be read alone.
	readPause = 2 * time.Millisecond
	// busyPause is how long it is not read when writes are frequent, also when somebody waits, and fullPause when they are very frequent: a
	// message costs the broker about as much as a hundred short writes cost Redis.
	busyPause = 4 * time.Millisecond
	fullPause = 10 * time.Millisecond
	// busyRate and fullRate, in bytes of effects a second, tell that. An effect of 64 bytes takes 128: 16,000 and 24,000 writes a second. At 1,000
	// writes a second nothing waits longer than the message before it.
	busyRate = 2 << 20
	fullRate = 3 << 20
)

// spacing is the time between what brought bytes and what comes next, by the rate of bytes in elapsed; 0 where effects are not frequent.
func spacing(bytes int, elapsed time.Duration) time.Duration {
	switch rate := float64(bytes) / max(elapsed, busyPause).Seconds(); {
	case rate >= fullRate:
		return fullPause
	case rate >= busyRate:
		return busyPause
	default:
		return 0
	}
}

// pause returns when the stream is to be read again. bytes is what the last read brought, elapsed the time since the one before.
func pause(ctx context.Context, q *queue, bytes int, elapsed time.Duration) {
	long, hungry := readPause, q.hungry
	if busy := spacing(bytes, elapsed); busy > 0 {
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

// space returns when another message is to be made of what is held in memory: while effects are frequent, a time after the last one began, which had
// bytes and began elapsed after the one before. It returns at once when as much is held as a message takes: more would only wait, and with one message
// in each fullPause what is held would grow past heldMost.
func space(ctx context.Context, q *queue, began time.Time, bytes int, elapsed time.Duration) {
	left := time.Until(began.Add(spacing(bytes, elapsed)))
	if left <= 0 || q.ample() {
		return
	}
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
