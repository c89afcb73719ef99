package messaging

import (
	"time"

	"go.uber.org/zap"
)

const (
	// stealAfter is how long a worker may be at one message before others take
	// what it had taken along.
	stealAfter = 10 * time.Millisecond
	gaugeEvery = time.Second
)

// stuck is a handler that was reported as stuck.
type stuck struct {
	since time.Time
	topic string
	id    MessageID
}

// watch looks after the workers until the last handler has finished.
func (r *run) watch() {
	every := min(max(r.cfg.StuckAfter/4, time.Millisecond), time.Second)
	if len(r.workers) > 1 {
		every = min(every, stealAfter)
	}
	t := time.NewTicker(every)
	defer t.Stop()
	reported := make(map[*worker]stuck)
	var gauged time.Time
	for now := range t.C {
		if len(r.workers) > 1 {
			r.sched.steal(r.workers, now.Add(-stealAfter))
		}
		for _, w := range r.workers {
			r.watchWorker(w, now, reported)
		}
		if now.Sub(gauged) >= gaugeEvery {
			gauged = now
			r.metrics.gauge(r.sched, r.workers)
		}
		if r.sched.ended() {
			for _, w := range r.workers {
				r.watchWorker(w, time.Now(), reported)
			}
			return
		}
	}
}

// watchWorker reports a handler that takes longer than StuckAfter, and its end.
func (r *run) watchWorker(w *worker, now time.Time, reported map[*worker]stuck) {
	since := w.busy.since()
	was, known := reported[w]
	if known && !since.Equal(was.since) {
		delete(reported, w)
		r.metrics.stuck.Dec()
		r.log.Warn("stuck handler finished", zap.String("topic", was.topic),
			zap.Stringer("message_id", was.id), zap.Duration("elapsed", now.Sub(was.since)))
		known = false
	}
	if known || since.IsZero() || now.Sub(since) < r.cfg.StuckAfter {
		return
	}
	d := w.busy.d.Load()
	if d == nil {
		return
	}
	reported[w] = stuck{since, d.Topic, d.ID}
	r.metrics.stuck.Inc()
	r.log.Warn("handler is stuck", zap.String("topic", d.Topic),
		zap.Stringer("message_id", d.ID), zap.Duration("elapsed", now.Sub(since)))
}
