// Package health logs the error of an operation that is repeated: at once, each minute while it lasts,
// and when the operation has succeeded again. The package imports nothing of this repository.
package health

import (
	"sync"
	"time"

	"go.uber.org/zap"
)

const (
	// changedInterval is the least time between two log lines while the error's text changes: "no
	// answer for 7 s", "for 8 s", or the errors of several connections in turn.
	changedInterval = 10 * time.Second
	// repeatInterval is the time between two log lines while the error stays the same.
	repeatInterval = time.Minute
)

// State is the health of one thing. It is safe for concurrent use.
type State struct {
	log *zap.Logger

	mu       sync.Mutex
	err      error
	since    time.Time
	loggedAt time.Time
	last     error
	lastAt   time.Time
}

// New makes a healthy state that logs to log.
func New(log *zap.Logger) *State { return &State{log: log} }

// Set sets the current error; nil: healthy.
func (s *State) Set(err error) {
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
	if before == nil || before.Error() != err.Error() && now.Sub(s.loggedAt) >= changedInterval {
		s.warn(now)
		return
	}
	s.remind(now)
}

// Remind logs the current error with fields if the last line about it is a minute old. It is for
// callers that call Set only when the error changes.
func (s *State) Remind(fields ...zap.Field) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		s.remind(time.Now(), fields...)
	}
}

func (s *State) remind(now time.Time, fields ...zap.Field) {
	if now.Sub(s.loggedAt) >= repeatInterval {
		s.warn(now, append(fields, zap.Duration("for", now.Sub(s.since).Round(time.Second)))...)
	}
}

func (s *State) warn(now time.Time, fields ...zap.Field) {
	s.loggedAt = now
	s.log.Warn("unhealthy, will keep trying", append(fields, zap.Error(s.err))...)
}

// Forget sets the state to healthy without a log line: the operation is not retried any more.
func (s *State) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = nil
}

// Current returns the current error, nil if healthy.
func (s *State) Current() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Last returns the latest error given to Set and its time, nil if there was none.
func (s *State) Last() (at time.Time, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lastAt, s.last
}
