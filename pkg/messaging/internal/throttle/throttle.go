// Package throttle suppresses repeated log lines.
package throttle

import (
	"sync"
	"time"
)

const every = time.Second

// Throttle lets one line pass per second and counts those that it suppressed. The zero Throttle
// is ready to use. It is safe for concurrent use.
type Throttle struct {
	mu         sync.Mutex
	last       time.Time
	suppressed int
}

// Allow reports whether a line may be logged now, and how many were suppressed since the last
// one that passed.
func (t *Throttle) Allow() (suppressed int, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	if now.Sub(t.last) < every {
		t.suppressed++
		return 0, false
	}
	suppressed = t.suppressed
	t.last, t.suppressed = now, 0
	return suppressed, true
}
