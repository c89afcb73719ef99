package delivery

import (
	"context"
	"sync"
	"time"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/target"
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
	// changed is called in the order of changes, with the failure that opens the breaker; nil if the
	// target asked to wait. It must not block.
	changed func(s BreakerState, failure error)

	mu       sync.Mutex
	state    BreakerState
	failures int  // in a row while closed, of the probes while half-open
	probes   int  // that have entered while half-open
	openings pass // how often it has opened
	until    time.Time
	next     chan struct{} // closed when more deliveries may enter
}

// pass is what openings was when a delivery entered. The breaker ignores the result of a delivery
// that entered before it opened: that says nothing about the time after.
type pass int

// newBreaker makes a breaker that lets as many probes enter as probes says.
func newBreaker(cfg model.Breaker, probes int, changed func(BreakerState, error)) *breaker {
	return &breaker{cfg: cfg, maxProbes: probes, changed: changed, state: BreakerClosed, next: make(chan struct{})}
}

// enter waits until a delivery may be made, or ctx ends.
func (b *breaker) enter(ctx context.Context) (pass, error) {
	for ctx.Err() == nil { // with a ctx that has ended the delivery is no probe
		b.mu.Lock()
		p, next := b.openings, b.next
		enters := b.state == BreakerClosed || b.state == BreakerHalfOpen && b.probes < b.maxProbes
		if enters && b.state == BreakerHalfOpen {
			b.probes++
		}
		b.mu.Unlock()
		if enters {
			return p, nil
		}
		select {
		case <-next:
		case <-ctx.Done():
		}
	}
	return 0, ctx.Err()
}

// leave ends a delivery that has entered with p, with its results. A target that answers is
// available, whatever it says about the events. Without results the delivery was not made.
func (b *breaker) leave(p pass, results []target.Result) {
	var answered bool
	var failure error
	var retryAfter time.Duration
	for _, r := range results {
		switch {
		case r.Unavailable:
			failure, retryAfter = r.Err, max(retryAfter, r.RetryAfter)
		case r.Verdict != target.Retry || r.Reason != target.ReasonStopped:
			answered = true
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.state == BreakerOpen:
		if until := time.Now().Add(retryAfter); until.After(b.until) {
			b.until = until
		}
	case p != b.openings:
	case retryAfter > 0:
		b.open(retryAfter, nil)
	case answered && b.state == BreakerHalfOpen:
		b.become(BreakerClosed, nil)
	case answered:
		b.failures = 0
	case failure != nil:
		b.failures++
		if b.state == BreakerHalfOpen && b.failures == b.maxProbes ||
			b.state == BreakerClosed && b.cfg.Failures > 0 && b.failures >= b.cfg.Failures {
			b.open(time.Duration(b.cfg.Probe), failure)
		}
	case b.state == BreakerHalfOpen: // another delivery is the probe
		b.probes--
		b.notify()
	}
}

// open opens the breaker for a time. The caller holds b.mu.
func (b *breaker) open(wait time.Duration, failure error) {
	b.until = time.Now().Add(wait)
	b.openings++
	b.become(BreakerOpen, failure)
	time.AfterFunc(wait, b.elapse)
}

// elapse ends the time for which the breaker is open, unless the target has asked for more.
func (b *breaker) elapse() {
	b.mu.Lock()
	defer b.mu.Unlock()
	left := time.Until(b.until)
	switch {
	case left > 0:
		time.AfterFunc(left, b.elapse)
	case b.cfg.Failures == 0: // it opened because the target asked to wait, and takes no probes
		b.become(BreakerClosed, nil)
	default:
		b.become(BreakerHalfOpen, nil)
	}
}

func (b *breaker) become(s BreakerState, failure error) {
	b.state, b.failures, b.probes = s, 0, 0
	b.changed(s, failure)
	b.notify()
}

func (b *breaker) notify() {
	close(b.next)
	b.next = make(chan struct{})
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
