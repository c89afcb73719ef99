package messaging

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"

	"go.uber.org/zap"
)

// HandOver takes one message over; its verdict is given later, through u, by
// whoever has the message then. It is called in the order asked for, and called for
// the next message of that order as soon as it has returned. It may block: then its
// order waits, and further messages are received up to the configured bounds only.
//
// ctx is as with [Handler]. A panic is the verdict of an error, unless there is one.
type HandOver func(ctx context.Context, d *Delivery, u Unsettled)

// Unsettled is a delivery whose verdict is not given yet. It is a value: keeping
// thousands of them costs no goroutine and no allocation. The zero Unsettled is of no
// delivery.
type Unsettled struct{ t *task }

// Settle gives the verdict, as a [Handler] does by what it returns. It may be called
// from any goroutine, also before the HandOver returned, and never blocks. It must be
// called once for each call of the HandOver; calls beyond that, and calls after the
// delivery became void (the subscription's session ended, or Run returned), have no
// effect.
//
// After an error the message is handed over again, or goes where the verdict says,
// as with [Consumer.Run], but those behind it have been handed over meanwhile:
// whoever needs order repeats by itself. An error that is no [Reject] while the
// consumer stops leaves the message to the next consumer.
func (u Unsettled) Settle(err error) {
	t := u.t
	if t == nil || t.late.Or(lateClaimed)&lateClaimed != 0 {
		return
	}
	t.verdict = err
	if t.late.Or(lateSettled)&lateReturned != 0 {
		t.session.late.add(t)
	}
}

// The states of a delivery that was handed over. Whoever sets lateClaimed is the one
// who ends it; it goes to the run's lateQueue once it has both a verdict and no
// HandOver inside it any more, so that nothing else need know of the difference.
const (
	lateClaimed  = 1 << iota // somebody gives the verdict, or has made it void
	lateSettled              // the verdict is there
	lateReturned             // the HandOver returned
)

// RunAsync is [Consumer.Run] for verdicts that are given later: see [HandOver].
// What has no verdict counts against PrefetchMessages and PrefetchBytes.
//
// When ctx ends nothing more is handed over, and RunAsync returns once all that was
// has its verdict, or StopTimeout has passed: the rest is left unacknowledged. When
// the broker ends the session, what has no verdict is void at once, and is delivered
// again by the next session.
func (c *Consumer) RunAsync(ctx context.Context, h HandOver) error {
	if h == nil {
		return errNilHandler
	}
	r, err := c.begin(func(context.Context, *Delivery) error { return nil })
	if err != nil {
		return err
	}
	defer c.end()
	r.handOver = h
	r.sched.async = true
	r.late = &lateQueue{wake: make(chan struct{}, 1)}
	return r.do(ctx)
}

// lateQueue takes verdicts from whoever gives them to the goroutine that carries
// them out. It is bounded by what is unfinished.
type lateQueue struct {
	mu    sync.Mutex
	list  []*task
	spare []*task
	wake  chan struct{}
}

func (q *lateQueue) add(t *task) {
	q.mu.Lock()
	first := len(q.list) == 0
	q.list = append(q.list, t)
	q.mu.Unlock()
	if first {
		select {
		case q.wake <- struct{}{}:
		default:
		}
	}
}

// take returns all that came since the last call. It is valid until the next one.
func (q *lateQueue) take() []*task {
	q.mu.Lock()
	defer q.mu.Unlock()
	got := q.list
	clear(q.spare)
	q.list, q.spare = q.spare[:0], got
	return got
}

// hand hands d over and notes that the HandOver has returned, so that the next
// delivery of its order may start.
func (r *run) hand(w *worker, d *task) {
	d.late.Store(0)
	d.verdict = nil
	r.callHandOver(d)
	w.mu.Lock()
	w.returned = append(w.returned, d)
	w.mu.Unlock()
	switch {
	case d.late.Or(lateReturned)&lateSettled != 0:
		r.late.add(d)
	case d.session.over() && !r.stopping() && d.claim():
		w.finish(d) // its session ended meanwhile: see voidLate
	}
}

func (r *run) callHandOver(d *task) {
	defer func() {
		if v := recover(); v != nil {
			r.metrics.panics.Inc()
			if _, ok := r.lines.Allow(); ok {
				r.log.Error("handler panicked", zap.Any("panic", v), zap.String("topic", d.Topic),
					zap.Stringer("message_id", d.ID), zap.ByteString("stack", debug.Stack()))
			}
			Unsettled{d}.Settle(fmt.Errorf("handler panicked: %v", v))
		}
	}()
	r.handOver(r.grace, &d.Delivery, Unsettled{d})
}

// claim makes the caller the one who ends d; false when somebody else is.
func (d *task) claim() bool { return d.late.Or(lateClaimed)&lateClaimed == 0 }

// settleLate carries out the verdicts of the lateQueue until ended is closed and none
// is left. Acknowledging runs here and not in Settle: it can wait for a connection.
func (r *run) settleLate(ended <-chan struct{}) {
	w := new(worker) // none of the scheduler's: it only ends deliveries
	for over := false; !over; {
		select {
		case <-r.late.wake:
		case <-ended:
			over = true
		}
		for i, d := range r.late.take() {
			switch {
			case d.verdict == nil:
				r.settle(w, d, nil)
			case r.stopping() && !isReject(d.verdict):
				w.finish(d)
			default:
				r.sched.leaveLanes(r.workers)
				r.settle(w, d, d.verdict)
			}
			if i%outcomeRun == outcomeRun-1 {
				r.sched.endLate(w)
			}
		}
		r.sched.endLate(w)
		r.metrics.acked(w)
	}
}

// voidLate makes void what was handed over in a session that is over and has no
// verdict. What a HandOver is still inside of, hand looks after.
func (s *scheduler) voidLate(sess *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for d := s.unfinished.head; d != nil; {
		next := d.next
		if d.session == sess && d.late.Load()&lateReturned != 0 && d.claim() {
			s.end(d)
		}
		d = next
	}
	s.maybeRoom()
}

// endLate ends what has had its verdict.
func (s *scheduler) endLate(w *worker) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endDone(w)
	s.maybeRoom()
	if s.ready.len() > 0 || s.loose.len() > 0 {
		s.wakeWorker()
	}
}

// leaveLanes takes out of their lanes what workers have handed over. One of these
// deliveries is about to enter its lane anew.
func (s *scheduler) leaveLanes(ws []*worker) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range ws {
		s.endDone(w)
	}
	s.wakeWorker()
}

// requeue puts a delivery that is to be handed over again in front of its order's
// queue, which it has left in between.
func (s *scheduler) requeue(d *task) {
	s.waiting++
	l := s.laneOf(d)
	if l == nil {
		s.loose.pushFront(d)
		return
	}
	l.queue.pushFront(d)
	if l.running == 0 && l.queue.len() == 1 {
		s.ready.push(l)
	}
}
