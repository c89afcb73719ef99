package door

import (
	"sync"
	"time"
)

// Bucket is what a quota leaves a sender: a number of units that grows with time up
// to a burst. It may be in debt, see Charge. It is safe for concurrent use.
type Bucket struct {
	mu    sync.Mutex
	rate  float64 // units per second
	burst float64
	left  float64
	at    time.Time // when left was true
}

// NewBucket returns a full bucket. rate is in units per second.
func NewBucket(rate float64, burst int, now time.Time) *Bucket {
	return &Bucket{rate: rate, burst: float64(burst), left: float64(burst), at: now}
}

// Rate is in units per second.
func (b *Bucket) Rate() float64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.rate
}

// Change gives the bucket another rate and burst. What is left stays, up to the burst.
func (b *Bucket) Change(now time.Time, rate float64, burst int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fill(now)
	b.rate, b.burst = rate, float64(burst)
	b.left = min(b.left, b.burst)
}

// fill brings left up to date. b.mu is held.
func (b *Bucket) fill(now time.Time) {
	if elapsed := now.Sub(b.at); elapsed > 0 {
		b.left = min(b.burst, b.left+b.rate*elapsed.Seconds())
		b.at = now
	}
}

// Wait returns how long it takes until n units are there, or the whole burst for
// more than that; 0 when they are.
func (b *Bucket) Wait(now time.Time, n int) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.wait(now, n)
}

// wait is Wait with b.mu held.
func (b *Bucket) wait(now time.Time, n int) time.Duration {
	b.fill(now)
	missing := min(float64(n), b.burst) - b.left
	if missing <= 0 {
		return 0
	}
	return time.Duration(min(missing/b.rate, float64(maxWait/time.Second)) * float64(time.Second))
}

// maxWait bounds what a sender is told to wait.
const maxWait = time.Hour

// Charge takes n units, whatever is left.
func (b *Bucket) Charge(now time.Time, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fill(now)
	b.left -= float64(n)
}

// Take takes n units if Wait would return 0, and nothing else. It returns what Wait does.
func (b *Bucket) Take(now time.Time, n int) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	wait := b.wait(now, n)
	if wait == 0 {
		b.left -= float64(n)
	}
	return wait
}

// Give gives back n units that were taken.
func (b *Bucket) Give(now time.Time, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fill(now)
	b.left = min(b.burst, b.left+float64(n))
}

// Full reports whether the whole burst is there: forgetting such a bucket makes no
// difference.
func (b *Bucket) Full(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fill(now)
	return b.left >= b.burst
}

// Available is what is left, below zero for a debt.
func (b *Bucket) Available(now time.Time) float64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fill(now)
	return b.left
}

// AtMost leaves no more than left units.
func (b *Bucket) AtMost(left float64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left = min(b.left, left)
}
