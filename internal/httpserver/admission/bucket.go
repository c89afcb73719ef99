package admission

import (
	"math"
	"sync"
	"time"
)

// Bucket is the token bucket of a quota: units that are refilled at a rate, up to a burst. They may
// be negative, see Charge. A nil Bucket has no bound. It is safe for concurrent use.
type Bucket struct {
	mu    sync.Mutex
	rate  float64 // units per second
	burst float64
	left  float64
	at    time.Time // when left was true
}

// NewBucket returns a full bucket, or nil if rate is 0. rate is in units per second. A burst of 0
// stands for the units of ten seconds.
func NewBucket(rate float64, burst int, now time.Time) *Bucket {
	if rate == 0 {
		return nil
	}
	if burst == 0 {
		burst = int(min(math.Ceil(10*rate), math.MaxInt32))
	}
	return &Bucket{rate: rate, burst: float64(burst), left: float64(burst), at: now}
}

// Rate returns the rate in units per second.
func (b *Bucket) Rate() float64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.rate
}

// Inherit returns the former bucket with the rate and the burst of b. Its units stay, up to the
// burst. If one of the two is nil, it returns b. Nobody else may use b yet.
func (b *Bucket) Inherit(former *Bucket, now time.Time) *Bucket {
	if b == nil || former == nil {
		return b
	}
	former.mu.Lock()
	defer former.mu.Unlock()
	former.fill(now)
	former.rate, former.burst = b.rate, b.burst
	former.left = min(former.left, former.burst)
	return former
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

// Take returns the result of Wait. It takes n units if that is 0, and otherwise takes no units.
func (b *Bucket) Take(now time.Time, n int) time.Duration {
	if b == nil {
		return 0
	}
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
	if b == nil {
		return
	}
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
