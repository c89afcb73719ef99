package messaging

import (
	"context"
	"time"
)

// ackProbe asks whether a receipt will never come. In an outage none
// comes either, but then the producer sends everything again by itself once it is
// connected, and a second producer that does so, too, would store it twice. So the
// broker is asked something first: while it does not answer it is away, and when it
// does the producer has a little longer.
//
// Only the partition's goroutine uses it.
type ackProbe struct {
	about  time.Time      // since when the record in question is the oldest
	answer chan time.Time // when the broker answered, zero when it did not; nil: not asked
	since  time.Time      // the broker answers; zero: not known to
}

// graceAfterAnswer is how long a producer has, once its broker is known to answer, to
// connect and to be given the receipts of what it sends again.
const graceAfterAnswer = 5 * time.Second

// confirm is called at every tick while a record is the oldest for longer than AckTimeout,
// and returns what broke the producer once there is no doubt. ctx ends with the partition.
func (d *ackProbe) confirm(ctx context.Context, pp *partitionPublisher, now time.Time) (broken error) {
	pp.mu.Lock()
	since := pp.headSince
	pp.mu.Unlock()
	if !since.Equal(d.about) {
		*d = ackProbe{about: since}
	}
	if d.answer == nil {
		answer := make(chan time.Time, 1)
		d.answer = answer
		go func() {
			ctx, cancel := context.WithTimeout(ctx, pp.p.client.operationTimeout)
			defer cancel()
			if _, err := pp.p.lookUpPartitions(ctx); err != nil {
				answer <- time.Time{}
				return
			}
			answer <- time.Now()
		}()
		return nil
	}
	if d.since.IsZero() {
		select {
		case d.since = <-d.answer:
			if d.since.IsZero() {
				d.answer = nil // away: ask again at the next tick
			}
		default:
		}
		return nil
	}
	if now.Sub(d.since) < min(graceAfterAnswer, pp.p.profile.AckTimeout) {
		return nil
	}
	*d = ackProbe{}
	return errAckTimeout
}
