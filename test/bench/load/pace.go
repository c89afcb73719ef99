package load

import (
	"context"
	"time"

	"golang.org/x/sys/unix"
)

// shortSleep is the last piece of a sleep, which uses nanosleep: Go's own timers fire up to a
// millisecond late.
const shortSleep = 2 * time.Millisecond

// sleepUntil returns at t, or when ctx ends.
func sleepUntil(ctx context.Context, t time.Time) {
	d := time.Until(t)
	if d > shortSleep {
		select {
		case <-time.After(d - shortSleep):
		case <-ctx.Done():
			return
		}
		d = time.Until(t)
	}
	if d > 0 {
		ts := unix.NsecToTimespec(int64(d))
		_ = unix.Nanosleep(&ts, nil) // a signal may end it early
	}
}
