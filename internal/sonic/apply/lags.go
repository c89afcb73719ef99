package apply

import (
	"slices"
	"time"
)

// Lags are how old effects were when they were applied, over a minute: half of the messages were no later than P50, 99 of 100 no later than P99.
type Lags struct {
	P50, P99 time.Duration
	// Messages that these are of; 0: none, and both are 0.
	Messages int
}

const (
	// lagsOver is the time that they are of.
	lagsOver = time.Minute
	// lagsKept bounds what is kept: with more messages in a minute they are of the latest.
	lagsKept = 4096
)

// lags keeps the latest in a ring. The zero lags is ready to use.
type lags struct {
	ring []lag
	next int
}

type lag struct {
	at    time.Time
	delay time.Duration
}

func (l *lags) add(at time.Time, delay time.Duration) {
	if len(l.ring) < lagsKept {
		l.ring = append(l.ring, lag{at, delay})
		return
	}
	l.ring[l.next] = lag{at, delay}
	l.next = (l.next + 1) % lagsKept
}

// last returns those of the last minute.
func (l *lags) last(now time.Time) Lags {
	var delays []time.Duration
	for _, one := range l.ring {
		if now.Sub(one.at) < lagsOver {
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
