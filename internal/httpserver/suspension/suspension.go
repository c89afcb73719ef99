// Package suspension refuses requests for a topic that stores nothing now: the topic is not open,
// is lost, or has not acknowledged a request in time. Otherwise each request would fill the queue
// with records that its sender will send again. A suspension for a late acknowledgement ends when
// everything queued is acknowledged. Of httpserver the package may import refusal only.
package suspension

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/httpserver/refusal"
	"github.com/aviaryhq/aviary/internal/truncate"
)

// Suspension says whether requests for one topic are refused now, and why. Its methods may be
// called concurrently.
type Suspension struct {
	why   func() error
	cause atomic.Pointer[error]
	late  chan struct{} // a request was not acknowledged in time
}

// New returns a Suspension that refuses no requests. why returns why connecting to Pulsar fails,
// nil if it does not; why itself may be nil.
func New(why func() error) *Suspension {
	return &Suspension{why: why, late: make(chan struct{}, 1)}
}

// Begin refuses requests because of cause until End.
func (s *Suspension) Begin(cause error) { s.cause.Store(&cause) }

// End accepts requests again.
func (s *Suspension) End() { s.cause.Store(nil) }

// NoteLate refuses requests, because one was not acknowledged in time, until Run has found that
// everything is.
func (s *Suspension) NoteLate() {
	err := fmt.Errorf("the broker has not acknowledged requests in time since %s", time.Now().UTC().Format(time.RFC3339))
	if !s.cause.CompareAndSwap(nil, &err) {
		return
	}
	select {
	case s.late <- struct{}{}:
	default:
	}
}

// Err returns why requests are refused now, nil if they are not.
func (s *Suspension) Err() error {
	cause := s.cause.Load()
	if cause == nil {
		return nil
	}
	return refusal.WithCause(*cause, s.why)
}

// Refusal returns the answer to a request, nil if it is not refused.
func (s *Suspension) Refusal() error {
	if err := s.Err(); err != nil {
		return refusal.Unavailable("pulsar_unavailable", refusal.RetryUnavailable, "Pulsar is unavailable: %s", truncate.Text(err.Error(), refusal.MaxReason))
	}
	return nil
}

// Run ends what NoteLate began, once flush returns without an error. It returns nil when ctx ends
// while no request is late, and the error of flush when flush fails, also because ctx has ended.
func (s *Suspension) Run(ctx context.Context, log *zap.Logger, flush func(context.Context) error) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.late:
		}
		if s.cause.Load() == nil {
			continue
		}
		began := time.Now()
		log.Warn("refusing requests until the broker acknowledges all queued records", zap.Error(s.Err()))
		if err := flush(ctx); err != nil {
			return err
		}
		s.End()
		log.Info("accepting requests again", zap.Duration("after", time.Since(began)))
	}
}
