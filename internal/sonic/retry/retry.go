// Package retry has the pauses between attempts.
package retry

import (
	"context"
	"math/rand/v2"
	"time"
)

const (
	first = 50 * time.Millisecond
	last  = 2 * time.Second
	// steady is how long something must have held for the next failure to count as the first again.
	steady = 10 * time.Second
)

// Pause is the time between attempts: it doubles from 50 ms to 2 s, half of it by chance, so that many processes that lost one server do not come
// back in step. The zero Pause is ready to use. It is not safe for concurrent use.
type Pause struct{ next time.Duration }

// Held tells how long the latest attempt held before it failed: after 10 s the pauses start over.
func (p *Pause) Held(d time.Duration) {
	if d >= steady {
		p.next = 0
	}
}

// Reset starts over.
func (p *Pause) Reset() { p.next = 0 }

// Wait waits before the next attempt, or until ctx ends.
func (p *Pause) Wait(ctx context.Context) {
	p.next = min(max(p.next, first), last)
	t := time.NewTimer(p.next/2 + rand.N(p.next/2))
	defer t.Stop()
	p.next *= 2
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
