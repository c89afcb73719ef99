package processor

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strconv"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/eventbridge/event"
	"github.com/aviaryhq/aviary/internal/eventbridge/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry"
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
	e.Tenant = d.Properties["tenant"]
	it = item{message: d, delivery: target.Delivery{Event: e}}
	it.delivery.Hops, _ = strconv.Atoi(d.Properties["hops"])
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
	if w.sub.Order == model.OrderLive {
		if !w.breaker.tryEnter() {
			w.count("lost")
			return nil
		}
	} else if w.breaker.enter(stop) != nil {
		return errStopping
	}
	if w.limit.Wait(stop) != nil {
		w.breaker.leave(noVerdict)
		return errStopping
	}
	results := w.deliver(ctx, []item{it})
	return w.verdict(stop, it, results[0], 1)
}

// refuse returns the verdict on a message that cannot be delivered, whatever the target would say.
func (w *worker) refuse(d *messaging.Delivery, e event.Event, err error) error {
	w.count("dead_letter")
	w.attempts.add(Attempt{
		Time: time.Now(), Event: e.ID, Source: e.Source, Type: e.Type, Attempt: d.Attempt,
		Outcome: "dead_letter", Error: errorText(target.Result{Err: err}),
	})
	if w.sub.Order == model.OrderLive {
		return nil
	}
	return messaging.Reject(err)
}

func (w *worker) count(outcome string) { w.metrics.deliveries[outcome].Inc() }

// deliver makes one attempt for several events and reports the result to the breaker.
func (w *worker) deliver(ctx context.Context, items []item) (results []target.Result) {
	batch := make([]target.Delivery, len(items))
	for i := range items {
		batch[i] = items[i].delivery
	}
	w.inFlight.Add(int64(len(items)))
	w.metrics.inFlight.Add(float64(len(items)))
	overdue := w.overdue()
	defer func() {
		overdue.Stop()
		w.inFlight.Add(-int64(len(items)))
		w.metrics.inFlight.Sub(float64(len(items)))
		if v := recover(); v != nil {
			w.log.Error("a target panicked", zap.Any("panic", v), zap.ByteString("stack", debug.Stack()))
			results = make([]target.Result, len(items))
			for i := range results {
				results[i] = target.Result{Reason: "panic", Err: fmt.Errorf("the target panicked: %v", v)}
			}
			text := errorText(results[0])
			w.lastFailure.Store(&text)
			w.breaker.leave(failing)
		}
	}()
	results = w.target.Deliver(ctx, batch)
	if len(results) != len(items) {
		panic(fmt.Sprintf("%d results for %d events", len(results), len(items)))
	}
	v := verdictOf(results)
	if v == failing {
		text := errorText(results[0])
		w.lastFailure.Store(&text)
	}
	w.breaker.leave(v)
	return results
}

// overdueAfter is how much longer than its timeout an attempt may take before that is logged.
const overdueAfter = time.Minute

// overdue starts a timer that logs a warning if the attempt does not end in time: the attempt
// occupies one of the subscriber's concurrent deliveries.
func (w *worker) overdue() *time.Timer {
	after := time.Duration(w.sub.Delivery.Timeout) + overdueAfter
	return time.AfterFunc(after, func() { w.log.Warn("an attempt has not ended after its timeout", zap.Duration("elapsed", after)) })
}

// verdictOf returns what results say about the target. A target that answers is well, whatever it
// says about the events.
func verdictOf(results []target.Result) verdict {
	stopped := true
	for _, r := range results {
		if r.Verdict != target.Retry {
			return well
		}
		stopped = stopped && r.Reason == target.ReasonStopped
	}
	if stopped {
		return noVerdict
	}
	return failing
}

// verdict turns the result r of an attempt into the messaging library's verdict on the message.
// batch is how many events were delivered together.
func (w *worker) verdict(stop context.Context, it item, r target.Result, batch int) error {
	now, d := time.Now(), it.message
	a := Attempt{
		Time: now.Add(-r.Latency), Event: it.delivery.Event.ID, Source: it.delivery.Event.Source, Type: it.delivery.Event.Type,
		Attempt: d.Attempt, Outcome: r.Verdict.String(), Reason: r.Reason, Status: r.Status, Latency: r.Latency, Error: errorText(r),
	}
	if batch > 1 {
		a.Batch = batch
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
	case w.sub.Order == model.OrderLive:
		a.Outcome = "lost"
	case r.Verdict == target.Refused:
		a.Outcome, err = "dead_letter", messaging.Reject(cause)
	case r.Verdict == target.Gone:
		err = errStopping
	default:
		delay, over := w.schedule.next(d.Attempt, d.FirstFailed, now, r.RetryAfter)
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
				as := registry.Condition{Revision: w.revision.Load()}
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
