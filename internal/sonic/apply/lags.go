package apply

import (
	"slices"
	"time"
)

// Lags says how old effects were when they were applied, over the last minute: at most P50 for half
// of the messages, and at most P99 for 99 of 100 messages.
type Lags struct {
	P50, P99 time.Duration
	// Messages is how many messages were counted; 0: none, and both delays are 0.
	Messages int
}

const (
	// lagsPeriod is the period that Lags covers.
	lagsPeriod = time.Minute
	// maxLags is how many messages are kept at most. With more messages in a minute, Lags covers
	// only the latest.
	maxLags = 4096
)

// lags keeps the delays of the latest messages in a ring. The zero lags is ready to use.
type lags struct {
	ring []lag
	next int
}

type lag struct {
	at    time.Time
	delay time.Duration
}

func (l *lags) add(at time.Time, delay time.Duration) {
	if len(l.ring) < maxLags {
		l.ring = append(l.ring, lag{at, delay})
		return
	}
	l.ring[l.next] = lag{at, delay}
	l.next = (l.next + 1) % maxLags
}

// last returns the Lags of the last minute.
func (l *lags) last(now time.Time) Lags {
	var delays []time.Duration
	for _, one := range l.ring {
		if now.Sub(one.at) < lagsPeriod {
			delays = append(delays, max(one.delay, 0))
		}
	}
	if len(delays) == 0 {
		return Lags{}
	}
	slices.Sort(delays)
	at := func(part int) time.Duration { return delays[(len(delays)*part+99)/100-1] }
	return Lags{P50: at(50), P99: at(99), Messages: len(delays)}
}
