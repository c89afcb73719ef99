package consume

import (
	"context"
	"sync"
	"time"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/record"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/retry"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/schedule"
)

// AsyncHandler takes one message over. Its verdict is given later, by [PendingDelivery.Complete],
// from any goroutine. Calls follow [ConsumerConfig].Order: the next message of a key or a
// partition, or of all, is handed over as soon as the call for the one before has returned, whether
// that has its verdict or not. The AsyncHandler may block: then its key, its partition, or all
// wait, and further messages are received up to the configured bounds only. Up to Concurrency calls
// run at once.
//
// ctx is as with [Handler]. A panic counts as an error given as the verdict, unless a verdict was
// given before.
type AsyncHandler func(ctx context.Context, d *record.Delivery, p PendingDelivery)

// PendingDelivery is one attempt at a message whose verdict is not given yet. It is a value:
// thousands of them cost no goroutine and no allocation. The zero PendingDelivery is of no message.
type PendingDelivery struct {
	t       *task
	attempt uint32
}

// Complete gives the verdict, as the returned error of a [Handler] does. It may be called from any
// goroutine, also before the AsyncHandler has returned, and never blocks. It must be called once
// for each call of the AsyncHandler. Further calls have no effect, also if the message has been
// handed over again meanwhile. Calls after the delivery became void (the subscription's session
// ended, or RunAsync returned) have no effect either.
//
// After an error the message is handed over again, or goes where the verdict says, as with
// [Consumer.Run]. Later messages have been handed over meanwhile: a caller that needs order must
// repeat the message itself. While the consumer stops, an error that is not a [Reject] leaves the
// message to the next consumer.
func (p PendingDelivery) Complete(err error) {
	if p.t == nil || !p.t.claim(p.attempt) {
		return
	}
	p.t.verdict = err
	if p.t.pending.Or(pendingCompleted)&pendingReturned != 0 {
		p.t.session.completions.add(p.t)
	}
}

// The states of an attempt that was handed over, in the low bits of task.pending; the attempt's
// number is above them. The goroutine that sets pendingClaimed ends the attempt. The attempt goes
// to the run's completionQueue once it has a verdict and its AsyncHandler has returned: other code
// need not distinguish the two.
const (
	pendingClaimed   = 1 << iota // somebody gives the verdict, or has made it void
	pendingCompleted             // the verdict is there
	pendingReturned              // the AsyncHandler returned

	pendingBits = iota
)

// beginAttempt makes earlier attempts' verdicts have no effect, and returns the attempt's number.
func (d *task) beginAttempt() uint32 {
	attempt := d.pending.Load()>>pendingBits + 1
	d.verdict = nil
	d.pending.Store(attempt << pendingBits)
	return attempt & (1<<(32-pendingBits) - 1)
}

// claim makes the caller the one who ends an attempt; false when somebody else is, or the attempt
// has ended.
func (d *task) claim(attempt uint32) bool {
	for {
		state := d.pending.Load()
		if state>>pendingBits != attempt || state&pendingClaimed != 0 {
			return false
		}
		if d.pending.CompareAndSwap(state, state|pendingClaimed) {
			return true
		}
	}
}

// RunAsync is [Consumer.Run] for verdicts that are given later: see [AsyncHandler]. Messages
// without a verdict count against PrefetchMessages and PrefetchBytes; after StuckAfter they are
// logged and counted as stuck. Errors are those of Run.
//
// When ctx ends, no more messages are handed over. RunAsync returns when all messages that were
// handed over have their verdicts, or after StopTimeout; the others stay unacknowledged. When the
// broker ends the session, messages without a verdict are void at once, and the next session
// delivers them again.
func (c *Consumer) RunAsync(ctx context.Context, h AsyncHandler) error {
	if h == nil {
		return errNilHandler
	}
	r, err := c.begin(func(context.Context, *record.Delivery) error { return nil }, true)
	if err != nil {
		return err
	}
	defer c.end()
	r.async = h
	r.completions = &completionQueue{wake: make(chan struct{}, 1)}
	return r.do(ctx)
}

// completionQueue passes verdicts to the goroutine that executes
// them. The number of unfinished messages bounds it.
type completionQueue struct {
	mu    sync.Mutex
	list  []*task
	spare []*task
	wake  chan struct{}
}

func (q *completionQueue) add(t *task) {
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
func (q *completionQueue) take() []*task {
	q.mu.Lock()
	defer q.mu.Unlock()
	got := q.list
	clear(q.spare)
	q.list, q.spare = q.spare[:0], got
	return got
}

// hand hands d over and notes that the AsyncHandler has returned, so that the next
// delivery of its order may start.
func (r *run) hand(w *worker, d *task) {
	attempt := d.beginAttempt()
	d.handedAt.Store(time.Now().UnixNano())
	r.callAsync(d, PendingDelivery{d, attempt})
	w.HandlerReturned(&d.Item)
	switch {
	case d.pending.Or(pendingReturned)&pendingCompleted != 0:
		d.session.completions.add(d)
	case d.session.Over() && !r.stopping() && d.claim(attempt):
		r.failed.note(d)
		w.finish(d) // its session ended meanwhile: see voidPending
	}
}

func (r *run) callAsync(d *task, p PendingDelivery) {
	defer func() {
		if v := recover(); v != nil {
			p.Complete(r.panicked(d, v))
		}
	}()
	r.async(r.handlerContext(d), d.Delivery, p)
}

// completeRun is how many completions are carried out before receivers are woken.
const completeRun = 256

// runCompletions carries out the verdicts of the completionQueue until ended is closed and none
// is left.
func (r *run) runCompletions(ended <-chan struct{}) {
	w := new(worker) // not one of the scheduler's workers: it only ends deliveries
	for over := false; !over; {
		select {
		case <-r.completions.wake:
		case <-ended:
			over = true
		}
		for i, d := range r.completions.take() {
			switch {
			case d.verdict == nil:
				r.complete(w, d, nil)
			case r.stopping() && !r.rejected(d):
				w.finish(d)
			default:
				r.sched.EndReturned(r.schedulerWorkers())
				r.complete(w, d, d.verdict)
			}
			if i%completeRun == completeRun-1 {
				r.sched.EndFinished(&w.Worker)
			}
		}
		r.sched.EndFinished(&w.Worker)
		r.count(w)
	}
}

// rejected reports whether d's verdict is a Reject. A verdict whose own methods panic is not.
func (r *run) rejected(d *task) (yes bool) {
	defer func() {
		if v := recover(); v != nil {
			_ = r.panicked(d, v)
		}
	}()
	return retry.IsReject(d.verdict)
}

// voidPending makes deliveries of an ended session void that were handed over and have no
// verdict. hand does that for deliveries whose AsyncHandler still runs.
func (r *run) voidPending(s *session) {
	r.sched.Void(&s.Group, func(it *schedule.Item) bool {
		d := taskOf(it)
		state := d.pending.Load()
		if state&pendingReturned == 0 || !d.claim(state>>pendingBits) {
			return false
		}
		r.failed.note(d)
		return true
	})
}
