package messaging

import (
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"
)

// complete carries out the verdict.
func (r *run) complete(w *worker, d *task, err error) {
	if err == nil {
		r.handled.Add(1)
		w.handled++
		r.ack(w, d)
		return
	}
	// Whatever follows takes time, and d keeps its key's lane meanwhile: what was
	// taken along with it must not run before it.
	r.sched.GiveBack(&w.Worker)
	if d.FirstFailed.IsZero() {
		d.FirstFailed = time.Now()
	}
	var v *verdict
	named := errors.As(err, &v)
	switch {
	case named && v.reject:
		r.copyTo(d, r.copies.dead, err, 0)
	case r.cfg.Retry.MaxAttempts > 0 && d.Attempt >= r.cfg.Retry.MaxAttempts:
		r.copyTo(d, r.copies.dead, fmt.Errorf("gave up after %d attempts: %w", d.Attempt, err), 0)
	default:
		delay := r.cfg.Retry.delay(d.Attempt)
		if named {
			delay = v.after
		}
		r.again(d, err, max(delay, 0))
	}
	if _, ok := r.lines.Allow(); ok {
		r.log.Warn("message not handled", zap.Error(err), zap.String("topic", d.Topic),
			zap.Stringer("message_id", d.ID), zap.Int("attempt", d.Attempt))
	}
}

// again arranges for another attempt after delay.
func (r *run) again(d *task, err error, delay time.Duration) {
	if r.copies.retry != nil {
		r.copyTo(d, r.copies.retry, err, delay)
		return
	}
	r.metrics.retried.Inc()
	d.Attempt++
	r.hold(d, time.Now().Add(delay))
}

// copyTo gives d the verdict that a copy of it goes to another topic. From now on
// it comes back to a worker for that only, however often it takes.
func (r *run) copyTo(d *task, to *copyTarget, reason error, delay time.Duration) {
	d.copying = newCopyJob(d, to, reason, delay)
	r.sendCopy(d)
}

// sendCopy publishes the copy; finishCopy hears its outcome.
func (r *run) sendCopy(d *task) {
	p := d.copying.to.publisher()
	if p == nil { // being opened
		r.hold(d, time.Now().Add(d.copying.to.patience()))
		return
	}
	r.sched.StartCopy()
	p.PublishAsync(r.grace, d.copying.record, func(_ MessageID, err error) {
		d.copying.settled, d.copying.err = err == nil, err
		r.sched.Resume(&d.Item)
	})
}

// finishCopy acknowledges d once its copy is stored, and until then tries again.
func (r *run) finishCopy(w *worker, d *task) {
	job := d.copying
	switch {
	case job.settled:
		job.to.result.Inc()
		r.ack(w, d)
	case job.err == nil:
		r.sendCopy(d) // it was not sent yet
	default:
		if _, ok := r.lines.Allow(); ok {
			r.log.Warn("cannot store a copy, will keep trying", zap.Error(job.err), zap.String("to", job.to.topic),
				zap.String("topic", d.Topic), zap.Stringer("message_id", d.ID))
		}
		job.err = nil
		r.hold(d, time.Now().Add(job.backoff.Next()))
	}
}

// hold keeps d until due.
func (r *run) hold(d *task, due time.Time) {
	requeue := r.completions != nil && d.copying == nil
	if !r.sched.Hold(&d.Item, due, requeue) && !r.stopping() {
		r.failed.note(d)
	}
}

// ack notes that d needs no more handling. Its entry is acknowledged once that holds for all of it.
func (r *run) ack(w *worker, d *task) {
	d.entry.partition.complete(d.entry, 1)
	w.finish(d)
}
