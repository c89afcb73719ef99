package delivery

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"strconv"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/eventbridge/event"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/store"
	"github.com/aviaryhq/aviary/internal/eventbridge/target"
	"github.com/aviaryhq/aviary/pkg/backoff"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// item is an event on its way to the target.
type item struct {
	message  *messaging.Delivery
	delivery target.Delivery
}

// prepare decodes and transforms a message for the target. An error is final. If the event could be
// decoded, it is returned even with an error.
func (w *worker) prepare(d *messaging.Delivery) (it item, err error) {
	defer func() {
		if v := recover(); v != nil {
			w.log.Error("a transformation panicked", zap.Any("panic", v), zap.ByteString("stack", debug.Stack()))
			err = fmt.Errorf("the transformation panicked: %v", v)
		}
	}()
	e, err := event.Decode(d.Payload)
	if err != nil {
		return item{}, err
	}
	e.Tenant = d.Properties[model.PropertyTenant]
	it = item{message: d, delivery: target.Delivery{Event: e, Retried: d.Attempt > 1}}
	it.delivery.Hops, _ = strconv.Atoi(d.Properties[model.PropertyHops])
	if w.transform != nil {
		it.delivery.Body, it.delivery.ContentType, err = w.transform(e)
		if err != nil {
			return it, fmt.Errorf("cannot transform: %w", err)
		}
	}
	return it, nil
}

// handle makes one attempt at one message, once the breaker and the rate limit allow it, unless
// stop ends before. It returns the verdict.
func (w *worker) handle(stop, ctx context.Context, d *messaging.Delivery) error {
	it, err := w.prepare(d)
	if err != nil {
		return w.refuse(d, it.delivery.Event, err)
	}
	entered, err := w.admit(stop, 1)
	if err != nil {
		return err
	}
	results := w.deliver(ctx, []item{it}, entered)
	return w.verdict(stop, it, results[0], newShared(1))
}

// admit waits until the breaker and the rate limit allow an attempt for a number of events, or ctx
// ends. One caller at a time does: if the breaker opens, only one has reserved a part of the rate in
// vain.
func (w *worker) admit(ctx context.Context, events int) (pass, error) {
	select {
	case w.admitting <- struct{}{}:
		defer func() { <-w.admitting }()
	case <-ctx.Done():
		return 0, errStopping
	}
	for {
		entered, err := w.breaker.enter(ctx)
		if err != nil {
			return 0, errStopping
		}
		if w.limit.WaitN(ctx, events) != nil {
			w.breaker.leave(entered, answer{kind: notMade})
			return 0, errStopping
		}
		if w.breaker.valid(entered) { // it may have opened meanwhile
			return entered, nil
		}
	}
}

// refuse returns the verdict on a message that cannot be delivered, whatever the target would say.
func (w *worker) refuse(d *messaging.Delivery, e event.Event, err error) error {
	w.count("dead_letter")
	a := newAttempt(d.Attempt, e, target.Result{Verdict: target.Refused, Err: err})
	a.Outcome = "dead_letter"
	w.attempts.add(a)
	return messaging.Reject(err)
}

func (w *worker) count(outcome string) { w.metrics.deliveries[outcome].Inc() }

// deliver makes one attempt for several events, which have entered the breaker. It reports to the
// breaker what the results say about the target.
func (w *worker) deliver(ctx context.Context, items []item, entered pass) []target.Result {
	w.inFlight.Add(int64(len(items)))
	w.metrics.inFlight.Add(float64(len(items)))
	overdue := w.overdue(len(items))
	results := w.attempt(ctx, items)
	overdue.Stop()
	w.inFlight.Add(-int64(len(items)))
	w.metrics.inFlight.Sub(float64(len(items)))
	a := answerOf(results)
	if a.kind == unavailable {
		text := errorText(results[0])
		w.lastFailure.Store(&text)
	}
	w.breaker.leave(entered, a)
	return results
}

// attempt asks the target to deliver. A panic of the target is a failure of each event.
func (w *worker) attempt(ctx context.Context, items []item) (results []target.Result) {
	batch := make([]target.Delivery, len(items))
	for i := range items {
		batch[i] = items[i].delivery
	}
	defer func() {
		if v := recover(); v != nil {
			w.log.Error("a target panicked", zap.Any("panic", v), zap.ByteString("stack", debug.Stack()))
			results = make([]target.Result, len(items))
			for i := range results {
				results[i] = target.Result{Reason: "panic", Err: fmt.Errorf("the target panicked: %v", v)}
			}
		}
	}()
	results = w.target.Deliver(ctx, batch)
	if len(results) != len(items) {
		panic(fmt.Sprintf("%d results for %d events", len(results), len(items)))
	}
	return results
}

// overdueAfter is how much longer than its timeouts an attempt may take before that is logged.
const overdueAfter = time.Minute

// overdue starts a timer that logs a warning if the attempt does not end in time: the attempt
// occupies one of the subscriber's concurrent deliveries. A batch of n events may take 2n-1
// requests, each with the timeout.
func (w *worker) overdue(events int) *time.Timer {
	requests := 2*events - 1
	after := time.Duration(requests)*time.Duration(w.sub.Delivery.Timeout) + overdueAfter
	return time.AfterFunc(after, func() { w.log.Warn("an attempt has not ended after its timeout", zap.Duration("elapsed", after)) })
}

// answerOf returns what results say about the target. A target that answers is available, whatever
// it says about the events.
func answerOf(results []target.Result) (a answer) {
	for _, r := range results {
		kind := answered
		switch {
		case r.Verdict != target.Retry:
		case r.Reason == target.ReasonStopped:
			kind = notMade
		case r.Unavailable:
			kind = unavailable
			a.retryAfter = max(a.retryAfter, r.RetryAfter)
		}
		if kind == answered || a.kind != answered && kind != notMade {
			a.kind = kind
		}
	}
	return a
}

// shared is what the events of one attempt have in common.
type shared struct {
	events int     // how many there are
	jitter float64 // of the delay before the next attempt, from -1 to 1
}

func newShared(events int) shared { return shared{events, 2*rand.Float64() - 1} }

// verdict turns the result r of an attempt into the messaging library's verdict on the message.
func (w *worker) verdict(stop context.Context, it item, r target.Result, of shared) error {
	now, d := time.Now(), it.message
	a := newAttempt(d.Attempt, it.delivery.Event, r)
	a.Time = now.Add(-r.Latency)
	if of.events > 1 {
		a.Batch = of.events
	}
	cause := r.Err
	if cause == nil {
		cause = errors.New(a.Outcome)
	}
	var err error
	switch {
	case r.Verdict == target.Delivered:
		w.metrics.age.Observe(max(now.Sub(d.PublishTime), 0).Seconds())
	case r.Verdict == target.Retry && r.Reason == target.ReasonStopped:
		return errStopping
	case r.Verdict == target.Refused:
		a.Outcome, err = "dead_letter", messaging.Reject(cause)
	case r.Verdict == target.Gone:
		err = errStopping
	default:
		delay, over := w.schedule.next(d.Attempt, d.FirstFailed, now, of.jitter)
		if over != "" {
			a.Outcome, err = "dead_letter", messaging.Reject(fmt.Errorf("%s: %w", over, cause))
		} else {
			a.Next, err = now.Add(delay), messaging.RetryAfter(cause, delay)
		}
	}
	w.count(a.Outcome)
	w.metrics.seconds[a.Outcome].Observe(r.Latency.Seconds())
	w.attempts.add(a)
	if r.Verdict == target.Gone {
		w.disable(cause)
		<-stop.Done() // events that are not delivered stay in their topic
	}
	return err
}

// maxDisablePause is the longest pause between attempts to disable a subscriber.
const maxDisablePause = 10 * time.Second

// disable disables the subscriber, because its target takes no events any more.
func (w *worker) disable(cause error) {
	w.gone.Do(func() {
		w.breaker.end()
		w.log.Warn("the target accepts no more events (410 Gone): disabling the subscriber", zap.Error(cause))
		go func() {
			pause := backoff.Backoff{Max: maxDisablePause}
			for w.ctx.Err() == nil {
				// The target rejected the definition that this worker has, not one that the
				// subscriber may get meanwhile.
				as := store.Condition{Revision: w.revision.Load()}
				_, err := w.p.source.ChangeState(w.ctx, w.sub.Bus, w.sub.Name, model.Disabled, "410 Gone", as)
				if err == nil || w.ctx.Err() != nil {
					return
				}
				if !errors.Is(err, model.ErrConflict) { // the conflict is with a change that this worker will see soon
					w.setUnhealthy(fmt.Errorf("cannot disable the subscriber: %w", err))
				}
				pause.Wait(w.ctx)
			}
		}()
	})
}
