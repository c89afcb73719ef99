package target

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/aviaryhq/aviary/internal/connector"
	"github.com/aviaryhq/aviary/internal/connector/message"
	"github.com/aviaryhq/aviary/internal/connector/pipeline"
)

const (
	// pendingEvents and pendingBytes bound the events of one subscriber that are in flight in a
	// sink. A sink keeps an event until its system answers, which may take longer than an attempt
	// may.
	pendingEvents = 1000
	pendingBytes  = 8 << 20
)

// sinkTarget delivers through a sink of internal/connector.
type sinkTarget struct {
	sink    *sharedSink
	timeout time.Duration
	// encode makes the message of an event. to is what the sink takes as the destination. An error
	// is about the event.
	encode func(*Delivery) (to string, m *message.Message, err error)
	// keyOfEvent says that RabbitMQ's routing key is the event's type, not the subscriber's.
	keyOfEvent bool
	inFlight   *semaphore.Weighted // of pendingBytes
	closed     sync.Once
}

// openSink makes t use the sink of key. start makes the sink if no other target uses it.
func (f *Factory) openSink(t *sinkTarget, key sinkKey, start func(connector.Options) runner) (_ Target, err error) {
	if t.sink, err = f.acquire(key, start); err != nil {
		return nil, err
	}
	t.inFlight = semaphore.NewWeighted(pendingBytes)
	return t, nil
}

// Close releases the sink. If no other target uses the sink, Close waits until ctx ends for events
// in flight.
func (t *sinkTarget) Close(ctx context.Context) error {
	t.closed.Do(func() { t.sink.release(ctx) })
	return nil
}

// outcome is the outcome of one delivery of a batch.
type outcome struct {
	index int
	err   error
}

// Deliver hands all of batch to the sink, in its order, and waits for the outcomes.
func (t *sinkTarget) Deliver(ctx context.Context, batch []Delivery) []Result {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	results := make([]Result, len(batch))
	outcomes := make(chan outcome, len(batch)) // with capacity for outcomes that come after Deliver has returned
	finished, left := make([]bool, len(batch)), len(batch)
	finish := func(i int, r Result) {
		r.Latency = time.Since(began)
		results[i], finished[i] = r, true
		left--
	}
	for i := range batch {
		to, m, err := t.encode(&batch[i])
		if err != nil {
			finish(i, Result{Verdict: Refused, Reason: ReasonEvent, Err: err})
			continue
		}
		weight := min(max(m.Size(), pendingBytes/pendingEvents), pendingBytes)
		if t.inFlight.Acquire(ctx, weight) != nil {
			finish(i, t.unanswered(ctx, ReasonBusy))
			continue
		}
		(*t.sink.current.Load()).Send(ctx, to, m, func(err error) {
			t.inFlight.Release(weight)
			outcomes <- outcome{i, err}
		})
	}
	for left > 0 && (ctx.Err() == nil || len(outcomes) > 0) {
		select {
		case o := <-outcomes:
			finish(o.index, t.result(ctx, o.err))
		case <-ctx.Done():
		}
	}
	for i := range finished {
		if !finished[i] {
			finish(i, t.unanswered(ctx, ReasonTimeout))
		}
	}
	return results
}

// result returns what the outcome of a sink means.
func (t *sinkTarget) result(ctx context.Context, err error) Result {
	if err == nil {
		return Result{Verdict: Delivered}
	}
	if reason, refused := pipeline.Refused(err); refused {
		if t.refusesEvent(reason) {
			return Result{Verdict: Refused, Reason: reason, Err: err}
		}
		return unavailable(reason, err)
	}
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return t.unanswered(ctx, ReasonTimeout)
	}
	return unavailable(ReasonConnection, t.withCause(err))
}

// unanswered is the result without an outcome. If the sink has reported an error, that is the
// cause.
func (t *sinkTarget) unanswered(ctx context.Context, reason string) Result {
	stopped, err := connectionError(ctx, ctx.Err(), t.timeout)
	if stopped == ReasonStopped {
		return unavailable(stopped, err)
	}
	if reason == ReasonBusy {
		err = fmt.Errorf("no answer within %s to what was sent before", t.timeout)
	}
	return unavailable(reason, t.withCause(err))
}

// withCause adds to err why the sink fails, if it does. It makes the log repeat that while attempts
// fail.
func (t *sinkTarget) withCause(err error) error {
	cause := t.sink.health.Current()
	if cause == nil {
		return err
	}
	t.sink.health.Remind()
	return fmt.Errorf("%w: %w", err, cause)
}

// refusesEvent reports whether a connector's reason for refusing is about the event. The other
// reasons are about the destination, such as the name of a topic, which people can correct.
func (t *sinkTarget) refusesEvent(reason string) bool {
	switch reason {
	case "too_large", "invalid_record", "invalid_timestamp", "bad_header", "bad_property", "refused_by_broker":
		return true
	case "unroutable":
		return t.keyOfEvent
	}
	return false
}
