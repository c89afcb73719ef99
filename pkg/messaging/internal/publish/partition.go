package publish

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/pkg/backoff"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/clientquirks"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/flush"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/list"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/record"
)

// partitionPublisher publishes to one partition. It owns the list of records that were accepted and
// not yet acknowledged, in the order of admission. When the producer is replaced the whole list is
// sent again in that order, before anything newer.
//
// Goroutines: callers admit, and send or leave that to the flusher. The connection's reader
// goroutine only appends to outcomes. The partition's own goroutine (run) takes those, calls the
// done functions and replaces the producer. The flusher's goroutines send the gathered records.
type partitionPublisher struct {
	p     *Publisher
	topic string
	index int
	named int // the index in topic's name, which ids have: not index where the publisher's topic is one partition
	log   *zap.Logger

	mu        sync.Mutex
	list      list.List[pending, *pending] // in order of admission
	headSince time.Time                    // since when the list's head is its head
	admitted  uint64                       // sequence of the last record that entered the list
	count     int                          // admitted records, waiters with room included
	bytes     int64                        // and their bytes
	maxCount  int
	maxBytes  int64
	waiters   []*waiter // blocked callers, oldest first
	refusal   error     // why nothing is admitted any more, or nil

	unsent      *pending // the first record of the list that gathers, see gathers
	unsentCount int
	unsentBytes int
	handing     bool // flushNow or handOver gives records to the producer
	producer    pulsar.Producer
	generation  context.Context // ends with the present producer
	retire      context.CancelFunc

	drained   []drainWaiter
	reporting bool       // outcomes have left the list and are being reported
	free      []*pending // recycled; dropped when the partition is idle
	watched   bool       // the watcher knows of this partition

	outcomesMu sync.Mutex
	outcomes   []outcome
	spare      []outcome
	wake       chan struct{}
	failures   atomic.Int64          // outcomes that are errors
	failure    atomic.Pointer[error] // the latest

	lost  chan error      // what says that an owner has lost its producer
	after <-chan struct{} // the producer is made once this is closed; nil: at once
	check chan struct{}   // the watcher asks for a look
	stop  context.CancelFunc
	ended chan struct{} // run has returned

	sending sync.Mutex     // serialises unbatched sends, see send
	sends   sync.WaitGroup // callers and flushes that hold the producer, see retireProducer

	flush flush.Partition

	ready    chan struct{}   // closed once the first producer exists or the partition failed
	backoff  backoff.Backoff // of replacements; the partition's goroutine only
	stalled  bool
	ackProbe ackProbe // the partition's goroutine only
	opening  bool     // part of opening the publisher, and without a producer so far
	failed   bool

	reportedCount int // this partition's part of the gauges
	reportedBytes int64
}

// pending is a record from admission to outcome. Fields that its outcome uses come first, to share
// a cache line: a hundred thousand of these are cold when their outcomes arrive.
type pending struct {
	links      list.Links[pending]
	size       int64
	seq        uint64
	at         int64 // of admission, Unix nanoseconds; 0 when this record is not sampled
	done       func(record.MessageID, error)
	sent       bool
	again      bool // sent to more than one producer
	stale      bool // replaced by a copy in a later generation: outcomes no longer count
	sequenceID int64
	receipt    func(pulsar.MessageID, *pulsar.ProducerMessage, error)
	msg        pulsar.ProducerMessage
}

// Links makes pending an element of a list.
func (e *pending) Links() *list.Links[pending] { return &e.links }

type outcome struct {
	e   *pending
	id  pulsar.MessageID
	err error
}

type waiter struct {
	size    int64
	granted chan struct{}
	err     error // set before granted is closed when nothing is admitted any more
}

type drainWaiter struct {
	seq  uint64 // waits until every record up to seq has its outcome
	done chan struct{}
}

const (
	stallAfter  = 5 * time.Second
	sampleEvery = 64  // of so many records, and of those that find the partition idle, the latency is observed
	outcomeRun  = 256 // outcomes are taken before callers get the lock
	smallRecord = 512 // bytes; a recycled record of that size may keep its contents
	slabSize    = 32  // pending records are allocated together
)

func newPartitionPublisher(p *Publisher, topic string, index int) *partitionPublisher {
	pp := &partitionPublisher{
		p: p, topic: topic, index: index, named: record.PartitionIndex(topic, index),
		log:   p.log.With(zap.String("topic", topic)),
		wake:  make(chan struct{}, 1),
		check: make(chan struct{}, 1),
		lost:  make(chan error, 1),
		ended: make(chan struct{}),
		ready: make(chan struct{}),
	}
	pp.flush.Flush = pp.flushNow
	pp.ackProbe.grace = min(maxGrace, p.profile.AckTimeout)
	pp.ackProbe.query = func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, p.parent.OperationTimeout)
		defer cancel()
		_, err := p.lookUpPartitions(ctx)
		return err
	}
	pp.generation, pp.retire = context.WithCancel(context.Background())
	return pp
}

func (pp *partitionPublisher) start() {
	ctx, cancel := context.WithCancel(context.Background())
	pp.stop = cancel
	go pp.run(ctx)
}

// admit waits for space, puts r on the list and returns it with the producer to send it to; then
// sends.Done must be called. The producer is nil when the partition sends r itself, for which a
// gathered r needs a flush.
func (pp *partitionPublisher) admit(ctx context.Context, r *record.Record, done func(record.MessageID, error)) (e *pending, raw pulsar.Producer, gathered bool, err error) {
	size := record.SizeOf(r)
	pp.mu.Lock()
	if pp.refusal != nil {
		defer pp.mu.Unlock()
		return nil, nil, false, pp.refusal
	}
	if len(pp.waiters) > 0 || !pp.fits(size) {
		if pp.p.profile.Admission == FailFast {
			pp.mu.Unlock()
			return nil, nil, false, record.ErrQueueFull
		}
		if err := pp.waitForRoom(ctx, size); err != nil {
			return nil, nil, false, err
		}
		pp.mu.Lock()
		if pp.refusal != nil { // refused between the grant and now
			pp.count--
			pp.bytes -= size
			defer pp.mu.Unlock()
			return nil, nil, false, pp.refusal
		}
	} else {
		pp.count++
		pp.bytes += size
	}
	e = pp.enter(r, size, done)
	raw = pp.producer
	switch {
	case raw == nil: // resume sends it
	case pp.gathers():
		if pp.unsent == nil {
			pp.unsent = e
		}
		was := pp.fullBatch()
		pp.unsentCount++
		pp.unsentBytes += int(size)
		raw, gathered = nil, true
		if !was && pp.fullBatch() {
			defer pp.p.flusher.Hurry(&pp.flush)
		}
	default:
		e.sent = true
		pp.sends.Add(1)
	}
	pp.mu.Unlock()
	return e, raw, gathered, nil
}

// enter puts r, which is admitted, on the list. pp.mu is held.
func (pp *partitionPublisher) enter(r *record.Record, size int64, done func(record.MessageID, error)) *pending {
	e := pp.newPending()
	e.fill(r, size, done)
	if pp.p.profile.unbatched() {
		e.markEmpty()
	}
	pp.admitted++
	e.seq = pp.admitted
	idle := pp.list.Head() == nil
	if idle || e.seq%sampleEvery == 0 {
		now := time.Now()
		e.at = now.UnixNano()
		if idle {
			pp.headSince = now
			if !pp.watched {
				pp.watched = true
				pp.p.parent.watcher.add(pp.check)
			}
		}
	}
	pp.list.Push(e)
	return e
}

// fits reports whether a record may be admitted now. One larger than the whole share goes alone.
func (pp *partitionPublisher) fits(size int64) bool {
	return pp.count == 0 || (pp.count < pp.maxCount && pp.bytes+size <= pp.maxBytes)
}

func (pp *partitionPublisher) full() bool {
	pp.mu.Lock()
	defer pp.mu.Unlock()
	return len(pp.waiters) > 0 || pp.count >= pp.maxCount || pp.bytes >= pp.maxBytes
}

// waitForRoom waits until the caller is granted space. It releases pp.mu, which is held.
func (pp *partitionPublisher) waitForRoom(ctx context.Context, size int64) error {
	w := &waiter{size: size, granted: make(chan struct{})}
	pp.waiters = append(pp.waiters, w)
	pp.mu.Unlock()
	pp.requestFlush() // there is no room before the gathered records are acknowledged
	select {
	case <-w.granted:
		return w.err
	case <-ctx.Done():
	}
	pp.mu.Lock()
	defer pp.mu.Unlock()
	if i := slices.Index(pp.waiters, w); i >= 0 {
		pp.waiters = slices.Delete(pp.waiters, i, i+1)
	} else if w.err == nil { // granted in the same moment: give it back
		pp.count--
		pp.bytes -= size
	}
	pp.grant() // those behind may fit where w did not
	return ctx.Err()
}

// grant gives room to blocked callers, oldest first. pp.mu is held.
func (pp *partitionPublisher) grant() {
	n := 0
	for n < len(pp.waiters) && pp.fits(pp.waiters[n].size) {
		pp.count++
		pp.bytes += pp.waiters[n].size
		close(pp.waiters[n].granted)
		n++
	}
	pp.waiters = slices.Delete(pp.waiters, 0, n)
}

// shut admits nothing any more: blocked and later callers get err.
func (pp *partitionPublisher) shut(err error) {
	pp.mu.Lock()
	defer pp.mu.Unlock()
	if pp.refusal != nil {
		return
	}
	pp.refusal = err
	for _, w := range pp.waiters {
		w.err = err
		close(w.granted)
	}
	pp.waiters = nil
}

func (pp *partitionPublisher) setShare(records int, bytes int64) {
	pp.mu.Lock()
	defer pp.mu.Unlock()
	pp.maxCount, pp.maxBytes = records, bytes
	pp.grant()
}

// send hands e to the producer. Unbatched sends take turns: the client numbers them in the caller's
// goroutine, and a broker with deduplication would drop the lower number of two that are out of
// order.
func (pp *partitionPublisher) send(raw pulsar.Producer, e *pending) {
	if pp.p.profile.unbatched() {
		pp.sending.Lock()
		defer pp.sending.Unlock()
	}
	clientquirks.Send(raw, &e.msg, e.receipt)
}

// noteOutcome runs on the connection's reader goroutine, which serves all its topics: never block.
func (pp *partitionPublisher) noteOutcome(e *pending, id pulsar.MessageID, err error) {
	if err != nil {
		failed := err // err itself stays off the heap
		pp.failure.Store(&failed)
		pp.failures.Add(1)
	}
	pp.outcomesMu.Lock()
	first := len(pp.outcomes) == 0
	pp.outcomes = append(pp.outcomes, outcome{e, id, err})
	pp.outcomesMu.Unlock()
	if first {
		select {
		case pp.wake <- struct{}{}:
		default:
		}
	}
}

// run takes outcomes and replaces broken producers until ctx ends.
func (pp *partitionPublisher) run(ctx context.Context) {
	defer close(pp.ended)
	if pp.after != nil {
		select {
		case <-pp.after:
		case <-ctx.Done():
		}
	}
	pp.replace(ctx, nil)
	for {
		var broken error
		select {
		case <-ctx.Done():
			pp.abandon()
			return
		case <-pp.wake:
			broken = pp.takeOutcomes()
		case broken = <-pp.lost:
		case <-pp.check:
			broken = pp.watch(ctx, time.Now())
		}
		if broken != nil {
			pp.replace(ctx, broken)
		}
	}
}

// retireProducer returns the producer once no goroutine uses it: closing it closes channels that
// senders and the flusher write to. They end soon: the client's queue has room for all that is
// admitted, and a flush ends with the generation.
func (pp *partitionPublisher) retireProducer() pulsar.Producer {
	pp.mu.Lock()
	raw := pp.producer
	pp.producer = nil // from now on callers only enter the list
	pp.retire()
	pp.mu.Unlock()
	pp.sends.Wait()
	return raw
}

// giveUp has an owner's producer retired for cause. Records in it that were not flushed are not
// sent.
func (pp *partitionPublisher) giveUp(cause error) {
	select {
	case pp.lost <- cause:
	default: // it is lost already
	}
}

// takeOutcomes reports the outcomes that have arrived, and returns what broke the producer, or nil.
func (pp *partitionPublisher) takeOutcomes() (broken error) {
	pp.outcomesMu.Lock()
	batch := pp.outcomes
	pp.outcomes = pp.spare[:0]
	pp.outcomesMu.Unlock()

	var acked, failed, ackedBytes int64
	pp.mu.Lock()
	pp.reporting = true
	head := pp.list.Head()
	live := batch[:0]
	for i, c := range batch {
		if i%outcomeRun == outcomeRun-1 { // callers wait for the lock
			pp.grant()
			pp.mu.Unlock()
			pp.mu.Lock()
		}
		if c.e.stale {
			continue
		}
		if c.err != nil {
			switch clientquirks.Classify(c.err) {
			case clientquirks.TooLarge:
				c.err = &record.TooLargeError{Payload: c.e.msg.Payload, Err: c.err}
			case clientquirks.Terminated:
				broken = record.ErrTopicTerminated
				continue
			case clientquirks.Retriable:
				if broken == nil {
					broken = c.err
				}
				continue
			}
			failed++
		} else if pp.p.profile.ProducerName != "" && c.e.msg.SequenceID == nil && record.IDOf(c.id, pp.named).Deduplicated() {
			// The producer's ids are below the broker's last one for its name: a new producer
			// starts above it.
			c.err, broken = record.ErrDeduplicated, record.ErrDeduplicated
			failed++
		} else {
			acked++
			ackedBytes += c.e.size
		}
		pp.list.Remove(c.e)
		pp.count--
		pp.bytes -= c.e.size
		live = append(live, c)
	}
	var now time.Time
	if len(live) > 0 {
		now = time.Now()
	}
	if acked > 0 {
		pp.backoff.Reset()
	}
	resumed := false
	if pp.list.Head() != head {
		pp.headSince = now
		resumed, pp.stalled = pp.stalled, false
	}
	pp.grant()
	drained := pp.takeDrained()
	pp.mu.Unlock()

	m := pp.p.metrics
	if resumed {
		m.stalled.Dec()
		pp.log.Info("publishing resumed")
	}
	for i := range live {
		c := &live[i]
		if c.err == nil && c.e.at != 0 {
			m.ack.Observe(float64(now.UnixNano()-c.e.at) / 1e9)
		}
		id := record.IDOf(c.id, pp.named)
		if c.e.again {
			id = record.MarkSentAgain(id)
		}
		c.e.done(id, c.err)
	}
	m.acked.Add(float64(acked))
	m.failed.Add(float64(failed))
	m.ackedBytes.Add(float64(ackedBytes))
	pp.finishReport(drained, live)
	clear(batch)
	pp.spare = batch
	return broken
}

// watch reports an oldest record that is not acknowledged, once, and gives up on a producer that
// has closed itself or has exceeded AckTimeout. Only the oldest record counts: the client can lose
// one record's callback and continue with others.
func (pp *partitionPublisher) watch(ctx context.Context, now time.Time) (broken error) {
	pp.mu.Lock()
	since := pp.headSince
	age := now.Sub(since)
	waiting := pp.list.Head() != nil
	stalled := waiting && age > stallAfter && !pp.stalled
	if stalled {
		pp.stalled = true
	}
	raw := pp.producer
	count, bytes := pp.count, pp.bytes
	if !waiting && age > stallAfter {
		pp.free = nil // do not keep the memory of a burst
		pp.watched = false
		pp.p.parent.watcher.remove(pp.check)
	}
	pp.mu.Unlock()
	if waiting && age > watchEvery {
		_ = pp.p.parent.Reach.Err() // looks, for those who ask why
	}
	if waiting && raw != nil {
		switch {
		case age > pp.p.profile.AckTimeout:
			if pp.ackProbe.lost(ctx, since, now) {
				broken = errAckTimeout
			}
		case age > watchEvery && clientquirks.IsClosed(raw):
			broken = pulsar.ErrProducerClosed
		}
	}
	if stalled {
		pp.p.metrics.stalled.Inc()
		pp.log.Warn("publishing stalled: no acknowledgement from the broker, records wait",
			zap.Int("pending_records", count), zap.Duration("since", age.Round(time.Millisecond)))
	}
	pp.report(count, bytes)
	return broken
}

func (pp *partitionPublisher) report(count int, bytes int64) {
	pp.p.metrics.pending.Add(float64(count - pp.reportedCount))
	pp.p.metrics.pendingBytes.Add(float64(bytes - pp.reportedBytes))
	pp.reportedCount, pp.reportedBytes = count, bytes
}

// wait returns when the outcome of every record admitted so far has been reported.
func (pp *partitionPublisher) wait(ctx context.Context) error {
	pp.mu.Lock()
	if pp.list.Head() == nil && !pp.reporting {
		pp.mu.Unlock()
		return nil
	}
	w := drainWaiter{seq: pp.admitted, done: make(chan struct{})}
	pp.drained = append(pp.drained, w)
	pp.mu.Unlock()
	select {
	case <-w.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// takeDrained returns those whose records all have an outcome. They are released when it has been
// reported. pp.mu is held.
func (pp *partitionPublisher) takeDrained() (out []drainWaiter) {
	head := pp.list.Head()
	pp.drained = slices.DeleteFunc(pp.drained, func(w drainWaiter) bool {
		done := head == nil || head.seq > w.seq
		if done {
			out = append(out, w)
		}
		return done
	})
	return out
}

// finishReport recycles the records of reported outcomes and releases those that waited for them,
// also those that came during the report and found the list empty.
func (pp *partitionPublisher) finishReport(drained []drainWaiter, outcomes []outcome) {
	pp.mu.Lock()
	pp.reporting = false
	for i := range outcomes {
		pp.recycle(outcomes[i].e)
	}
	drained = append(drained, pp.takeDrained()...)
	pp.mu.Unlock()
	for _, w := range drained {
		close(w.done)
	}
}

// newPending returns a pending record, recycled where possible. pp.mu is held.
func (pp *partitionPublisher) newPending() *pending {
	if len(pp.free) == 0 {
		slab := make([]pending, slabSize)
		for i := range slab {
			e := &slab[i]
			e.receipt = func(id pulsar.MessageID, _ *pulsar.ProducerMessage, err error) { pp.noteOutcome(e, id, err) }
			pp.free = append(pp.free, e)
		}
	}
	e := pp.free[len(pp.free)-1]
	pp.free = pp.free[:len(pp.free)-1]
	return e
}

// recycle takes back a record that had its outcome, but no stale one: a late receipt may still
// arrive for it. pp.mu is held.
func (pp *partitionPublisher) recycle(e *pending) {
	if e.size > smallRecord { // else not worth the cache miss: fill overwrites it
		e.msg.Payload, e.msg.Key, e.msg.OrderingKey, e.msg.Properties = nil, "", "", nil
	}
	e.done = nil
	pp.free = append(pp.free, e)
}

// fill makes e carry r. The message's other fields are never set.
func (e *pending) fill(r *record.Record, size int64, done func(record.MessageID, error)) {
	e.msg.Payload, e.msg.Key, e.msg.OrderingKey, e.msg.Properties = r.Payload, r.Key, r.OrderingKey, r.Properties
	e.msg.EventTime, e.msg.DeliverAt, e.msg.SequenceID = r.EventTime, r.DeliverAt, nil
	if r.SequenceID != nil {
		e.number(*r.SequenceID)
	}
	e.size, e.done = size, done
	e.at, e.sent, e.again, e.stale = 0, false, false, false
}

func (e *pending) number(id int64) {
	e.sequenceID = id
	e.msg.SequenceID = &e.sequenceID
}

// markEmpty adds PropertyEmpty to an unbatched message with an empty payload, which consumers of
// pulsar-client-go v0.21.0 do not get as it was: see clientquirks.CompressedNothing.
func (e *pending) markEmpty() {
	if e.msg.Payload == nil || len(e.msg.Payload) > 0 || e.msg.Properties[record.PropertyEmpty] == "true" {
		return
	}
	marked := make(map[string]string, len(e.msg.Properties)+1) // the record's own stay as they are
	maps.Copy(marked, e.msg.Properties)
	marked[record.PropertyEmpty] = "true"
	e.msg.Properties = marked
}
