package messaging

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/backoff"
)

// lane publishes to one partition. It owns the partition's share of the queue and
// the only list of what was accepted and not yet acknowledged; the producer
// underneath is replaceable, and is replaced when the broker closes or fences it.
//
// Order: a record enters the list before it goes to the producer, and callers that
// publish one after the other enter in that order. When the producer is replaced
// the whole list is sent again in its order before anything newer.
//
// Goroutines: callers admit and send. The connection's reader goroutine only
// appends to completions. The lane's own goroutine (run) settles those, calls the
// done functions and replaces the producer; flush, under group commit, pushes
// batches out.
type lane struct {
	p     *Publisher
	topic string
	index int
	// partition is what ids name: not index where the publisher's topic is one partition.
	partition int
	log       *zap.Logger

	mu         sync.Mutex
	list       pendingList
	count      int // admitted records and bytes, waiters that were granted room included
	bytes      int64
	maxCount   int
	maxBytes   int64
	waiters    []*waiter // blocked callers, oldest first
	producer   pulsar.Producer
	generation context.Context // ends with the present producer
	retire     context.CancelFunc
	gate       error     // why nothing is admitted any more, or nil
	admitted   uint64    // sequence of the last record that entered the list
	progress   time.Time // of the last outcome, or of the first record after idleness
	drained    []drainWaiter
	telling    bool     // outcomes have left the list and are being told
	free       *pending // recycled, linked by next; dropped when the lane is idle

	cmu         sync.Mutex
	completions []completion
	spare       []completion
	wake        chan struct{}

	kick  chan struct{} // group commit: something is waiting to be flushed
	stop  context.CancelFunc
	ended chan struct{} // run has returned

	sending  sync.Mutex     // serialises unbatched sends, see send
	sends    sync.WaitGroup // callers that hold the producer, see retireProducer
	flushing sync.Mutex     // held while the flusher holds it

	ready    chan struct{}   // closed once the first producer exists or the lane failed
	failed   chan struct{}   // closed once the lane failed
	backoff  backoff.Backoff // of replacements; the lane's goroutine only
	stalled  bool
	doubts   doubts
	reported struct { // what the gauges hold of this lane
		count int
		bytes int64
	}
}

// pending is a record from admission to outcome. What settling touches comes first,
// to share a cache line: a hundred thousand of these are cold when their outcomes
// arrive.
type pending struct {
	prev, next *pending
	size       int64
	seq        uint64
	at         int64 // of admission, Unix nanoseconds; 0 when this record is not sampled
	done       func(MessageID, error)
	sent       bool
	again      bool // sent to more than one producer
	stale      bool // replaced by a copy in a later generation: outcomes no longer count
	sequenceID int64
	receipt    func(pulsar.MessageID, *pulsar.ProducerMessage, error)
	msg        pulsar.ProducerMessage
}

type completion struct {
	e   *pending
	id  pulsar.MessageID
	err error
}

type waiter struct {
	size    int64
	granted chan struct{}
	err     error // set before granted is closed when the gate closed
}

type drainWaiter struct {
	seq  uint64 // waits until every record up to seq has its outcome
	done chan struct{}
}

const (
	stallAfter = 5 * time.Second
	tick       = time.Second
	// sampleEvery is the share of records whose latency is observed; every record
	// that finds its lane idle is observed too.
	sampleEvery = 64
	// settleRun is how many outcomes are settled before callers get the lock.
	settleRun = 256
	// smallRecord is the size up to which a recycled record may keep its contents.
	smallRecord = 512
	// slabSize is how many pending records are allocated together.
	slabSize = 32
)

var errAckTimeout = errors.New("no acknowledgement within ack_timeout")

func newLane(p *Publisher, topic string, index int) *lane {
	l := &lane{
		p: p, topic: topic, index: index, partition: partitionIndex(topic, index),
		log:   p.log.With(zap.String("topic", topic)),
		wake:  make(chan struct{}, 1),
		kick:  make(chan struct{}, 1),
		ended: make(chan struct{}),
		ready: make(chan struct{}), failed: make(chan struct{}),
	}
	l.generation, l.retire = context.WithCancel(context.Background())
	return l
}

// start runs the lane's goroutines; its first act is to create the producer.
func (l *lane) start() {
	ctx, cancel := context.WithCancel(context.Background())
	l.stop = cancel
	go l.run(ctx)
	if l.p.profile.GroupCommit {
		go l.flush(ctx)
	}
}

// admit waits for room for r, puts it on the list and returns it with the
// producer to send it to: nil when the lane will send it itself. After sending,
// sends.Done must be called.
func (l *lane) admit(ctx context.Context, r *Record, done func(MessageID, error)) (*pending, pulsar.Producer, error) {
	size := r.size()
	l.mu.Lock()
	if l.gate != nil {
		defer l.mu.Unlock()
		return nil, nil, l.gate
	}
	if len(l.waiters) > 0 || !l.fits(size) {
		if l.p.profile.Admission == FailFast {
			l.mu.Unlock()
			return nil, nil, ErrQueueFull
		}
		if err := l.waitForRoom(ctx, size); err != nil {
			return nil, nil, err
		}
		l.mu.Lock()
		if l.gate != nil { // the gate closed between the grant and now
			l.count--
			l.bytes -= size
			defer l.mu.Unlock()
			return nil, nil, l.gate
		}
	} else {
		l.count++
		l.bytes += size
	}
	e := l.newPending()
	e.fill(r, size, done)
	l.admitted++
	e.seq = l.admitted
	idle := l.list.head == nil
	if idle || e.seq%sampleEvery == 0 {
		now := time.Now()
		e.at = now.UnixNano()
		if idle {
			l.progress = now
		}
	}
	l.list.push(e)
	raw := l.producer
	if raw != nil {
		e.sent = true
		l.sends.Add(1)
	}
	l.mu.Unlock()
	return e, raw, nil
}

// fits reports whether a record of size may be admitted now. A record larger than
// the whole share is admitted when nothing else is.
func (l *lane) fits(size int64) bool {
	return l.count == 0 || (l.count < l.maxCount && l.bytes+size <= l.maxBytes)
}

// full reports whether a record would have to wait now.
func (l *lane) full() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.waiters) > 0 || l.count >= l.maxCount || l.bytes >= l.maxBytes
}

// waitForRoom queues the caller and waits until it is granted room. It is called
// with l.mu held and returns with it released.
func (l *lane) waitForRoom(ctx context.Context, size int64) error {
	w := &waiter{size: size, granted: make(chan struct{})}
	l.waiters = append(l.waiters, w)
	l.mu.Unlock()
	select {
	case <-w.granted:
		return w.err
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.waiters {
		if l.waiters[i] == w {
			l.waiters = append(l.waiters[:i], l.waiters[i+1:]...)
			l.grant() // those behind may fit where w did not
			return ctx.Err()
		}
	}
	if w.err == nil { // granted in the same moment: give it back
		l.count--
		l.bytes -= size
		l.grant()
	}
	return ctx.Err()
}

// grant gives room to blocked callers, oldest first. l.mu is held.
func (l *lane) grant() {
	n := 0
	for n < len(l.waiters) && l.fits(l.waiters[n].size) {
		l.count++
		l.bytes += l.waiters[n].size
		close(l.waiters[n].granted)
		n++
	}
	l.waiters = append(l.waiters[:0], l.waiters[n:]...)
}

// shut closes the gate: blocked and later callers get err.
func (l *lane) shut(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.gate != nil {
		return
	}
	l.gate = err
	for _, w := range l.waiters {
		w.err = err
		close(w.granted)
	}
	l.waiters = nil
}

// setShare sets the lane's part of the publisher's bounds.
func (l *lane) setShare(records int, bytes int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.maxCount, l.maxBytes = records, bytes
	l.grant()
}

// send hands e to the producer. The underlying client panics when it closes itself
// in the same moment ("send on closed channel": producer_partition.go, doClose
// closes dataChan while internalSendAsync selects on it): that is one more way of
// saying that the producer is closed.
//
// Sequence ids of batched records are given in the producer's own goroutine, but
// those of unbatched ones in the caller's: two callers could put them on the wire
// out of order, and a broker with deduplication would drop the lower. So unbatched
// sends take turns.
func (l *lane) send(raw pulsar.Producer, e *pending) {
	if l.p.profile.unbatched() {
		l.sending.Lock()
		defer l.sending.Unlock()
	}
	defer func() {
		if v := recover(); v != nil {
			e.receipt(nil, nil, fmt.Errorf("%w: %v", pulsar.ErrProducerClosed, v))
		}
	}()
	raw.SendAsync(context.Background(), &e.msg, e.receipt)
}

// nudge asks the flusher, under group commit, to send what is waiting.
func (l *lane) nudge() {
	select {
	case l.kick <- struct{}{}:
	default:
	}
}

// complete notes an outcome. It runs on the connection's reader goroutine, which
// serves every topic of the connection, so it must not block.
func (l *lane) complete(e *pending, id pulsar.MessageID, err error) {
	l.cmu.Lock()
	first := len(l.completions) == 0
	l.completions = append(l.completions, completion{e, id, err})
	l.cmu.Unlock()
	if first {
		select {
		case l.wake <- struct{}{}:
		default:
		}
	}
}

// run settles outcomes and replaces broken producers until ctx ends.
func (l *lane) run(ctx context.Context) {
	defer close(l.ended)
	t := time.NewTicker(tick)
	defer t.Stop()
	l.replace(ctx, nil)
	for {
		var broken error
		select {
		case <-ctx.Done():
			l.abandon()
			return
		case <-l.wake:
			broken = l.settle()
		case now := <-t.C:
			broken = l.watch(now)
		}
		if broken != nil {
			l.replace(ctx, broken)
		}
	}
}

// flush pushes batches out under group commit. Each call returns when all that it
// pushed is acknowledged, so records gather into the next batch meanwhile; the
// producer's own 1 ms timer bounds how long they do.
func (l *lane) flush(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.kick:
		}
		l.flushing.Lock()
		l.mu.Lock()
		raw, generation := l.producer, l.generation
		l.mu.Unlock()
		if raw != nil {
			flushOnce(generation, raw)
		}
		l.flushing.Unlock()
	}
}

// retireProducer takes the producer from everybody and returns it once nobody uses
// it: closing it closes channels that senders and the flusher write to. None of
// them can be held up: the queue underneath has room for all that is admitted, and
// a flush ends with the generation.
func (l *lane) retireProducer() pulsar.Producer {
	l.mu.Lock()
	raw := l.producer
	l.producer = nil // from now on callers only enter the list
	l.retire()
	l.mu.Unlock()
	l.sends.Wait()
	l.flushing.Lock()
	defer l.flushing.Unlock()
	return raw
}

// flushOnce flushes raw. Its failures show in the records' own outcomes; flushing
// a producer that closes itself in the same moment panics, as send does.
func flushOnce(ctx context.Context, raw pulsar.Producer) {
	defer func() { _ = recover() }()
	_ = raw.FlushWithCtx(ctx)
}

// settle gives every record with a known outcome that outcome, and returns what
// broke the producer if something did.
func (l *lane) settle() (broken error) {
	l.cmu.Lock()
	batch := l.completions
	l.completions = l.spare[:0]
	l.cmu.Unlock()

	var acked, failed, ackedBytes int64
	l.mu.Lock()
	l.telling = true
	live := batch[:0]
	for i, c := range batch {
		if i%settleRun == settleRun-1 { // callers wait for the lock
			l.grant()
			l.mu.Unlock()
			l.mu.Lock()
		}
		if c.e.stale {
			continue
		}
		if c.err != nil {
			switch classify(c.err) {
			case tooLarge:
				c.err = fmt.Errorf("%w: %w", ErrTooLarge, c.err)
			case terminated:
				broken = ErrTopicTerminated
				continue
			case retriable:
				if broken == nil {
					broken = c.err
				}
				continue
			}
			failed++
		} else {
			acked++
			ackedBytes += c.e.size
		}
		l.list.remove(c.e)
		l.count--
		l.bytes -= c.e.size
		live = append(live, c)
	}
	if len(live) > 0 {
		l.progress = time.Now()
		l.backoff.Reset()
	}
	l.grant()
	drained := l.takeDrained()
	resumed := l.stalled && len(live) > 0
	if resumed {
		l.stalled = false
	}
	now := l.progress
	l.mu.Unlock()

	m := l.p.metrics
	if resumed {
		m.stalled.Dec()
		l.log.Info("publishing resumed")
	}
	for i := range live {
		c := &live[i]
		if c.err == nil && c.e.at != 0 {
			m.ack.Observe(float64(now.UnixNano()-c.e.at) / 1e9)
		}
		id := messageID(c.id, l.partition)
		id.again = c.e.again
		c.e.done(id, c.err)
	}
	m.acked.Add(float64(acked))
	m.failed.Add(float64(failed))
	m.ackedBytes.Add(float64(ackedBytes))
	l.told(drained, live)
	clear(batch)
	l.spare = batch
	return broken
}

// watch notices a lane that makes no progress: it says so once, and gives up on
// the producer when that has closed itself or AckTimeout has passed.
func (l *lane) watch(now time.Time) (broken error) {
	l.mu.Lock()
	idle := now.Sub(l.progress)
	waiting := l.list.head != nil
	stalled := waiting && idle > stallAfter && !l.stalled
	if stalled {
		l.stalled = true
	}
	raw := l.producer
	count, bytes := l.count, l.bytes
	if !waiting && idle > stallAfter {
		l.free = nil // a burst's memory is not kept for ever
	}
	l.mu.Unlock()
	if waiting && raw != nil {
		switch {
		case idle > l.p.profile.AckTimeout:
			broken = l.doubts.confirm(l, now)
		case idle > tick && isClosed(raw):
			broken = pulsar.ErrProducerClosed
		}
	}
	if !waiting && raw != nil && l.p.profile.OnLoss == FailOnLoss && isClosed(raw) {
		broken = pulsar.ErrProducerClosed // the owner is told, though nothing is under way
	}
	if stalled {
		l.p.metrics.stalled.Inc()
		l.log.Warn("publishing stalled: no acknowledgement from the broker, records wait",
			zap.Int("pending_records", count), zap.Duration("since", idle.Round(time.Millisecond)))
	}
	l.report(count, bytes)
	return broken
}

// isClosed reports whether the producer has closed itself, as it does when it is
// fenced on reconnecting. What sits in its batch builder then gets no outcome at
// all (doClose, producer_partition.go), so outcomes alone do not tell. A send whose
// context has ended goes no further than the check of the producer's state.
func isClosed(raw pulsar.Producer) (closed bool) {
	raw.SendAsync(canceled(), &pulsar.ProducerMessage{}, func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
		closed = errors.Is(err, pulsar.ErrProducerClosed)
	})
	return closed
}

// report brings the pending gauges up to date.
func (l *lane) report(count int, bytes int64) {
	l.p.metrics.pending.Add(float64(count - l.reported.count))
	l.p.metrics.pendingBytes.Add(float64(bytes - l.reported.bytes))
	l.reported.count, l.reported.bytes = count, bytes
}

// wait returns when every record admitted so far has been told its outcome.
func (l *lane) wait(ctx context.Context) error {
	l.mu.Lock()
	if l.list.head == nil && !l.telling {
		l.mu.Unlock()
		return nil
	}
	w := drainWaiter{seq: l.admitted, done: make(chan struct{})}
	l.drained = append(l.drained, w)
	l.mu.Unlock()
	select {
	case <-w.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// takeDrained returns those whose records all have an outcome. l.mu is held; they
// are released when the outcomes have been told.
func (l *lane) takeDrained() (out []drainWaiter) {
	kept := l.drained[:0]
	for _, w := range l.drained {
		if l.list.head == nil || l.list.head.seq > w.seq {
			out = append(out, w)
		} else {
			kept = append(kept, w)
		}
	}
	l.drained = kept
	return out
}

// told releases those that waited for outcomes which have now been told, and those
// that came while they were being told and found the list empty.
//
// The records of outcomes are recycled.
func (l *lane) told(drained []drainWaiter, outcomes []completion) {
	l.mu.Lock()
	l.telling = false
	for i := range outcomes {
		l.recycle(outcomes[i].e)
	}
	drained = append(drained, l.takeDrained()...)
	l.mu.Unlock()
	for _, w := range drained {
		close(w.done)
	}
}

// newPending returns a pending record, recycled where possible. l.mu is held.
func (l *lane) newPending() *pending {
	if l.free == nil {
		slab := make([]pending, slabSize)
		for i := range slab {
			e := &slab[i]
			e.receipt = func(id pulsar.MessageID, _ *pulsar.ProducerMessage, err error) { l.complete(e, id, err) }
			e.next, l.free = l.free, e
		}
	}
	e := l.free
	l.free, e.next = e.next, nil
	return e
}

// recycle takes back a pending record that had its outcome. Stale ones are never
// recycled: a late receipt may still arrive for them. l.mu is held.
func (l *lane) recycle(e *pending) {
	if e.size > smallRecord { // else not worth the cache miss: fill overwrites it
		e.msg.Payload, e.msg.Key, e.msg.OrderingKey, e.msg.Properties = nil, "", "", nil
	}
	e.done = nil
	e.next, l.free = l.free, e
}

// fill makes e carry r. The message's other fields are never set.
func (e *pending) fill(r *Record, size int64, done func(MessageID, error)) {
	e.msg.Payload, e.msg.Key, e.msg.OrderingKey, e.msg.Properties = r.Payload, r.Key, r.OrderingKey, r.Properties
	e.msg.EventTime, e.msg.DeliverAt, e.msg.SequenceID = r.EventTime, r.DeliverAt, nil
	if r.SequenceID != nil {
		e.sequenceID = *r.SequenceID
		e.msg.SequenceID = &e.sequenceID
	}
	e.size, e.done = size, done
	e.at, e.sent, e.again, e.stale = 0, false, false, false
}

// pendingList is a doubly linked list in order of admission.
type pendingList struct{ head, tail *pending }

func (q *pendingList) push(e *pending) {
	e.prev, e.next = q.tail, nil
	if q.tail == nil {
		q.head = e
	} else {
		q.tail.next = e
	}
	q.tail = e
}

func (q *pendingList) remove(e *pending) {
	if e.prev == nil {
		q.head = e.next
	} else {
		e.prev.next = e.next
	}
	if e.next == nil {
		q.tail = e.prev
	} else {
		e.next.prev = e.prev
	}
	e.prev, e.next = nil, nil
}

// swap puts n in e's place.
func (q *pendingList) swap(e, n *pending) {
	n.prev, n.next = e.prev, e.next
	if n.prev == nil {
		q.head = n
	} else {
		n.prev.next = n
	}
	if n.next == nil {
		q.tail = n
	} else {
		n.next.prev = n
	}
	e.prev, e.next = nil, nil
}
