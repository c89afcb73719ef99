package rabbitmq

import (
	"context"
	"math/rand/v2"
	"time"
)

const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 5 * time.Second
	// steady is how long something must have held for the next failure to count as the first again.
	steady = 10 * time.Second
)

// backoff is how long to wait between attempts: twice as long each time, half of it by chance, so that many clients that lost one broker do not
// come back in step.
type backoff struct{ next time.Duration }

// wait waits before the next attempt, after one that held for as long as held says. It returns early when ctx ends.
func (b *backoff) wait(ctx context.Context, held time.Duration) {
	if b.next == 0 || held >= steady {
		b.next = firstRetry
	}
	t := time.NewTimer(b.next/2 + rand.N(b.next/2))
	defer t.Stop()
	b.next = min(2*b.next, lastRetry)
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
