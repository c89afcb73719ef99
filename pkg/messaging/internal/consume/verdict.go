package consume

import (
	"errors"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/record"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/retry"
)

// complete carries out the verdict.
func (r *run) complete(w *worker, d *task, err error) {
	if err == nil {
		w.handled++
		d.reusable = r.completions == nil && d.Attempt == 1
		r.ack(w, d)
		return
	}
	// The next steps take time, and d keeps its key's queue meanwhile: messages that were
	// taken along with it must not run before it.
	r.sched.GiveBack(&w.Worker)
	r.failed.restore(d) // what an earlier delivery of it noted while this one was handled
	if d.FirstFailed.IsZero() {
		d.FirstFailed = time.Now()
	}
	delay, reason, err := r.nextAttempt(d, err)
	if d.entry.lost() { // another consumer gets it, or this one again
		if reason == nil {
			d.Attempt, d.Due = d.Attempt+1, time.Now().Add(delay)
		}
		r.failed.note(d)
		w.finish(d)
		return
	}
	if reason != nil {
		r.copyTo(w, d, r.copies.Dead, reason, 0)
	} else {
		r.scheduleRetry(w, d, err, delay)
	}
	if _, ok := r.lines.Allow(); ok {
		r.log.Warn("message not handled", zap.Error(err), zap.String("topic", d.Topic),
			zap.Stringer("message_id", d.ID), zap.Int("attempt", d.Attempt))
	}
}

// nextAttempt is Retry.Next where a method of err may panic. The message is then handled as if its
// handler had panicked.
func (r *run) nextAttempt(d *task, err error) (delay time.Duration, dead, failure error) {
	defer func() {
		if v := recover(); v != nil {
			failure = r.panicked(d, v)
			delay, dead = retry.Next(r.cfg.Retry, d.Delivery, failure)
		}
	}()
	_ = err.Error() // the copy and the log have it
	delay, dead = retry.Next(r.cfg.Retry, d.Delivery, err)
	return delay, dead, err
}

// scheduleRetry arranges for another attempt after delay.
func (r *run) scheduleRetry(w *worker, d *task, err error, delay time.Duration) {
	if r.copies.Retry != nil {
		r.copyTo(w, d, r.copies.Retry, err, delay)
		return
	}
	r.retryInPlace(d, time.Now().Add(delay))
}

// retryInPlace holds d in this process for another attempt.
func (r *run) retryInPlace(d *task, due time.Time) {
	r.metrics.retried.Inc()
	d.copying = nil
	d.Attempt++
	r.hold(d, due, r.completions != nil)
}

// copyTo gives d the verdict that a copy of it goes to another topic. From now on
// it comes back to a worker only for further attempts to store the copy.
func (r *run) copyTo(w *worker, d *task, to *retry.CopyTarget, reason error, delay time.Duration) {
	d.copying = retry.NewCopyJob(d.Delivery, to, reason, delay)
	r.sendCopy(w, d)
}

// sendCopy publishes the copy; finishCopy gets its outcome.
func (r *run) sendCopy(w *worker, d *task) {
	job := d.copying
	p, err := job.To.Publisher()
	switch {
	case p != nil:
		r.sched.StartCopy()
		job.Sent = p
		p.PublishAsync(r.handlerCtx, job.Record, func(id record.MessageID, err error) {
			if err == nil && id.Deduplicated() {
				err = record.ErrDeduplicated // also when the client sent a copy with a delay before earlier ones
			}
			job.Stored, job.Err = err == nil, err
			r.sched.Resume(&d.Item)
		})
	case err == nil: // it is being opened
		r.hold(d, time.Now().Add(job.To.OpenTimeout()), false)
	default:
		r.copyFailed(w, d, err)
	}
}

// finishCopy acknowledges d once its copy is stored, and until then tries again.
func (r *run) finishCopy(w *worker, d *task) {
	job := d.copying
	switch {
	case job.Stored:
		r.countCopy(d)
		r.ack(w, d)
	case d.entry.lost(): // another consumer handles it
		w.finish(d)
	case job.Err == nil:
		r.sendCopy(w, d) // it was not sent yet
	default:
		err := job.Err
		job.Err = nil
		if publisherEnded(err) {
			job.To.Discard(job.Sent)
		}
		r.copyFailed(w, d, err)
	}
}

// publisherEnded reports whether err says that the publisher takes no record any more.
func publisherEnded(err error) bool {
	return errors.Is(err, record.ErrClosed) || errors.Is(err, record.ErrProducerLost) || errors.Is(err, record.ErrTopicTerminated)
}

// countCopy counts a stored copy by its kind.
func (r *run) countCopy(d *task) {
	job := d.copying
	switch {
	case job.To == nil:
		r.metrics.otherSubscription.Inc()
	case job.To.Retry:
		r.metrics.retried.Inc()
	case job.From.Truncated > 0:
		r.metrics.truncated.Inc()
		r.logCopy(d, zap.WarnLevel, "dead letter stored with the beginning of its payload: the whole of it is too large",
			zap.Int("bytes", job.From.Truncated), zap.Int("stored_bytes", job.Kept))
	default:
		r.metrics.deadLettered.Inc()
	}
}

// copyFailed finds out what becomes of d, whose copy was not stored.
func (r *run) copyFailed(w *worker, d *task, err error) {
	job := d.copying
	r.metrics.failedCopy(err)
	tooLarge, terminated := errors.Is(err, record.ErrTooLarge), errors.Is(err, record.ErrTopicTerminated)
	final := tooLarge || terminated
	pause := time.Now().Add(job.Backoff.Next())
	switch {
	case tooLarge && job.Strip(d.Delivery):
		r.sendCopy(w, d)
	case job.To.Retry && (final || job.Late()):
		r.logCopy(d, zap.WarnLevel, "cannot store a copy, the next attempt is made in place", zap.Error(err))
		r.retryInPlace(d, later(job.From.Due, pause))
	case final:
		r.unstorable(w, d, tooLarge, err)
	default:
		r.logCopy(d, zap.WarnLevel, "cannot store a copy, will keep trying", zap.Error(err))
		r.hold(d, pause, false)
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// unstorable truncates a dead letter that is refused for good because it is too large. If it
// cannot be stored even so, it is parked.
func (r *run) unstorable(w *worker, d *task, tooLarge bool, err error) {
	job := d.copying
	if tooLarge && job.Truncate(d.Delivery) {
		r.sendCopy(w, d)
		return
	}
	if !job.Parked {
		job.Parked = true
		r.metrics.parked.Inc()
	}
	r.logCopy(d, zap.ErrorLevel, "dead letter parked: it cannot be stored, and is not acknowledged", zap.Error(err))
	job.Reset(d.Delivery)
	r.hold(d, time.Now().Add(retry.ParkFor), false)
}

// logCopy logs what became of a copy of d, unless there are too many such lines.
func (r *run) logCopy(d *task, level zapcore.Level, message string, fields ...zap.Field) {
	if _, ok := r.lines.Allow(); ok {
		r.log.Log(level, message, append(fields, zap.String("to", d.copying.To.Topic),
			zap.String("topic", d.Topic), zap.Stringer("message_id", d.ID))...)
	}
}

// hold keeps d until due. requeue says that d has left its key's queue, as a late completed
// delivery has.
func (r *run) hold(d *task, due time.Time, requeue bool) {
	e := d.entry // another worker may have d from then on
	if !r.sched.Hold(&d.Item, due, requeue) {
		if !r.stopping() {
			r.failed.note(d)
		}
		return
	}
	if e.lost() { // perhaps before it was held
		r.drop(func(other *task) bool { return other == d })
	}
}

// ack notes that d needs no more handling. Its entry is acknowledged once that holds for all of it.
func (r *run) ack(w *worker, d *task) {
	d.entry.partition.complete(d.entry, 1)
	w.finish(d)
}
