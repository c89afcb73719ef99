// Package trouble says what is the matter with something that is tried again: at once, each minute while it goes on, and when it is over.
package trouble

import (
	"sync"
	"time"

	"go.uber.org/zap"
)

const (
	// otherWords is how often trouble is logged that goes on in other words: no answer for 7 s, for 8 s, or another one of many connections' error.
	otherWords = 10 * time.Second
	// again is how often it is logged that goes on in the same.
	again = time.Minute
)

// State is what is the matter with one thing. It is safe for concurrent use.
type State struct {
	log *zap.Logger

	mu     sync.Mutex
	err    error
	since  time.Time
	said   time.Time
	last   error
	lastAt time.Time
}

// New makes one that writes to log, and with nothing the matter.
func New(log *zap.Logger) *State { return &State{log: log} }

// Note notes what is the matter; nil: nothing any more.
func (s *State) Note(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, before := time.Now(), s.err
	s.err = err
	if err == nil {
		if before != nil {
			s.log.Info("recovered", zap.Duration("after", now.Sub(s.since)))
		}
		return
	}
	s.last, s.lastAt = err, now
	if before == nil {
		s.since = now
	}
	if before == nil || before.Error() != err.Error() && now.Sub(s.said) >= otherWords {
		s.say(now)
		return
	}
	s.remind(now)
}

// Remind logs what is the matter when it was not logged for a minute, with fields. It is for those that note only what changes.
func (s *State) Remind(fields ...zap.Field) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		s.remind(time.Now(), fields...)
	}
}

func (s *State) remind(now time.Time, fields ...zap.Field) {
	if now.Sub(s.said) >= again {
		s.say(now, append(fields, zap.Duration("for", now.Sub(s.since).Round(time.Second)))...)
	}
}

func (s *State) say(now time.Time, fields ...zap.Field) {
	s.said = now
	s.log.Warn("unhealthy, trying on", append(fields, zap.Error(s.err))...)
}

// Forget ends what is the matter without a word: nobody tries any more.
func (s *State) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = nil
}

// Current is what is the matter, nil for nothing.
func (s *State) Current() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Last is the trouble that was noted last, and when; nil: none ever.
func (s *State) Last() (at time.Time, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lastAt, s.last
}
