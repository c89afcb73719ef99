package consume

import (
	"context"
	"time"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/clientquirks"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/schedule"
)

// close ends a session: tasks that have not started are dropped, running ones finish, then
// the last acknowledgements are sent and the underlying consumer closes. After that
// the broker gives all unacknowledged messages to the next subscriber.
//
// A session that failed does not wait for handlers for long: they keep their keys waiting, and
// nothing else. Their messages are delivered again. Another one waits longer, but no longer than
// for a handler that is not stuck.
func (r *run) close(s *session) {
	defer r.c.parent.Watched.Delete(s.name)
	s.end()
	if s.failure() != nil {
		s.owned.end(ErrOwnershipLost)
	}
	r.drop(func(d *task) bool { return d.session == s && !d.copyStored() })
	if r.completions != nil && !r.stopping() {
		r.voidPending(s)
	}
	r.awaitHandlers(s)
	// With a broker that answers nothing, acknowledging and closing wait for their own timeouts:
	// that must not keep Run.
	r.briefly(func(ctx context.Context) {
		clientquirks.Within(ctx, s.closeAcks)
		// Behind the closing the broker may deliver the partitions to another consumer. A service that
		// keeps state for them has released it by then.
		s.owned.end(ErrOwnershipLost)
		s.owned.awaitCalls(ctx)
	})
	r.briefly(func(ctx context.Context) {
		clientquirks.Within(ctx, func() { clientquirks.CloseReceiving(s.raw, s.ch) })
	})
}

// giveUp ends a session that has received nothing.
func (r *run) giveUp(s *session) {
	defer r.c.parent.Watched.Delete(s.name)
	r.endOwnership(s)
	clientquirks.CloseReceiving(s.raw, s.ch)
}

// drop drops the tasks that match and have not started, and remembers their failed
// attempts. It calls match under the scheduler's lock.
func (r *run) drop(match func(*task) bool) {
	r.sched.Drop(func(it *schedule.Item) bool {
		d := taskOf(it)
		if !match(d) {
			return false
		}
		r.failed.note(d)
		return true
	})
}

// endOwnership ends the ownerships (OnOwned) of a session that does not begin.
func (r *run) endOwnership(s *session) {
	s.owned.end(ErrOwnershipLost)
	r.briefly(s.owned.awaitCalls)
}

// awaitHandlers waits for the running handlers of an ended session: until the handlers'
// context ends when the run stops, and for a time otherwise.
func (r *run) awaitHandlers(s *session) {
	unhook := context.AfterFunc(r.handlerCtx, r.sched.Wake)
	defer unhook()
	timeout := closeTimeout
	if s.failure() == nil {
		timeout = r.cfg.StuckAfter
	}
	began := time.Now()
	wake := time.AfterFunc(timeout, r.sched.Wake)
	defer wake.Stop()
	r.sched.AwaitEnd(&s.Group, func() bool {
		return r.handlerCtx.Err() != nil || !r.stopping() && time.Since(began) >= timeout
	})
}

// briefly calls f with a context that ends after StopTimeout.
func (r *run) briefly(f func(ctx context.Context)) {
	ctx, cancel := context.WithTimeout(context.Background(), r.cfg.StopTimeout)
	defer cancel()
	f(ctx)
}

// closeTimeout is how long a session that failed waits for its handlers, so that messages that
// they are about to finish are not handled twice.
const closeTimeout = 500 * time.Millisecond
