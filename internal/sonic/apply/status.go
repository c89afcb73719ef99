package apply

import (
	"slices"
	"time"

	"github.com/aviaryhq/aviary/internal/sonic/wire"
)

// Status says how far a zone has applied the effects of another zone.
type Status struct {
	// Cursor is the last effect that is known to be applied, zero for none. It is some seconds old
	// if another process applies the effects.
	Cursor wire.ID
	// Count is how many effects the topic has up to Cursor. Known is how many effects the topic is
	// known to have. If another process applies the effects, Count is too low by some seconds of
	// effects at most: it is the count at the last observed end of the topic that Cursor has
	// reached.
	Count, Known int64
	// Delay is how old the last effect was, at most, when it was applied. At is the time of that.
	// Both are zero before the first effect.
	Delay time.Duration
	At    time.Time
	// MaxSilence is how long no message may arrive before the zone counts as behind. Before the
	// first effect this time starts at Began.
	MaxSilence time.Duration
	Began      time.Time
	// Gap says that effects are missing, and that the topic does not have them any more.
	Gap bool
	// Differs names the settings that must be equal in all zones, and differ in the other zone,
	// according to its last message.
	Differs []string
	// Lags covers the last minute.
	Lags Lags
}

// Behind returns how far the zone is behind the other one: in time, and in effects of the topic.
// known is false right after the start.
func (s Status) Behind(now time.Time) (lag time.Duration, effects int64, known bool) {
	effects = max(s.Known-s.Count, 0)
	silence, silent := s.silence(now)
	if s.At.IsZero() {
		return silence, effects, silent
	}
	if lag = s.Delay; silent {
		// Not even the other zone's heartbeats arrive.
		lag += silence
	}
	return max(lag, 0), effects, true
}

// silence returns how long no message of the other zone has arrived. silent says that this is too
// long.
func (s Status) silence(now time.Time) (silence time.Duration, silent bool) {
	since, most := s.At, s.MaxSilence
	if since.IsZero() {
		since, most = s.Began, maxSilence
	}
	if since.IsZero() {
		return 0, false
	}
	silence = now.Sub(since)
	return silence, silence > most
}

const (
	// beatEvery is how often a zone sends a heartbeat.
	beatEvery = time.Second
	// maxSilence is how long no message of a zone may arrive before the zone counts as silent.
	maxSilence = 3 * beatEvery
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
