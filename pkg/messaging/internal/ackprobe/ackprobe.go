// Package ackprobe finds out whether a receipt will never come.
package ackprobe

import (
	"context"
	"time"
)

// Probe asks whether the receipt of a partition's oldest record will never come. In an outage the
// producer sends everything again by itself once it is connected; a second producer would store it
// twice. So the broker is asked first: while it does not answer, nothing is lost, and once it does
// the producer has Grace.
//
// Ask and Grace must be set. A Probe is not safe for concurrent use.
type Probe struct {
	// Ask asks the broker anything, and returns an error when there is no answer. It is called on
	// a goroutine of its own, and must return when ctx ends.
	Ask func(ctx context.Context) error
	// Grace is how long the producer has once its broker is known to answer.
	Grace time.Duration

	oldest time.Time      // since when the record in question is the oldest
	answer chan time.Time // when the broker answered, zero when it did not; nil: not asked
	since  time.Time      // the broker answers; zero: not known to
}

// MaxGrace is how long a producer needs, once its broker answers, to connect and to be given the
// receipts of what it sends again.
const MaxGrace = 5 * time.Second

// Lost is called from time to time while a record, the oldest since a time, waits too long for its
// receipt. It reports true once the receipt will not come. ctx ends with the partition.
func (p *Probe) Lost(ctx context.Context, since, now time.Time) bool {
	if !since.Equal(p.oldest) {
		p.reset()
		p.oldest = since
	}
	switch {
	case p.answer == nil:
		p.ask(ctx)
		return false
	case p.since.IsZero():
		p.hear()
		return false
	case now.Sub(p.since) < p.Grace:
		return false
	}
	p.reset()
	return true
}

func (p *Probe) reset() { p.oldest, p.answer, p.since = time.Time{}, nil, time.Time{} }

func (p *Probe) ask(ctx context.Context) {
	answer := make(chan time.Time, 1)
	p.answer = answer
	go func() {
		if p.Ask(ctx) != nil {
			answer <- time.Time{}
			return
		}
		answer <- time.Now()
	}()
}

// hear takes the answer, if there is one.
func (p *Probe) hear() {
	select {
	case p.since = <-p.answer:
		if p.since.IsZero() {
			p.answer = nil // away: it is asked again
		}
	default:
	}
}
