package publish

import (
	"context"
	"time"
)

// ackProbe finds out whether the receipt of a partition's oldest record will never come. After an
// outage the connected producer sends everything again by itself, and a second producer would store
// it twice. So the probe asks the broker first: while it does not answer, nothing is lost, and once
// it does the producer has grace. An ackProbe is not safe for concurrent use.
type ackProbe struct {
	// query asks the broker anything and returns an error when there is no answer, at the latest
	// when ctx ends. It runs on its own goroutine.
	query func(ctx context.Context) error
	grace time.Duration

	oldest time.Time  // since when the record in question is the oldest
	answer chan error // nil: not asked
	since  time.Time  // the broker answers; zero: not known to
}

// maxGrace is how long a producer needs, once its broker answers, to connect and to be given the
// receipts of what it sends again.
const maxGrace = 5 * time.Second

// lost reports whether the receipt of the record that has been the oldest since a time will not
// come. The caller asks every second while it waits. ctx ends with the partition.
func (p *ackProbe) lost(ctx context.Context, since, now time.Time) bool {
	if !since.Equal(p.oldest) {
		p.oldest, p.answer, p.since = since, nil, time.Time{}
	}
	switch {
	case p.answer == nil:
		answer := make(chan error, 1)
		p.answer = answer
		go func() { answer <- p.query(ctx) }()
	case p.since.IsZero():
		select {
		case err := <-p.answer:
			if err == nil {
				p.since = now
			} else {
				p.answer = nil // ask again
			}
		default:
		}
	case now.Sub(p.since) >= p.grace:
		p.oldest = time.Time{}
		return true
	}
	return false
}
