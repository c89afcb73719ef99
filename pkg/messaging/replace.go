package messaging

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/backoff"
)

// replace retires the lane's producer, makes another, and sends again all that is
// not acknowledged, in order, before anything newer. It tries until it succeeds,
// the topic turns out to be terminated, or ctx ends. cause is nil for the lane's
// first producer.
func (l *lane) replace(ctx context.Context, cause error) {
	old := l.retireProducer()
	if cause != nil {
		l.p.metrics.recreated.WithLabelValues(l.p.profile.Name, reason(cause)).Inc()
		if !l.backoff.Started() {
			l.log.Warn("producer lost", zap.Error(cause))
		}
	}
	if errors.Is(cause, ErrTopicTerminated) {
		closeProducer(ctx, old)
		l.fail(ErrTopicTerminated)
		return
	}
	// The old producer is closed, and the close answered, before another one
	// writes: what it still had on the wire cannot then be stored behind the
	// copies that are sent again.
	closeProducer(ctx, old)
	if cause != nil && l.p.profile.OnLoss == FailOnLoss {
		_ = l.settle() // outcomes that have arrived still count
		l.fail(fmt.Errorf("%w: %w", ErrProducerLost, cause))
		return
	}

	for attempt := 0; ; attempt++ {
		// The backoff starts over with an acknowledgement, not with a producer: one
		// that is made and breaks at once must not become a busy loop.
		if l.backoff.Started() && !backoff.Sleep(ctx, l.backoff.Current()) {
			return
		}
		l.backoff.Next()
		raw, err := l.create(ctx)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			l.resume(raw)
			if cause != nil || attempt > 0 {
				l.log.Info("producer connected", zap.Int("attempt", attempt+1))
			}
			return
		}
		if classify(err) == terminated {
			l.fail(ErrTopicTerminated)
			return
		}
		l.p.noteConnectError(err)
		if attempt == 0 {
			l.log.Warn("cannot create producer, will keep trying", zap.Error(err))
		}
	}
}

// create makes a producer. The underlying call has no context: when ours ends
// first the producer, should it still come, is closed behind.
func (l *lane) create(ctx context.Context) (pulsar.Producer, error) {
	type result struct {
		raw pulsar.Producer
		err error
	}
	made := make(chan result) // unbuffered: a producer is handed over or closed
	go func() {
		raw, err := l.p.client.producers.CreateProducer(l.rawOptions())
		select {
		case <-ctx.Done():
			if err == nil {
				shutProducer(raw)
			}
		case made <- result{raw, err}:
		}
	}()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case r := <-made:
		return r.raw, r.err
	}
}

// resume sends the whole list to raw in order, then lets callers send to it
// themselves. Each record is sent as a copy, so that late outcomes from the
// previous producer find a stale original and change nothing.
func (l *lane) resume(raw pulsar.Producer) {
	l.mu.Lock()
	for e := l.list.head; e != nil; {
		next := e.next
		if e.sent {
			n := l.newPending()
			n.msg, n.size, n.seq, n.at, n.done = e.msg, e.size, e.seq, e.at, e.done
			n.sent, n.again, n.stale = false, true, false
			e.stale = true
			l.list.swap(e, n)
		}
		e = next
	}
	l.progress = time.Now()
	// Only this goroutine removes from the list, so the cursor stays valid while
	// the lock is released; callers append behind it.
	var last *pending
	for {
		next := l.list.head
		if last != nil {
			next = last.next
		}
		if next == nil {
			break
		}
		next.sent = true
		last = next
		l.mu.Unlock()
		l.send(raw, next)
		l.mu.Lock()
	}
	l.producer = raw
	l.generation, l.retire = context.WithCancel(context.Background())
	l.mu.Unlock()
	if last != nil {
		l.nudge()
	}
	l.markReady()
}

// fail ends the lane for good: every record, waiting caller and later caller gets
// err.
func (l *lane) fail(err error) {
	l.shut(err)
	l.dropAll(err)
	l.log.Error("publishing ended", zap.Error(err))
	l.markReady()
	select {
	case <-l.failed:
	default:
		close(l.failed)
	}
}

// abandon ends the lane when the publisher closes: what is still on the list gets
// ErrUnacknowledged, and the producer is closed.
func (l *lane) abandon() {
	_ = l.settle() // outcomes that have arrived still count; what broke no longer matters
	raw := l.retireProducer()
	l.p.noteUnacknowledged(l.dropAll(ErrUnacknowledged))
	l.report(0, 0)
	l.markReady()
	if raw != nil {
		within(l.p.closeCtx(), func() { shutProducer(raw) })
	}
}

// dropAll gives every record on the list the outcome err and returns their number.
func (l *lane) dropAll(err error) int {
	l.mu.Lock()
	head := l.list.head
	l.list = pendingList{}
	n := 0
	for e := head; e != nil; e = e.next {
		e.stale = true
		l.count--
		l.bytes -= e.size
		n++
	}
	if l.stalled {
		l.stalled = false
		l.p.metrics.stalled.Dec()
	}
	drained := l.takeDrained()
	l.telling = true
	l.mu.Unlock()
	for e := head; e != nil; e = e.next {
		e.done(MessageID{}, err)
	}
	l.told(drained, nil)
	l.p.metrics.failed.Add(float64(n))
	return n
}

// markReady says that the lane has had its first producer, or failed. Only the
// lane's goroutine calls it.
func (l *lane) markReady() {
	select {
	case <-l.ready:
	default:
		close(l.ready)
	}
}

// closeProducer closes raw and waits for that until ctx ends. The close request
// itself is bounded by the client's operation timeout.
func closeProducer(ctx context.Context, raw pulsar.Producer) {
	if raw != nil {
		within(ctx, func() { shutProducer(raw) })
	}
}

// shutProducer closes raw. A producer that closes itself in the same moment can
// panic on its closed command channel.
func shutProducer(raw pulsar.Producer) {
	defer func() { _ = recover() }()
	raw.Close()
}

// reason is a short, bounded word for a cause, for the metric's label.
func reason(cause error) string {
	switch {
	case errors.Is(cause, errAckTimeout):
		return "ack_timeout"
	case errors.Is(cause, ErrTopicTerminated):
		return "terminated"
	case errors.Is(cause, pulsar.ErrProducerFenced):
		return "fenced"
	case errors.Is(cause, pulsar.ErrTopicNotfound):
		return "topic_not_found"
	case errors.Is(cause, pulsar.ErrProducerBlockedQuotaExceeded):
		return "quota_exceeded"
	case errors.Is(cause, pulsar.ErrProducerClosed):
		return "closed"
	default:
		return "other"
	}
}

// rawOptions are the underlying producer's options.
func (l *lane) rawOptions() pulsar.ProducerOptions {
	p := l.p.profile
	name := p.ProducerName
	if name != "" && l.p.partitioned() {
		name = fmt.Sprintf("%s-%d", name, l.index)
	}
	l.mu.Lock()
	depth := l.maxCount
	for e := l.list.head; e != nil; e = e.next {
		depth++ // the share may have shrunk since these were admitted
	}
	l.mu.Unlock()
	return pulsar.ProducerOptions{
		Topic: l.topic,
		Name:  name,
		// Bounds are ours: the client's queue is as deep as the lane admits and so
		// is never full, and its semaphore, whose Release can block the reader
		// goroutine, is never waited on.
		MaxPendingMessages:      depth,
		DisableBlockIfQueueFull: true,
		// A send timeout fails the oldest records and lets later ones through.
		// AckTimeout replaces the producer instead, which keeps order.
		SendTimeout:             -1,
		DisableBatching:         p.unbatched(),
		BatchingMaxPublishDelay: max(p.Linger, time.Millisecond),
		BatchingMaxMessages:     uint(p.BatchRecords),
		BatchingMaxSize:         uint(p.BatchBytes),
		CompressionType:         p.Compression.raw(),
		ProducerAccessMode:      p.Access.raw(),
		BackOffPolicyFunc:       newBackoff,
		// Partitions are found by the publisher: each lane's topic is one partition.
		PartitionsAutoDiscoveryInterval: 1000 * time.Hour,
	}
}
func (c Compression) raw() pulsar.CompressionType {
	switch c {
	case LZ4:
		return pulsar.LZ4
	case ZSTD:
		return pulsar.ZSTD
	default:
		return pulsar.NoCompression
	}
}

func (a Access) raw() pulsar.ProducerAccessMode {
	switch a {
	case ExclusiveAccess:
		return pulsar.ProducerAccessModeExclusive
	case WaitForExclusiveAccess:
		return pulsar.ProducerAccessModeWaitForExclusive
	default:
		return pulsar.ProducerAccessModeShared
	}
}
