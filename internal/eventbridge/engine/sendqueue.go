package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/pkg/backoff"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// topicWriter writes to an open send topic.
type topicWriter interface {
	// put stores copies. It returns the stored ones as done, and those that may not be stored as
	// left, with the reason. After an error the store cannot be used any more.
	put(ctx context.Context, entries []entry) (done, left []entry, err error)
	close(ctx context.Context)
}

// entry is a copy in flight.
type entry struct {
	position int64
	record   *messaging.Record
	size     int
	of       *message
}

// sendQueue stores the copies for one subscriber in the order in which they were added; for an
// ordered subscriber, the copies of one partition. While one group of copies is being stored, the
// next group gathers. A goroutine works for the queue while there are copies, and for a while
// after.
type sendQueue struct {
	cfg        Config
	subscriber *model.Subscriber // any revision of it: UID, name and order never change
	ordered    bool
	open       func(context.Context) (topicWriter, error)
	openSlots  openSlots
	log        *zap.Logger
	metrics    *busMetrics
	ctx        context.Context // the life of the queue
	end        context.CancelFunc
	working    sync.WaitGroup

	mu          sync.Mutex
	queue       []entry
	count       int // copies that are not finished: in the queue or in flight
	bytes       int64
	last        int64 // position of the copy that was added last
	stored      int64 // position up to which all copies are finished
	redelivered []entry
	notFull     chan struct{} // closed when the queue is not full any more; nil: no caller waits
	wake        chan struct{} // holds one element when the queue has copies
	running     bool
	deleted     bool // the subscriber was deleted; ctx has ended
	unhealthy   error
	since       time.Time
}

const (
	// groupRecords bounds the copies that are stored together.
	groupRecords = 500
	// queueRecords bounds the copies that are not stored: when the queue is full, the partition of
	// the bus that the next copy comes from waits.
	queueRecords = 1000
	// idleAfter is how long a queue without copies keeps its producer.
	idleAfter = time.Minute
)

// add adds e to the queue. While the queue is full it waits, until ctx ends: then it returns false,
// and has added nothing.
func (q *sendQueue) add(ctx context.Context, e entry) bool {
	q.mu.Lock()
	for !q.deleted && q.count > 0 && (q.count >= queueRecords || q.bytes+int64(e.size) > q.cfg.QueueBytes) {
		if q.notFull == nil {
			q.notFull = make(chan struct{})
		}
		notFull := q.notFull
		q.mu.Unlock()
		select {
		case <-notFull:
		case <-ctx.Done():
			return false
		case <-q.ctx.Done(): // the queue ends, or its subscriber was deleted
		}
		q.mu.Lock()
		if q.ctx.Err() != nil && !q.deleted {
			q.mu.Unlock()
			return false
		}
	}
	defer q.mu.Unlock()
	if q.deleted {
		e.of.done(nil)
		return true
	}
	if q.ctx.Err() != nil {
		return false
	}
	if q.ordered && e.position <= q.last {
		// The broker delivers the event again. Before, it was added, or did not match the rules of
		// that time.
		if e.position <= q.stored {
			e.of.done(nil)
		} else {
			q.redelivered = append(q.redelivered, e)
		}
		return true
	}
	q.last = e.position
	q.queue = append(q.queue, e)
	q.count++
	q.bytes += int64(e.size)
	if !q.running {
		q.running = true
		q.working.Go(q.run)
	}
	select {
	case q.wake <- struct{}{}:
	default:
	}
	return true
}

// forget drops the queued copies, because the subscriber was deleted. Its events do not wait for
// copies that are being stored.
func (q *sendQueue) forget() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.deleted = true
	q.end()
}

// take waits for copies, and takes a group of them out of the queue. It returns nil if the queue
// was idle, or ends.
func (q *sendQueue) take() []entry {
	var idle *time.Timer
	for {
		q.mu.Lock()
		if q.ctx.Err() != nil {
			q.mu.Unlock()
			return nil
		}
		if n := q.group(); n > 0 {
			group := append([]entry(nil), q.queue[:n]...)
			if clear(q.queue[:n]); n == len(q.queue) {
				q.queue = q.queue[:0]
			} else {
				q.queue = q.queue[n:]
			}
			q.mu.Unlock()
			return group
		}
		q.mu.Unlock()
		if idle == nil {
			idle = time.NewTimer(idleAfter)
			defer idle.Stop()
		}
		select {
		case <-q.wake:
		case <-q.ctx.Done():
		case <-idle.C:
			return nil
		}
	}
}

// endError returns the outcome of copies when the queue ends. For a deleted subscriber it is nil:
// its copies are not needed.
func (q *sendQueue) endError() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.deleted {
		return nil
	}
	return errGivenUp
}

// stopIfIdle ends the work for a queue that was idle, or that ends: then it gives up the copies
// that are left. It returns false if there are copies to store again. The caller has closed what
// was open.
func (q *sendQueue) stopIfIdle() bool {
	q.mu.Lock()
	if q.ctx.Err() == nil && len(q.queue) > 0 {
		q.mu.Unlock()
		return false
	}
	rest, redelivered := q.queue, q.redelivered
	q.queue, q.redelivered, q.running = nil, nil, false
	q.mu.Unlock()
	err := q.endError()
	for _, e := range redelivered {
		e.of.done(err)
	}
	q.finish(rest, err)
	return true
}

// group returns how many copies at the beginning of the queue are stored together. The caller holds
// l.mu.
func (q *sendQueue) group() (n int) {
	bytes := 0
	for n < len(q.queue) && n < groupRecords {
		if bytes += messaging.EntryBytes(q.queue[n].record); n > 0 && bytes > messaging.MaxEntryBytes {
			break
		}
		n++
	}
	return n
}

// finish notes that copies are stored, or given up. Callers finish copies in their order.
func (q *sendQueue) finish(entries []entry, err error) {
	if len(entries) == 0 {
		return
	}
	q.mu.Lock()
	var done []entry
	for _, e := range entries {
		q.count--
		q.bytes -= int64(e.size)
	}
	if err == nil || !errors.Is(err, errGivenUp) {
		q.stored = max(q.stored, entries[len(entries)-1].position)
		left := q.redelivered[:0]
		for _, e := range q.redelivered {
			if e.position <= q.stored {
				done = append(done, e)
			} else {
				left = append(left, e)
			}
		}
		q.redelivered = left
	}
	if q.notFull != nil {
		close(q.notFull)
		q.notFull = nil
	}
	q.mu.Unlock()
	for _, e := range entries {
		e.of.done(err)
	}
	for _, e := range done {
		e.of.done(nil)
	}
}

// These bound one attempt to open a topic, to close it, and to store a group.
const (
	openTimeout  = 15 * time.Second
	closeTimeout = 5 * time.Second
	storeTimeout = time.Minute
)

// run stores the added copies until the queue is idle or ends.
func (q *sendQueue) run() {
	w := sendWorker{sendQueue: q}
	for {
		if group := q.take(); group != nil {
			w.store(group)
			continue
		}
		w.closeAll()
		if q.stopIfIdle() {
			return
		}
	}
}

// sendWorker is the state of the goroutine that works for a sendQueue.
type sendWorker struct {
	*sendQueue
	sendTopic topicWriter
	pause     backoff.Backoff
}

// store stores a group in the send topic. It tries until it succeeds, or the queue ends: the bus
// waits for a send topic that accepts nothing. A copy that is too large for the brokers is refused.
func (w *sendWorker) store(group []entry) {
	alone := false // store one copy at a time: together they are too large
	for len(group) > 0 {
		if w.ctx.Err() != nil {
			w.finish(group, w.endError())
			return
		}
		one := group
		if alone {
			one = group[:1]
		}
		done, left, err := w.send(one)
		w.metrics.stored.Add(float64(len(done)))
		w.finish(done, nil)
		group = append(left, group[len(one):]...)
		switch {
		case err == nil:
			w.setHealthy()
			continue
		case w.ctx.Err() != nil:
			continue
		case errors.Is(err, messaging.ErrTooLarge) && len(one) > 1:
			alone = true
			continue
		case errors.Is(err, messaging.ErrTooLarge):
			// The brokers accepted the event. They do not accept the copy, which has some more
			// properties.
			w.metrics.refused.Inc()
			w.finish(group[:1], messaging.Reject(err))
			group = group[1:]
			continue
		}
		w.setUnhealthy(err)
		w.pause.Wait(w.ctx)
	}
}

// send stores copies of a group in the send topic, from the first one on. It also returns those
// that are left.
func (w *sendWorker) send(group []entry) (done, left []entry, err error) {
	if w.sendTopic == nil {
		if err := w.openSendTopic(); err != nil {
			return nil, group, err
		}
	}
	putting, cancel := context.WithTimeout(w.ctx, storeTimeout)
	defer cancel()
	done, left, err = w.sendTopic.put(putting, group)
	if err != nil {
		w.close()
	}
	return done, left, err
}

// openSendTopic opens the send topic. openSlots limit how many topics are opened at once: brokers
// would not answer a thousand requests in time. Unhealthy topics have their own slots, and do not
// delay the others.
func (w *sendWorker) openSendTopic() (err error) {
	openSlots := w.openSlots.first
	if w.Unhealthy() != nil {
		openSlots = w.openSlots.again
	}
	opening, cancel := context.WithTimeout(w.ctx, openTimeout)
	defer cancel()
	select {
	case openSlots <- struct{}{}:
		defer func() { <-openSlots }()
	case <-opening.Done():
		return fmt.Errorf("too many send topics are being opened: %w", opening.Err())
	}
	sendTopic, err := w.open(opening)
	if err != nil {
		return err
	}
	w.sendTopic = sendTopic
	w.metrics.queues.Inc()
	return nil
}

// openSlots limit how many send topics are opened at once.
type openSlots struct{ first, again chan struct{} }

func newOpenSlots() openSlots { return openSlots{make(chan struct{}, 32), make(chan struct{}, 8)} }

// closeAll closes what is open, because the queue is idle, or ends.
func (w *sendWorker) closeAll() {
	w.close()
	w.mu.Lock()
	was := w.unhealthy
	w.unhealthy, w.since = nil, time.Time{}
	w.mu.Unlock()
	if was != nil {
		w.metrics.unhealthy.Dec()
	}
}

// close closes the send topic.
func (w *sendWorker) close() {
	if w.sendTopic == nil {
		return
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(w.ctx), closeTimeout)
	defer cancel()
	w.sendTopic.close(closing)
	w.sendTopic = nil
	w.metrics.queues.Dec()
}

// setUnhealthy records why nothing is stored, and logs it once.
func (w *sendWorker) setUnhealthy(err error) {
	w.mu.Lock()
	first := w.unhealthy == nil
	w.unhealthy = err
	if first {
		w.since = time.Now()
	}
	w.mu.Unlock()
	if first {
		w.metrics.unhealthy.Inc()
		w.log.Warn("cannot publish to a send topic: the bus waits for it, will keep trying", zap.Error(err))
	}
}

// setHealthy records that the send topic accepts copies.
func (w *sendWorker) setHealthy() {
	w.pause.Reset()
	w.mu.Lock()
	was, since := w.unhealthy, w.since
	w.unhealthy, w.since = nil, time.Time{}
	w.mu.Unlock()
	if was != nil {
		w.metrics.unhealthy.Dec()
		w.log.Info("publishing to a send topic works again", zap.Duration("after", time.Since(since)))
	}
}

// Unhealthy returns why nothing is stored, nil if copies are stored.
func (q *sendQueue) Unhealthy() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.unhealthy
}
