// Package backoff has the delays between attempts, and waits for them. It imports no other package
// of this repository.
package backoff

import (
	"cmp"
	"context"
	"math/rand/v2"
	"time"
)

// Min and Max bound the delays of the zero [Backoff]. The Pulsar client's own policy goes up to 60
// seconds, which is far too long after an outage.
const (
	Min = 100 * time.Millisecond
	Max = 2 * time.Second
)

// Steady is how long an attempt has to hold to count as a success, see [Backoff.Held].
const Steady = 10 * time.Second

// Backoff doubles from Min to Max, with up to 20 % of jitter. The zero Backoff is ready to use.
// It is not safe for concurrent use. A pointer to it is a backoff.Policy of pulsar-client-go.
type Backoff struct {
	// Min and Max bound the delays without their jitter. 0: the constants of these names.
	Min, Max time.Duration

	delay time.Duration
}

// Next returns the delay before the next attempt.
func (b *Backoff) Next() time.Duration {
	b.delay = min(max(2*b.delay, cmp.Or(b.Min, Min)), b.most())
	return b.Current()
}

// Current returns the delay that Next returned last, with new jitter: 0 before the first Next.
func (b *Backoff) Current() time.Duration { return b.delay + Jitter(b.delay/5) }

// Started reports whether Next was called since the last Reset.
func (b *Backoff) Started() bool { return b.delay > 0 }

// IsMaxBackoffReached reports whether the delays no longer grow.
func (b *Backoff) IsMaxBackoffReached() bool { return b.delay >= b.most() }

func (b *Backoff) most() time.Duration { return cmp.Or(b.Max, Max) }

// Reset starts over after a success.
func (b *Backoff) Reset() { b.delay = 0 }

// Held starts over when d, the time from the latest attempt to its failure, is [Steady] or more.
func (b *Backoff) Held(d time.Duration) {
	if d >= Steady {
		b.Reset()
	}
}

// Wait waits before the next attempt. It returns false, early, when ctx ends.
func (b *Backoff) Wait(ctx context.Context) bool { return Sleep(ctx, b.Next()) }

// Jitter returns a random part of d, so that clients that lost the same broker do not return at
// the same moment.
func Jitter(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return rand.N(d)
}

// Sleep waits for d, or less when ctx ends first. It reports whether it waited for all of d.
func Sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
