package nightingale

import (
	"sync"
	"time"
)

// bucket is what a quota leaves a tenant: a number of samples that grows with time up
// to a burst. It may be in debt: what was admitted is charged when it is known to be
// written, whatever is left by then.
type bucket struct {
	rate  float64 // samples per second
	burst float64

	mu   sync.Mutex
	left float64
	at   time.Time // when left was true
}

func newBucket(rate float64, burst int, now time.Time) *bucket {
	return &bucket{rate: rate, burst: float64(burst), left: float64(burst), at: now}
}

// fill brings left up to date. b.mu is held.
func (b *bucket) fill(now time.Time) {
	if elapsed := now.Sub(b.at); elapsed > 0 {
		b.left = min(b.burst, b.left+b.rate*elapsed.Seconds())
		b.at = now
	}
}

// wait returns how long it takes until n samples are there, or the whole burst for
// more than that; 0 when they are.
func (b *bucket) wait(now time.Time, n int) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fill(now)
	missing := min(float64(n), b.burst) - b.left
	if missing <= 0 {
		return 0
	}
	return time.Duration(min(missing/b.rate, float64(maxWait/time.Second)) * float64(time.Second))
}

// maxWait bounds what a sender is told to wait.
const maxWait = time.Hour

// charge takes n samples.
func (b *bucket) charge(now time.Time, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fill(now)
	b.left -= float64(n)
}

// full reports whether the whole burst is there: forgetting such a bucket makes no
// difference.
func (b *bucket) full(now time.Time) bool {
	return b.available(now) >= b.burst
}

// available is what is left, below zero for a debt.
func (b *bucket) available(now time.Time) float64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fill(now)
	return b.left
}
