// Package retry has what those need that try again: pauses between attempts, and saying once what is the matter.
package retry

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"go.uber.org/zap"
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

// Trouble says once what is the matter, and once that it is over. It is safe for concurrent use.
type Trouble struct {
	log *zap.Logger

	mu    sync.Mutex
	err   error
	since time.Time
	said  time.Time
	last  error
	at    time.Time
}

// NewTrouble makes one that writes to log.
func NewTrouble(log *zap.Logger) *Trouble { return &Trouble{log: log} }

// sayEvery is how often trouble is logged that goes on in other words.
const sayEvery = 10 * time.Second

// Note notes what is the matter; nil: nothing any more.
func (t *Trouble) Note(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now, before := time.Now(), t.err
	t.err = err
	switch {
	case err == nil && before != nil:
		t.log.Info("recovered", zap.Duration("after", now.Sub(t.since)))
	case err == nil:
	default:
		t.last, t.at = err, now
		if before == nil {
			t.since = now
		}
		if before == nil || before.Error() != err.Error() && now.Sub(t.said) >= sayEvery {
			t.said = now
			t.log.Warn("unhealthy, trying on", zap.Error(err))
		}
	}
}

// Current is what is the matter, nil for nothing.
func (t *Trouble) Current() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.err
}

// Last is what was the matter last; nil: nothing ever.
func (t *Trouble) Last() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.last
}

// At is when that was noted last.
func (t *Trouble) At() time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.at
}
