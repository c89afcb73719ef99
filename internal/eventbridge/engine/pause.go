package engine

import (
	"context"
	"math/rand/v2"
	"time"
)

const (
	firstPause = 50 * time.Millisecond
	lastPause  = 2 * time.Second
)

// pause is the time before another try: it doubles, half of it by chance. Zero begins anew.
type pause time.Duration

// wait waits, or until ctx ends.
func (p *pause) wait(ctx context.Context) {
	d := min(max(2*time.Duration(*p), firstPause), lastPause)
	*p = pause(d)
	t := time.NewTimer(d/2 + rand.N(d/2))
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
