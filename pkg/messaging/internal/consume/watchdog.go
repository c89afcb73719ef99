package consume

import (
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/record"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/schedule"
)

const (
	// reclaimAfter is how long a worker may be at one message before others take
	// the other messages that it has taken.
	reclaimAfter = 10 * time.Millisecond
	// sessionsEvery is how often sessions are looked at for messages that were dropped, and gauges
	// are set.
	sessionsEvery = time.Second
	// maxReported bounds how many deliveries are reported as stuck at a time.
	maxReported = 100
)

// stuck is a delivery that is reported as stuck.
type stuck struct {
	topic string
	id    record.MessageID
	since time.Time
}

// watchdog looks after the workers, and reports what takes too long: a handler that does not
// return, and, with RunAsync, a message without a verdict.
type watchdog struct {
	r        *run
	workers  []*schedule.Worker
	reported map[*record.Delivery]stuck
}

// watch runs until ended is closed, behind the last handler.
func (r *run) watch(ended <-chan struct{}) {
	workers := r.schedulerWorkers()
	dog := watchdog{r: r, workers: workers, reported: make(map[*record.Delivery]stuck)}
	reclaim, sessions := time.NewTicker(reclaimAfter), time.NewTicker(sessionsEvery)
	look := time.NewTicker(min(max(r.cfg.StuckAfter/4, time.Millisecond), time.Second))
	defer reclaim.Stop()
	defer look.Stop()
	defer sessions.Stop()
	if len(workers) == 1 {
		reclaim.Stop() // no other worker takes anything
	}
	for {
		select {
		case now := <-reclaim.C:
			r.sched.Reclaim(workers, now.Add(-reclaimAfter))
		case now := <-look.C:
			dog.look(now)
		case <-sessions.C:
			r.lookAtSessions()
			r.metrics.gauge(r.sched, r.workers)
		case <-ended:
			dog.look(time.Now())
			r.metrics.stuck.Sub(float64(len(dog.reported))) // without a verdict, and void now
			return
		}
	}
}

// lookAtSessions ends those whose underlying consumers have dropped messages, and reports to
// receivers when no message waits for them.
func (r *run) lookAtSessions() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for s := range r.sessions {
		if len(s.ch) > 0 || r.c.pauses.of(s.src.String()) != nil {
			continue
		}
		if s.arrivals.droppedAtTheEnd() {
			s.abort(errDropped)
		}
		select {
		case s.idle <- struct{}{}:
		default:
		}
	}
}

// anySessionOver reports whether a session has ended and its receiver has not noticed.
func (r *run) anySessionOver() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for s := range r.sessions {
		if s.Over() || s.failure() != nil {
			return true
		}
	}
	return false
}

// schedulerWorkers are the workers as the scheduler knows them.
func (r *run) schedulerWorkers() []*schedule.Worker {
	all := make([]*schedule.Worker, len(r.workers))
	for i, w := range r.workers {
		all[i] = &w.Worker
	}
	return all
}

// look reports newly stuck messages, and those that are no longer stuck.
func (g *watchdog) look(now time.Time) {
	found := make(map[*record.Delivery]stuck)
	g.r.sched.Running(g.workers, func(it *schedule.Item, since time.Time) {
		if now.Sub(since) >= g.r.cfg.StuckAfter {
			d := taskOf(it)
			found[d.Delivery] = stuck{d.Topic, d.ID, since}
		}
	})
	if g.r.completions != nil {
		g.r.sched.Oldest(func(it *schedule.Item) bool {
			d := taskOf(it)
			if handed := d.handedAt.Load(); handed != 0 && d.pending.Load()&pendingClaimed == 0 {
				since := time.Unix(0, handed)
				if now.Sub(since) < g.r.cfg.StuckAfter {
					return false // those behind it came later
				}
				found[d.Delivery] = stuck{d.Topic, d.ID, since}
			}
			return len(found) < maxReported
		})
	}
	g.report(found, now)
}

func (g *watchdog) report(found map[*record.Delivery]stuck, now time.Time) {
	for d, was := range g.reported {
		if is, still := found[d]; still && is.since.Equal(was.since) {
			continue
		}
		delete(g.reported, d)
		g.r.metrics.stuck.Dec()
		g.r.log.Warn("stuck message finished", zap.String("topic", was.topic),
			zap.Stringer("message_id", was.id), zap.Duration("elapsed", now.Sub(was.since)))
	}
	for d, is := range found {
		if _, known := g.reported[d]; known {
			continue
		}
		g.reported[d] = is
		g.r.metrics.stuck.Inc()
		what := "handler is stuck"
		if g.r.completions != nil {
			what = "message has no verdict"
		}
		g.r.log.Warn(what, zap.String("topic", is.topic),
			zap.Stringer("message_id", is.id), zap.Duration("elapsed", now.Sub(is.since)))
	}
}
