package admission

import (
	"sync"
	"time"
)

// Bucket is the token bucket of a quota: units that are refilled at a rate, up to a burst. They may
// be negative, see Charge. It is safe for concurrent use.
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

// Rate returns the rate in units per second.
func (b *Bucket) Rate() float64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.rate
}

// Change sets the rate and the burst. The units that are left stay, up to the burst.
func (b *Bucket) Change(now time.Time, rate float64, burst int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fill(now)
	b.rate, b.burst = rate, float64(burst)
	b.left = min(b.left, b.burst)
}

// fill brings left up to date. The caller holds b.mu.
func (b *Bucket) fill(now time.Time) {
	if elapsed := now.Sub(b.at); elapsed > 0 {
		b.left = min(b.burst, b.left+b.rate*elapsed.Seconds())
		b.at = now
	}
}

// Wait returns how long it takes until n units are available, or the whole burst if n is larger; 0
// if they are available.
func (b *Bucket) Wait(now time.Time, n int) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.wait(now, n)
}

// wait is Wait for a caller that holds b.mu.
func (b *Bucket) wait(now time.Time, n int) time.Duration {
	b.fill(now)
	missing := min(float64(n), b.burst) - b.left
	if missing <= 0 {
		return 0
	}
	return time.Duration(min(missing/b.rate, float64(maxWait/time.Second)) * float64(time.Second))
}

// maxWait bounds what Wait returns.
const maxWait = time.Hour

// Charge takes n units, even if fewer are left.
func (b *Bucket) Charge(now time.Time, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fill(now)
	b.left -= float64(n)
}

// Take takes n units if Wait returns 0 for them, otherwise none. It returns what Wait returns.
func (b *Bucket) Take(now time.Time, n int) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	wait := b.wait(now, n)
	if wait == 0 {
		b.left -= float64(n)
	}
	return wait
}

// Return gives back n units that were taken.
func (b *Bucket) Return(now time.Time, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fill(now)
	b.left = min(b.burst, b.left+float64(n))
}

// Full reports whether the whole burst is available. A full bucket can be deleted and made anew.
func (b *Bucket) Full(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fill(now)
	return b.left >= b.burst
}

// Available returns how many units are left; it may be negative.
func (b *Bucket) Available(now time.Time) float64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fill(now)
	return b.left
}
