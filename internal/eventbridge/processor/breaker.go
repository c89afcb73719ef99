package processor

import (
	"context"
	"sync"
	"time"

	"github.com/aviaryhq/aviary/internal/eventbridge/model"
)

// BreakerState is what a breaker lets through.
type BreakerState string

// The states of a breaker.
const (
	BreakerClosed   BreakerState = "closed"    // everything
	BreakerOpen     BreakerState = "open"      // nothing
	BreakerHalfOpen BreakerState = "half_open" // one delivery, as a probe
)

// breaker stops deliveries to a target that fails. Each delivery calls enter, and then leave with
// its verdict. While the breaker is open no delivery enters. After that one delivery enters as a
// probe, and its verdict closes or opens the breaker. All methods are safe for concurrent use.
type breaker struct {
	cfg     model.Breaker
	changed func(BreakerState) // called in the order of changes; must not block

	mu       sync.Mutex
	state    BreakerState
	failures int           // in a row
	interval time.Duration // until the next probe
	until    time.Time
	probing  bool
	next     chan struct{} // closed when something changes
	timer    *time.Timer
	shut     bool
}

// probeMost bounds the interval between probes: at most so many times the first one.
const probeMost = 10

func newBreaker(cfg model.Breaker, changed func(BreakerState)) *breaker {
	return &breaker{cfg: cfg, changed: changed, state: BreakerClosed, next: make(chan struct{})}
}

// enter waits until a delivery may be made, or ctx ends.
func (b *breaker) enter(ctx context.Context) error {
	for {
		b.mu.Lock()
		if b.shut {
			b.mu.Unlock()
			<-ctx.Done()
			return ctx.Err()
		}
		if err := ctx.Err(); err != nil {
			b.mu.Unlock()
			return err // it does not enter, and is no probe
		}
		if b.state == BreakerClosed || b.state == BreakerHalfOpen && !b.probing {
			b.probing = b.state == BreakerHalfOpen
			b.mu.Unlock()
			return nil
		}
		next := b.next
		b.mu.Unlock()
		select {
		case <-next:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// tryEnter is enter without waiting.
func (b *breaker) tryEnter() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.shut || b.state == BreakerOpen || b.state == BreakerHalfOpen && b.probing {
		return false
	}
	b.probing = b.state == BreakerHalfOpen
	return true
}

// verdict is what a delivery says about its target.
type verdict int

const (
	noVerdict verdict = iota // the delivery was not made
	well                     // the target answers, whatever it says about the event
	failing
)

// leave ends a delivery that has entered. v is what it says about the target.
func (b *breaker) leave(v verdict) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.state == BreakerHalfOpen && v == noVerdict:
		b.probing = false
		b.notify()
	case v == well:
		b.failures = 0
		if b.state == BreakerHalfOpen {
			b.probing, b.interval = false, 0
			b.become(BreakerClosed)
		}
	case v == failing && b.state == BreakerHalfOpen:
		b.probing = false
		b.open()
	case v == failing && b.state == BreakerClosed && b.cfg.Failures > 0:
		if b.failures++; b.failures >= b.cfg.Failures {
			b.open()
		}
	}
}

// open opens the breaker until the next probe. The caller holds b.mu.
func (b *breaker) open() {
	first := time.Duration(b.cfg.Probe)
	b.interval = min(max(2*b.interval, first), probeMost*first)
	b.until = time.Now().Add(b.interval)
	b.failures = 0
	b.become(BreakerOpen)
	b.timer = time.AfterFunc(b.interval, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.state == BreakerOpen && !b.shut {
			b.become(BreakerHalfOpen)
		}
	})
}

func (b *breaker) become(s BreakerState) {
	b.state = s
	if !b.shut { // a newer worker's breaker may report instead
		b.changed(s)
	}
	b.notify()
}

func (b *breaker) notify() {
	close(b.next)
	b.next = make(chan struct{})
}

// end lets no delivery enter any more: callers of enter wait until their contexts end.
func (b *breaker) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.shut = true
	if b.timer != nil {
		b.timer.Stop()
	}
	b.notify()
}

// repeat reports the present state again, for a consumer that was created after the last change.
func (b *breaker) repeat() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.changed(b.state)
}

// now returns the state and, while the breaker is open, until when.
func (b *breaker) now() (s BreakerState, until time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state == BreakerOpen {
		until = b.until
	}
	return b.state, until
}
