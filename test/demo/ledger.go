package main

import (
	"time"

	"github.com/aviaryhq/aviary/test/demo/display"
)

// ledger compares numbered records that were sent with those that arrived. Numbers are given in
// order and without gaps. Whoever uses it holds a lock.
type ledger struct {
	sent, arrived, twice int64

	next  int64               // all before it have arrived
	ahead map[int64]struct{}  // those after it that have
	open  map[int64]time.Time // sent and not arrived: when they were
	early map[int64]time.Time // arrived, and sending them has not returned: when they did
	delay time.Duration       // of the latest arrival
}

// newLedger returns one for numbers from first on.
func newLedger(first int64) *ledger {
	return &ledger{next: first, ahead: map[int64]struct{}{}, open: map[int64]time.Time{}, early: map[int64]time.Time{}}
}

// send notes a record that is stored or accepted. It may have arrived already.
func (l *ledger) send(n int64, began time.Time) {
	l.sent++
	if at, ok := l.early[n]; ok {
		l.delay = at.Sub(began)
		delete(l.early, n)
		return
	}
	l.open[n] = began
}

// skip leaves out a number that is not to arrive.
func (l *ledger) skip(n int64) { l.mark(n) }

// arrive notes an arrival.
func (l *ledger) arrive(n int64) {
	if _, again := l.ahead[n]; again || n < l.next {
		l.twice++
		return
	}
	l.mark(n)
	l.arrived++
	now := time.Now()
	began, sent := l.open[n]
	if !sent {
		l.early[n] = now
		return
	}
	l.delay = now.Sub(began)
	delete(l.open, n)
}

func (l *ledger) mark(n int64) {
	l.ahead[n] = struct{}{}
	for {
		if _, ok := l.ahead[l.next]; !ok {
			return
		}
		delete(l.ahead, l.next)
		l.next++
	}
}

// behind returns how many records are overdue, and the lag: that of the latest arrival, or the time
// that the oldest record waits if that is longer.
func (l *ledger) behind() (missing int64, lag time.Duration) {
	now := time.Now()
	lag = l.delay
	for _, began := range l.open {
		age := now.Sub(began)
		if age > display.Overdue {
			missing++
		}
		lag = max(lag, age)
	}
	return missing, lag
}
