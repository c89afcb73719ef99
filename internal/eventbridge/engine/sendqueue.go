package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aviaryhq/aviary/internal/health"
	"github.com/aviaryhq/aviary/pkg/backoff"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// eventInFlight is an event whose copies are being stored. Its delivery is completed when all of them
// are.
type eventInFlight struct {
	pending   messaging.PendingDelivery
	left      atomic.Int32 // copies that are not done, and one for the matching itself
	failed    atomic.Pointer[error]
	published time.Time
	metrics   *busMetrics
}

// errReleased: this engine gives up the partition. The next owner stores the missing copies.
var errReleased = errors.New("the engine releases the partition")

// done notes that a copy is stored or, with an error, that it will not be.
func (m *eventInFlight) done(err error) {
	switch {
	case err == nil:
	case errors.Is(err, errReleased): // counts more than a refused copy: another copy may be missing
		m.failed.Store(&err)
	default:
		m.failed.CompareAndSwap(nil, &err)
	}
	if m.left.Add(-1) > 0 {
		return
	}
	if failed := m.failed.Load(); failed != nil {
		m.pending.Complete(*failed)
		return
	}
	m.metrics.age.Observe(max(time.Since(m.published), 0).Seconds())
	m.pending.Complete(nil)
}

// pendingCopy is a copy in flight.
type pendingCopy struct {
	position int64
	record   *messaging.Record
	size     int
	event    *eventInFlight
}

// sendQueue stores the copies for one subscriber in the order in which they were added; for an
// ordered subscriber, the copies of one partition. While one group of copies is being stored, the
// next group gathers. A send topic that accepts nothing is tried again until it does: the queue
// fills, and the bus waits.
//
// A goroutine works for the queue while there are copies, and for a while after.
type sendQueue struct {
	maxBytes              int64
	open                  func(context.Context) (topicWriter, error)
	openSlots, retrySlots chan struct{}
	health                *health.State // of the send topic
	metrics               *busMetrics
	ctx                   context.Context // the life of the queue
	end                   context.CancelFunc
	working               *sync.WaitGroup // of this queue's goroutine, and of other queues'

	// Only the goroutine that works for the queue uses these.
	sendTopic topicWriter // nil: not open
	pause     backoff.Backoff

	mu      sync.Mutex
	queue   []pendingCopy
	count   int // copies that are not finished: in the queue or in flight
	bytes   int64
	notFull chan struct{} // closed when the queue is not full any more; nil: no caller waits
	wake    chan struct{} // holds one element when the queue has copies
	running bool
	deleted bool // the subscriber was deleted; ctx has ended
}

const (
	// queueRecords bounds the copies of a queue: what small copies take beside their bytes.
	queueRecords = 1000
	// groupRecords bounds the copies that are stored together.
	groupRecords = 500
	// idleAfter is how long a queue keeps its send topic open without a copy.
	idleAfter = time.Minute
	// parallelOpens is how many send topics are opened at once, and how many of those that failed
	// before: brokers would not answer a thousand requests in time.
	parallelOpens = 32

	// These bound one attempt to open a topic, to store a group, and to close the topic.
	openTimeout  = 15 * time.Second
	storeTimeout = time.Minute
	closeTimeout = 5 * time.Second
)

// add adds e to the queue. While the queue is full it waits, until ctx ends: then it returns false,
// and has added nothing.
func (q *sendQueue) add(ctx context.Context, e pendingCopy) bool {
	q.mu.Lock()
	for q.ctx.Err() == nil && q.count > 0 && (q.count >= queueRecords || q.bytes+int64(e.size) > q.maxBytes) {
		if q.notFull == nil {
			q.notFull = make(chan struct{})
		}
		notFull := q.notFull
		q.mu.Unlock()
		select {
		case <-notFull:
		case <-ctx.Done():
			return false
		case <-q.ctx.Done():
		}
		q.mu.Lock()
	}
	defer q.mu.Unlock()
	if q.deleted {
		e.event.done(nil)
		return true
	}
	if q.ctx.Err() != nil {
		return false
	}
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

// run stores the added copies until the queue is idle or ends.
func (q *sendQueue) run() {
	for {
		if group := q.take(); group != nil {
			q.store(group)
			continue
		}
		q.close()
		if q.stopIfIdle() {
			return
		}
	}
}

// take waits for copies, and takes a group of them out of the queue. It returns nil if the queue
// was idle, or ends.
func (q *sendQueue) take() []pendingCopy {
	var idle *time.Timer
	for {
		q.mu.Lock()
		if q.ctx.Err() != nil {
			q.mu.Unlock()
			return nil
		}
		if n := q.group(); n > 0 {
			group := append([]pendingCopy(nil), q.queue[:n]...)
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

// group returns how many copies at the beginning of the queue are stored together. The caller holds
// q.mu.
func (q *sendQueue) group() (n int) {
	bytes := 0
	for n < len(q.queue) && n < groupRecords {
		if bytes += q.queue[n].size; n > 0 && bytes > messaging.MaxEntryBytes {
			break
		}
		n++
	}
	return n
}

// store stores a group. It tries until it succeeds, or the queue ends.
func (q *sendQueue) store(group []pendingCopy) {
	together := len(group)
	for len(group) > 0 {
		if q.ctx.Err() != nil {
			q.finish(group, errReleased)
			return
		}
		n := min(together, len(group))
		done, left, err := q.send(group[:n])
		q.metrics.stored.Add(float64(len(done)))
		q.finish(done, nil)
		group = append(left, group[n:]...)
		switch {
		case err == nil:
			q.setHealthy()
		case q.ctx.Err() != nil:
		case errors.Is(err, messaging.ErrTooLarge) && n > 1:
			together = 1
		case errors.Is(err, messaging.ErrTooLarge):
			// The brokers accepted the event. They do not accept the copy, which has some more
			// properties.
			q.metrics.refusedCopies.Inc()
			q.finish(group[:1], messaging.Reject(err))
			group = group[1:]
		default:
			q.setUnhealthy(err)
			q.pause.Wait(q.ctx)
		}
	}
}

// send stores copies in the send topic. It returns those that may not be stored as left.
func (q *sendQueue) send(group []pendingCopy) (done, left []pendingCopy, err error) {
	if q.sendTopic == nil {
		if err := q.openSendTopic(); err != nil {
			return nil, group, err
		}
	}
	ctx, cancel := context.WithTimeout(q.ctx, storeTimeout)
	defer cancel()
	done, left, err = q.sendTopic.put(ctx, group)
	if err != nil {
		q.close()
	}
	return done, left, err
}

// openSendTopic opens the send topic.
func (q *sendQueue) openSendTopic() (err error) {
	ctx, cancel := context.WithTimeout(q.ctx, openTimeout)
	defer cancel()
	slots := q.openSlots
	if q.health.Current() != nil { // attempts that may fail again do not delay other topics
		slots = q.retrySlots
	}
	select {
	case slots <- struct{}{}:
		defer func() { <-slots }()
	case <-ctx.Done():
		return fmt.Errorf("too many send topics are being opened: %w", ctx.Err())
	}
	sendTopic, err := q.open(ctx)
	if err != nil {
		return err
	}
	q.sendTopic = sendTopic
	q.metrics.queues.Inc()
	return nil
}

// close closes the send topic.
func (q *sendQueue) close() {
	if q.sendTopic == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(q.ctx), closeTimeout)
	defer cancel()
	q.sendTopic.close(ctx)
	q.sendTopic = nil
	q.metrics.queues.Dec()
}

// finish completes copies that are stored or, with an error, will not be. Those of a deleted
// subscriber are not needed.
func (q *sendQueue) finish(entries []pendingCopy, err error) {
	q.mu.Lock()
	if q.deleted {
		err = nil
	}
	for _, e := range entries {
		q.count--
		q.bytes -= int64(e.size)
	}
	if q.notFull != nil {
		close(q.notFull)
		q.notFull = nil
	}
	q.mu.Unlock()
	for _, e := range entries {
		e.event.done(err)
	}
}

// stopIfIdle ends the work for a queue that was idle, or that ends: then it gives up the copies
// that are left. It returns false if there are copies to store again.
func (q *sendQueue) stopIfIdle() bool {
	q.mu.Lock()
	if q.ctx.Err() == nil && len(q.queue) > 0 {
		q.mu.Unlock()
		return false
	}
	rest := q.queue
	q.queue, q.running = nil, false
	if q.health.Current() != nil {
		q.health.Forget()
		q.metrics.unhealthy.Dec()
	}
	q.mu.Unlock()
	q.finish(rest, errReleased)
	return true
}

// setUnhealthy records why nothing is stored. While the queue is full, the bus waits.
func (q *sendQueue) setUnhealthy(err error) {
	if q.health.Current() == nil {
		q.metrics.unhealthy.Inc()
	}
	q.health.Set(err)
}

// setHealthy records that the send topic accepts copies.
func (q *sendQueue) setHealthy() {
	q.pause.Reset()
	if q.health.Current() != nil {
		q.metrics.unhealthy.Dec()
		q.health.Set(nil)
	}
}
