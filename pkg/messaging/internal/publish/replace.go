package publish

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/pkg/backoff"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/clientquirks"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/cluster"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/list"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/record"
)

// replace makes another producer and sends again all that is not acknowledged. It tries until it
// succeeds, fails for good, or ctx ends. cause is nil for the partition's first producer.
func (pp *partitionPublisher) replace(ctx context.Context, cause error) {
	if pp.failed {
		return
	}
	old := pp.retireProducer()
	if cause != nil {
		pp.p.metrics.recreated.WithLabelValues(reasonOf(cause)).Inc()
		if !pp.backoff.Started() {
			pp.log.Warn("producer lost", zap.Error(cause))
		}
	}
	// The broker answers the close before another producer writes: otherwise records that the old one
	// had on the wire could be stored behind the copies that are sent again.
	if old != nil {
		clientquirks.Within(ctx, func() { clientquirks.CloseProducer(old) })
	}
	if errors.Is(cause, record.ErrTopicTerminated) {
		pp.fail(record.ErrTopicTerminated)
		return
	}
	if cause != nil && pp.p.profile.owns() {
		_ = pp.takeOutcomes() // outcomes that have arrived still count
		pp.fail(fmt.Errorf("%w: %w", record.ErrProducerLost, cause))
		return
	}

	for attempt := 0; ; attempt++ {
		// An acknowledgement resets the backoff, a producer does not: it may break at once.
		if pp.backoff.Started() && !backoff.Sleep(ctx, pp.backoff.Current()) {
			return
		}
		pp.backoff.Next()
		raw, err := pp.create(ctx)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			pp.resume(raw)
			if cause != nil || attempt > 0 {
				pp.log.Info("producer connected", zap.Int("attempt", attempt+1))
			}
			return
		}
		if clientquirks.Classify(err) == clientquirks.Terminated {
			pp.fail(record.ErrTopicTerminated)
			return
		}
		if final := cluster.OpeningFailure(err, pp.p.profile.refusedWhileOwned()); final != nil && pp.opening {
			pp.fail(final)
			return
		}
		pp.p.noteConnectError(err)
		if attempt == 0 {
			pp.log.Warn("cannot create producer, will keep trying", zap.Error(err))
		}
	}
}

// create makes a producer. One that comes after ctx has ended is closed.
func (pp *partitionPublisher) create(ctx context.Context) (pulsar.Producer, error) {
	return clientquirks.CallUntil(ctx, func() (pulsar.Producer, error) {
		return pp.p.parent.Producers.CreateProducer(pp.rawOptions())
	}, clientquirks.CloseProducer)
}

// resume sends the whole list to raw in order, then lets callers send to it. Records that were sent
// before go as copies, so that late outcomes of the previous producer find a stale original.
func (pp *partitionPublisher) resume(raw pulsar.Producer) {
	pp.mu.Lock()
	pp.headSince = time.Now()
	pp.opening = false
	// Only this goroutine removes from the list, so e stays in it while the lock is released;
	// callers append behind it.
	resent := false
	for e := pp.list.Head(); e != nil; e = pp.list.Next(e) {
		if e.sent {
			n := pp.newPending()
			n.msg, n.size, n.seq, n.at, n.done = e.msg, e.size, e.seq, e.at, e.done
			n.again, n.stale = true, false
			e.stale = true
			pp.list.Swap(e, n)
			e = n
		}
		e.sent, resent = true, true
		pp.mu.Unlock()
		pp.send(raw, e)
		pp.mu.Lock()
	}
	pp.unsent, pp.unsentCount, pp.unsentBytes = nil, 0, 0
	pp.producer = raw
	pp.generation, pp.retire = context.WithCancel(context.Background())
	pp.mu.Unlock()
	if resent {
		pp.requestFlush()
	}
	pp.markReady()
}

// fail ends the partition for good: every record and every caller gets err.
func (pp *partitionPublisher) fail(err error) {
	pp.failed = true
	pp.shut(err)
	if pp.p.profile.owns() {
		pp.p.endOwnership(fmt.Errorf("%s: %w", pp.topic, err))
	}
	pp.dropAll(err)
	if !pp.opening { // else the error is returned
		pp.log.Error("publishing ended", zap.Error(err))
	}
	pp.markReady()
}

// abandon ends the partition when the publisher closes.
func (pp *partitionPublisher) abandon() {
	_ = pp.takeOutcomes() // outcomes that have arrived still count; what broke no longer matters
	raw := pp.retireProducer()
	pp.p.lost.Add(int64(pp.dropAll(record.ErrUnacknowledged)))
	pp.report(0, 0)
	pp.p.parent.watcher.remove(pp.check)
	pp.p.flusher.Forget(&pp.flush)
	pp.markReady()
	if raw != nil {
		clientquirks.Within(*pp.p.closing.Load(), func() { clientquirks.CloseProducer(raw) })
	}
}

// dropAll gives every record on the list the outcome err and returns their number.
func (pp *partitionPublisher) dropAll(err error) int {
	pp.mu.Lock()
	dropped := pp.list
	pp.list = list.List[pending, *pending]{}
	pp.unsent, pp.unsentCount, pp.unsentBytes = nil, 0, 0
	n := 0
	for e := dropped.Head(); e != nil; e = dropped.Next(e) {
		e.stale = true
		pp.count--
		pp.bytes -= e.size
		n++
	}
	if pp.stalled {
		pp.stalled = false
		pp.p.metrics.stalled.Dec()
	}
	drained := pp.takeDrained()
	pp.reporting = true
	pp.mu.Unlock()
	for e := dropped.Head(); e != nil; e = dropped.Next(e) {
		e.done(record.MessageID{}, err)
	}
	pp.finishReport(drained, nil)
	pp.p.metrics.failed.Add(float64(n))
	return n
}

// markReady is for the partition's goroutine only.
func (pp *partitionPublisher) markReady() {
	select {
	case <-pp.ready:
	default:
		close(pp.ready)
	}
}

var (
	errAckTimeout     = errors.New("no acknowledgement within ack_timeout")
	errConnectionLost = errors.New("connection lost")
)

// reasons are the labels that the metric has for causes, besides "other".
func reasons() []reason {
	return []reason{
		{errAckTimeout, "ack_timeout"}, {errConnectionLost, "connection"},
		{record.ErrDeduplicated, "deduplicated"}, {record.ErrTopicTerminated, "terminated"},
		{pulsar.ErrProducerFenced, "fenced"}, {pulsar.ErrTopicNotfound, "topic_not_found"},
		{pulsar.ErrProducerBlockedQuotaExceeded, "quota_exceeded"}, {pulsar.ErrProducerClosed, "closed"},
	}
}

type reason struct {
	cause error
	label string
}

func reasonOf(cause error) string {
	for _, r := range reasons() {
		if errors.Is(cause, r.cause) {
			return r.label
		}
	}
	return "other"
}

// rawOptions are the underlying producer's options.
func (pp *partitionPublisher) rawOptions() pulsar.ProducerOptions {
	p := pp.p.profile
	name := p.ProducerName
	if name != "" && pp.p.partitioned() {
		name = fmt.Sprintf("%s-%d", name, pp.index)
	}
	pp.mu.Lock()
	depth := pp.maxCount
	for e := pp.list.Head(); e != nil; e = pp.list.Next(e) {
		depth++ // the share may have shrunk since these were admitted
	}
	pp.mu.Unlock()
	options := pulsar.ProducerOptions{
		Topic: pp.topic,
		Name:  name,
		// The client's queue is never full: its semaphore's Release can block the reader goroutine.
		MaxPendingMessages:      depth,
		DisableBlockIfQueueFull: true,
		// A send timeout would fail the oldest records and let later ones through.
		SendTimeout:     -1,
		DisableBatching: p.unbatched(),
		// The flusher sends batches: the client's timer would fire for idle partitions too.
		BatchingMaxPublishDelay: clientquirks.Never,
		BatchingMaxMessages:     uint(p.BatchRecords),
		BatchingMaxSize:         uint(p.BatchBytes),
		CompressionType:         p.Compression.raw(),
		ProducerAccessMode:      p.Ownership.raw(),
		// The publisher finds new partitions itself.
		PartitionsAutoDiscoveryInterval: clientquirks.Never,
	}
	if p.owns() {
		clientquirks.NoReconnect(&options, func() { pp.giveUp(errConnectionLost) })
	} else {
		options.BackOffPolicyFunc = clientquirks.NewBackoff
	}
	return options
}
