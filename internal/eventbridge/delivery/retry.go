package delivery

import (
	"fmt"
	"time"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// schedule says when a failed delivery is tried again.
type schedule struct {
	attempts int
	age      time.Duration
	delays   []time.Duration
	jitter   float64
}

func newSchedule(r model.Retry) schedule {
	s := schedule{attempts: r.MaxAttempts, age: time.Duration(r.MaxAge), jitter: r.Jitter}
	for _, d := range r.Schedule {
		s.delays = append(s.delays, time.Duration(d))
	}
	return s
}

// next returns the delay before the next attempt, or in over why there is none. attempt counts from
// 1. jitter, from -1 to 1, is where the delay lies in its spread. firstFailed is zero if this
// attempt is the first that failed.
func (s schedule) next(attempt int, firstFailed, now time.Time, jitter float64) (delay time.Duration, over string) {
	if s.attempts > 0 && attempt >= s.attempts {
		return 0, fmt.Sprintf("gave up after %d attempts", attempt)
	}
	delay = s.delays[min(max(attempt-1, 0), len(s.delays)-1)]
	delay += time.Duration(jitter * s.jitter * float64(delay))
	if firstFailed.IsZero() {
		firstFailed = now
	}
	if age := now.Sub(firstFailed); s.age > 0 && age+delay > s.age {
		return 0, fmt.Sprintf("gave up after %d attempts in %s", attempt, age.Round(time.Second))
	}
	return delay, ""
}

// libraryRetry makes the messaging library do what handlers say, and nothing by itself. Handlers
// count attempts, because waiting for the breaker is not an attempt.
func libraryRetry(retryTopic, deadLetters string, inPlace bool) messaging.Retry {
	return messaging.Retry{
		MinDelay: time.Second, MaxDelay: time.Minute, InPlace: inPlace,
		Compression: messaging.NoCompression, // keeps many subscribers cheap
		Topic:       retryTopic, DeadLetterTopic: deadLetters, DeadLetterSubscription: model.DeliverSubscription,
	}
}
