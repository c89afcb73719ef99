package outbox

import (
	"context"
	"time"
)

const (
	// readPause is how long the stream is not read while nobody waits for what it holds. Redis answers a read that waits at the next write: without a
	// pause each of a zone's writes could be read alone.
	readPause = 2 * time.Millisecond
	// busyPause is how long it is not read when writes are frequent, also when somebody waits: a message costs the broker about as much as
	// a hundred short writes cost Redis.
	busyPause = 4 * time.Millisecond
	// busyBytes of effects in one read tell that writes are frequent: 64 a busyPause, of 64 bytes each. At 1,000 writes a second there are
	// no more than 4, and nothing waits longer than the message before it.
	busyBytes = 8 << 10
)

// pause returns when the stream is to be read again. bytes is what the last read brought.
func pause(ctx context.Context, q *queue, bytes int) {
	long, hungry := readPause, q.hungry
	if bytes >= busyBytes {
		long, hungry = busyPause, nil
	}
	timer := time.NewTimer(long)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-hungry:
	case <-ctx.Done():
	}
}
