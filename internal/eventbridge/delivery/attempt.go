package delivery

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"strconv"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/eventbridge/event"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/target"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// errStopping: the consumer stops. The message is left to the next one.
var errStopping = errors.New("the worker stops")

// attempt makes one attempt at each message, once the breaker and the rate limit allow it, unless
// stop ends before. It returns the verdicts for the messaging library.
func (w *worker) attempt(stop, ctx context.Context, messages []*messaging.Delivery) []error {
	verdicts := make([]error, len(messages))
	batch, at := make([]target.Delivery, 0, len(messages)), make([]int, 0, len(messages))
	// All events have the same delay before the next attempt, so that they are a batch again.
	jitter := 2*rand.Float64() - 1
	for i, d := range messages {
		t, err := w.prepare(d)
		if err != nil {
			verdicts[i] = w.verdict(d, t.Event, target.Result{Verdict: target.Refused, Err: err}, 1, 0)
			continue
		}
		batch, at = append(batch, t), append(at, i)
	}
	for i, r := range w.deliver(stop, ctx, batch) {
		verdicts[at[i]] = w.verdict(messages[at[i]], batch[i].Event, r, len(batch), jitter)
	}
	return verdicts
}

// prepare decodes and transforms a message for the target. An error is final. If the event could be
// decoded, it is returned even with an error.
func (w *worker) prepare(d *messaging.Delivery) (t target.Delivery, err error) {
	err = guard(w.log, "decoding the event", func() (err error) {
		t.Event, err = event.Decode(d.Payload)
		return err
	})
	if err != nil {
		return t, err
	}
	t.Event.Tenant = d.Properties[model.PropertyTenant]
	t.Retried = d.Attempt > 1
	t.Hops, _ = strconv.Atoi(d.Properties[model.PropertyHops])
	if w.transform == nil {
		return t, nil
	}
	err = guard(w.log, "the transformation", func() (err error) {
		t.Body, t.ContentType, err = w.transform(t.Event)
		return err
	})
	if err != nil {
		return t, fmt.Errorf("cannot transform: %w", err)
	}
	return t, nil
}

// guard calls f. A panic is an error.
func guard(log *zap.Logger, what string, f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("%s panicked: %v", what, v)
			log.Error("panic", zap.Error(err), zap.ByteString("stack", debug.Stack()))
		}
	}()
	return f()
}

// deliver makes one attempt at a batch, and reports to the breaker what the results say about the
// target.
func (w *worker) deliver(stop, ctx context.Context, batch []target.Delivery) (results []target.Result) {
	if len(batch) == 0 {
		return nil
	}
	entered, err := w.admit(stop, len(batch))
	if err != nil {
		return slices.Repeat([]target.Result{{Reason: target.ReasonStopped, Err: err}}, len(batch))
	}
	w.inFlight.Add(int64(len(batch)))
	w.metrics.inFlight.Add(float64(len(batch)))
	err = guard(w.log, "the target", func() error {
		if results = w.target.Deliver(ctx, batch); len(results) != len(batch) {
			return fmt.Errorf("%d results for %d events", len(results), len(batch))
		}
		return nil
	})
	if err != nil {
		results = slices.Repeat([]target.Result{{Reason: "panic", Err: err}}, len(batch))
	}
	w.inFlight.Add(-int64(len(batch)))
	w.metrics.inFlight.Sub(float64(len(batch)))
	w.breaker.leave(entered, results)
	return results
}

// admit waits until the rate limit and the breaker allow an attempt for a number of events, or ctx
// ends. One caller at a time does: if the breaker opens, only one has reserved a part of the rate.
func (w *worker) admit(ctx context.Context, events int) (pass, error) {
	select {
	case w.admitting <- struct{}{}:
		defer func() { <-w.admitting }()
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	if err := w.limit.WaitN(ctx, events); err != nil {
		return 0, err
	}
	return w.breaker.enter(ctx)
}

// verdict logs and counts the result r of an attempt, which had so many events, and turns it into
// the messaging library's verdict on the message. jitter, from -1 to 1, is where the delay before the
// next attempt lies in its spread.
func (w *worker) verdict(d *messaging.Delivery, e event.Event, r target.Result, events int, jitter float64) (err error) {
	if r.Verdict == target.Retry && r.Reason == target.ReasonStopped {
		return errStopping
	}
	now := time.Now()
	a := newAttempt(d.Attempt, e, r)
	a.Time = now.Add(-r.Latency)
	if events > 1 {
		a.Batch = events
	}
	cause := r.Err
	if cause == nil { // the library takes a verdict without an error for a success
		cause = errors.New(a.Outcome)
	}
	switch r.Verdict {
	case target.Delivered:
		w.metrics.age.Observe(max(now.Sub(d.PublishTime), 0).Seconds())
	case target.Refused:
		a.Outcome, err = "dead_letter", messaging.Reject(cause)
	case target.Gone:
		w.setGone(cause)
		err = errStopping // events that are not delivered stay in their topic
	default:
		delay, over := nextAttempt(&w.sub.Delivery.Retry, d.Attempt, d.FirstFailed, now, jitter)
		if over != "" {
			a.Outcome, err = "dead_letter", messaging.Reject(fmt.Errorf("%s: %w", over, cause))
		} else {
			a.Next, err = now.Add(delay), messaging.RetryAfter(cause, delay)
		}
	}
	w.metrics.deliveries[a.Outcome].Inc()
	if r.Latency > 0 { // the target was asked
		w.metrics.seconds[a.Outcome].Observe(r.Latency.Seconds())
	}
	w.attempts.add(a)
	return err
}

// nextAttempt returns the delay before the attempt after the attempt of this number (from 1), or in
// over why there is none. firstFailed is zero if this attempt is the first that failed.
func nextAttempt(r *model.Retry, attempt int, firstFailed, now time.Time, jitter float64) (delay time.Duration, over string) {
	if r.MaxAttempts > 0 && attempt >= r.MaxAttempts {
		return 0, fmt.Sprintf("gave up after %d attempts", attempt)
	}
	delay = time.Duration(r.Schedule[min(attempt, len(r.Schedule))-1])
	delay += time.Duration(jitter * r.Jitter * float64(delay))
	if firstFailed.IsZero() {
		firstFailed = now
	}
	if age := now.Sub(firstFailed); r.MaxAge > 0 && age+delay > time.Duration(r.MaxAge) {
		return 0, fmt.Sprintf("gave up after %d attempts in %s", attempt, age.Round(time.Second))
	}
	return delay, ""
}
