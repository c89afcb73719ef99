package delivery

import (
	"context"
	"sync"
	"time"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
)

// BreakerState is closed, open or half-open.
type BreakerState string

// The states of a breaker.
const (
	BreakerClosed   BreakerState = "closed"    // all deliveries enter
	BreakerOpen     BreakerState = "open"      // none enters
	BreakerHalfOpen BreakerState = "half_open" // a few enter, as probes
)

// breaker stops deliveries to a target that is unavailable. Each delivery calls enter, and then
// leave with what it says about the target. While the breaker is open, no delivery enters. Then a
// few enter as probes; one would not be enough, because its event may be the cause of a time-out.
// If one of them is answered, the breaker closes. If all of them fail, it opens again for the same
// time. All methods are safe for concurrent use.
type breaker struct {
	cfg       model.Breaker
	maxProbes int // how many deliveries enter while it is half-open
	// changed is called in the order of changes, and must not block. asked: the breaker opens
	// because the target asked to wait.
	changed func(s BreakerState, asked bool)

	mu       sync.Mutex
	state    BreakerState
	failures int  // in a row while closed, of the probes while half-open
	probes   int  // that have entered while half-open
	openings pass // how often it has opened
	until    time.Time
	next     chan struct{} // closed when something changes
	timer    *time.Timer
	shut     bool
}

// pass is what openings was when a delivery entered. The breaker ignores the result of a delivery
// that entered before it opened: that says nothing about the time after.
type pass int

// newBreaker makes a breaker that lets as many probes enter as probes says.
func newBreaker(cfg model.Breaker, probes int, changed func(s BreakerState, asked bool)) *breaker {
	return &breaker{cfg: cfg, maxProbes: probes, changed: changed, state: BreakerClosed, next: make(chan struct{})}
}

// enter waits until a delivery may be made, or ctx ends.
func (b *breaker) enter(ctx context.Context) (pass, error) {
	for {
		if err := ctx.Err(); err != nil {
			return 0, err // it does not enter, and is no probe
		}
		p, entered, next := b.enterNow()
		if entered {
			return p, nil
		}
		select {
		case <-next:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// enterNow lets a delivery enter if that is possible now. Otherwise it returns a channel that is
// closed at the next change.
func (b *breaker) enterNow() (p pass, entered bool, next <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.shut || b.state == BreakerOpen || b.state == BreakerHalfOpen && b.probes == b.maxProbes {
		return 0, false, b.next
	}
	if b.state == BreakerHalfOpen {
		b.probes++
	}
	return b.openings, true, nil
}

// valid reports whether a delivery that has entered with p may still be made: the breaker has not
// opened since.
func (b *breaker) valid(p pass) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return p == b.openings && b.state != BreakerOpen && !b.shut
}

// answer is what a delivery says about its target.
type answer struct {
	kind answerKind
	// retryAfter is how long the target asks to wait before the next delivery; 0 if it does not
	// ask.
	retryAfter time.Duration
}

type answerKind int

const (
	notMade     answerKind = iota // the delivery was not made
	answered                      // the target answers, whatever it says about the event
	unavailable                   // see target.Result
)

// leave ends a delivery that has entered with p.
func (b *breaker) leave(p pass, a answer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state == BreakerOpen {
		if until := time.Now().Add(a.retryAfter); until.After(b.until) {
			b.until = until
			b.timer.Reset(a.retryAfter)
		}
		return
	}
	if p != b.openings {
		return
	}
	if a.retryAfter > 0 {
		b.open(a.retryAfter, true)
		return
	}
	switch a.kind {
	case notMade:
		if b.state == BreakerHalfOpen {
			b.probes--
			b.notify()
		}
	case answered:
		b.failures = 0
		if b.state == BreakerHalfOpen {
			b.become(BreakerClosed, false)
		}
		return
	case unavailable:
		b.failures++
	}
	if b.state == BreakerHalfOpen && b.failures == b.maxProbes ||
		b.state == BreakerClosed && b.cfg.Failures > 0 && b.failures >= b.cfg.Failures {
		b.open(time.Duration(b.cfg.Probe), false)
	}
}

// open opens the breaker for a time, which the target may have asked for. The caller holds b.mu.
func (b *breaker) open(wait time.Duration, asked bool) {
	b.until = time.Now().Add(wait)
	b.openings++
	b.become(BreakerOpen, asked)
	b.timer = time.AfterFunc(wait, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		switch {
		case b.shut, time.Now().Before(b.until): // the target has asked to wait longer
		case b.cfg.Failures == 0: // it has opened because the target asked to wait, and takes no probes
			b.become(BreakerClosed, false)
		default:
			b.become(BreakerHalfOpen, false)
		}
	})
}

func (b *breaker) become(s BreakerState, asked bool) {
	b.state, b.failures, b.probes = s, 0, 0
	if !b.shut { // a newer worker's breaker may report instead
		b.changed(s, asked)
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
	b.changed(b.state, true) // why it opened was said then
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
