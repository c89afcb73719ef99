package engine

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/eventbridge/event"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/store"
	"github.com/aviaryhq/aviary/pkg/backoff"
	"github.com/aviaryhq/aviary/pkg/eventpattern"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// bus is what the engine does for one bus.
type bus struct {
	engine  *Engine
	name    string
	log     *zap.Logger
	lines   *zap.Logger // for lines about single events: sampled
	metrics *busMetrics
	rules   *rules
	newest  atomic.Pointer[model.Bus]
	exists  atomic.Pointer[map[string]bool] // UIDs of the subscribers, disabled ones included
	after   <-chan struct{}                 // closed when the work for the former bus of this name has ended; may be nil
	begin   sync.Once
	done    chan struct{} // closed when the work for this bus has ended

	running   context.Context // of consuming
	halt      context.CancelFunc
	queues    *sendQueues // of subscribers that are not ordered
	endQueues context.CancelFunc

	mu        sync.Mutex
	owned     map[int]*partition // the partitions that this engine owns
	unhealthy error

	consumer *messaging.Consumer
	held     error // why nothing is consumed; nil: the bus is consumed
}

// update makes the engine match events for the subscribers of a snapshot. It returns false if the
// record of one of them cannot be read: the engine does not consume the bus then, because that
// subscriber would lose events.
func (b *bus) update(s *store.Snapshot) bool {
	b.newest.Store(s.Bus(b.name))
	if err := unreadable(s.Unreadable(), b.name); err != nil {
		b.hold(err)
		return false
	}
	var wanted []*model.Subscriber
	exists := make(map[string]bool)
	count := 0
	for sub := range s.Subscribers(b.name) {
		exists[sub.UID] = true
		if sub.State != model.Disabled {
			wanted = append(wanted, sub)
			count += len(sub.Rules)
		}
	}
	b.exists.Store(&exists)
	b.rules.change(wanted, b.queues.of)
	b.metrics.rules.Set(float64(count))
	b.forget(exists)
	b.hold(nil)
	return true
}

// unreadable returns which subscribers of a bus the registry has and cannot read.
func unreadable(keys map[string]string, bus string) error {
	var errs []error
	for key, reason := range keys {
		if name, ok := strings.CutPrefix(key, "sub/"+bus+"/"); ok {
			errs = append(errs, fmt.Errorf("the record of subscriber %s cannot be read, and its events would be lost: %s", name, reason))
		}
	}
	return errors.Join(errs...)
}

// hold stops consuming the bus because of err; nil resumes.
func (b *bus) hold(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil && b.held == nil {
		b.log.Error("the engine has stopped consuming the bus", zap.Error(err))
	}
	b.held = err
	b.pauseOrResume()
}

// pauseOrResume pauses the consumer while held is set, and resumes it otherwise. The caller holds
// b.mu.
func (b *bus) pauseOrResume() {
	switch {
	case b.consumer == nil:
	case b.held != nil:
		b.consumer.Pause()
	default:
		b.consumer.Resume()
	}
}

// forget ends the queues of subscribers that do not exist any more.
func (b *bus) forget(exists map[string]bool) {
	b.queues.forget(exists)
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range b.owned {
		p.queues.forget(exists)
	}
}

// run consumes the bus until running ends.
func (b *bus) run() {
	defer func() { // no copies are added any more
		b.endQueues()
		b.queues.working.Wait()
		close(b.done)
	}()
	if b.after != nil {
		<-b.after
	}
	ctx, stop := context.WithCancelCause(b.running)
	defer stop(nil)
	var pause backoff.Backoff
	for ctx.Err() == nil {
		err := b.consume(ctx, stop)
		if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
			b.setUnhealthy(cause)
			b.log.Error("the engine of the bus has stopped", zap.Error(cause))
			return
		}
		if ctx.Err() != nil || errors.Is(err, messaging.ErrClosed) {
			return
		}
		b.setUnhealthy(err)
		pause.Wait(ctx)
	}
}

// prefetchMessages bounds the events of a bus that are here and not acknowledged: what small events
// take beside their bytes.
const prefetchMessages = 5000

// consume consumes the bus until ctx ends, or it cannot continue.
func (b *bus) consume(ctx context.Context, stop context.CancelCauseFunc) error {
	config := b.newest.Load()
	if err := b.engine.maker.MakeBus(ctx, config); err != nil {
		return err
	}
	cfg := messaging.DefaultConsumerConfig()
	own := b.engine.cfg
	topics := b.engine.topics
	cfg.Topics, cfg.Subscription, cfg.Type = []string{topics.Events(b.name)}, model.EngineSubscription, messaging.Failover
	cfg.Order, cfg.Concurrency = messaging.OrderPartition, min(max(config.Partitions, 4), 32)
	cfg.PrefetchMessages, cfg.PrefetchBytes = prefetchMessages, own.PrefetchBytes
	cfg.HeldMessages, cfg.HeldBytes = prefetchMessages, own.PrefetchBytes
	cfg.MaxMessageBytes = 4 << 10 // most events are smaller; to make the queue longer later would give up partitions for a second
	cfg.StopTimeout, cfg.AckEvery = own.StopTimeout, 20*time.Millisecond
	cfg.Retry = messaging.Retry{
		MinDelay: backoff.Min, MaxDelay: backoff.Max, // of events that the engine gives up; only Reject ends attempts
		DeadLetterTopic: topics.BusDeadLetter(b.name), DeadLetterSubscription: model.DeliverSubscription,
	}
	consumer, err := b.engine.client.Consumer(cfg, messaging.OnOwned(b.own))
	if err != nil {
		return err
	}
	b.mu.Lock()
	b.consumer = consumer
	b.pauseOrResume()
	b.mu.Unlock()
	b.setUnhealthy(nil)
	return consumer.RunAsync(ctx, func(ctx context.Context, d *messaging.Delivery, p messaging.PendingDelivery) {
		if err := b.take(ctx, d, p); err != nil {
			p.Complete(err)
			stop(err)
		}
	})
}

// setUnhealthy records why the bus cannot be consumed, and logs when that begins; nil ends it.
func (b *bus) setUnhealthy(err error) {
	b.mu.Lock()
	first := b.unhealthy == nil && err != nil
	b.unhealthy = err
	b.mu.Unlock()
	if first {
		b.log.Warn("cannot consume the bus, will keep trying", zap.Error(err))
	}
}

// own begins the ownership of a partition, which ends with ctx.
func (b *bus) own(ctx context.Context, topic string, index int) {
	p := &partition{
		bus: b, topic: topic, index: index, ctx: ctx, queues: newSendQueues(ctx, b, index),
		window: newWindow(time.Duration(b.newest.Load().DedupWindow), &b.engine.capacity),
	}
	b.mu.Lock()
	b.owned[index] = p
	b.mu.Unlock()
	b.log.Info("took over a partition", zap.Int("partition", index))
	b.engine.working.Go(func() {
		p.watch()
		b.mu.Lock()
		if b.owned[index] == p {
			delete(b.owned, index)
		}
		b.mu.Unlock()
		p.mu.Lock() // no copies are added any more
		p.window.close()
		p.mu.Unlock()
		p.queues.working.Wait()
		b.log.Info("released a partition", zap.Int("partition", index), zap.NamedError("because", context.Cause(ctx)))
	})
}

// take matches one event. An error says that the engine cannot continue with the bus.
func (b *bus) take(ctx context.Context, d *messaging.Delivery, pending messaging.PendingDelivery) error {
	b.mu.Lock()
	p := b.owned[d.Partition]
	b.mu.Unlock()
	if p == nil {
		pending.Complete(errReleased)
		return nil
	}
	position, err := positionOf(d.ID)
	if err != nil {
		return err
	}
	e, err := event.Decode(d.Payload)
	if err != nil {
		b.refuse(d, pending, err)
		return nil
	}
	p.mu.Lock() // a handler of an earlier ownership may still run
	defer p.mu.Unlock()
	if p.ctx.Err() != nil || ctx.Err() != nil {
		pending.Complete(errReleased)
		return nil
	}
	hash := identityOf(d, &e)
	if p.again(ctx, hash, position, d) {
		b.metrics.duplicate.Inc()
		pending.Complete(nil)
		return nil
	}
	if err := p.matcher.match(b.rules, d.Payload); err != nil {
		var fault *eventpattern.EventError
		if errors.As(err, &fault) {
			p.window.refuse(hash, position)
			b.refuse(d, pending, err)
			return nil
		}
		return fmt.Errorf("cannot match: %w", err)
	}
	if len(p.matcher.subscribers) == 0 {
		b.metrics.unmatched.Inc()
		pending.Complete(nil)
		return nil
	}
	b.metrics.matched.Inc()
	m := &eventInFlight{pending: pending, published: d.PublishTime, metrics: b.metrics}
	m.left.Store(int32(len(p.matcher.subscribers)) + 1)
	for _, s := range p.matcher.subscribers {
		c := pendingCopy{position: position, event: m, record: copyOf(d, s, e.PartitionKey, position)}
		c.size = messaging.EntryBytes(c.record)
		q := s.sendQueue
		if s.ordered {
			q = p.queues.of(s.Subscriber)
		}
		switch {
		case q == nil: // the subscriber was deleted meanwhile
			m.done(nil)
		case !q.add(ctx, c):
			m.done(errReleased)
		}
	}
	m.done(nil)
	return nil
}

// copyOf makes the copy of an event for a subscriber.
func copyOf(d *messaging.Delivery, s *subscriber, key string, position int64) *messaging.Record {
	r := &messaging.Record{Key: key, Payload: d.Payload, EventTime: d.EventTime, Properties: make(map[string]string, 3)}
	model.CopyProperties(r.Properties, d.Properties)
	if s.ordered {
		r.Properties[PropertyPosition] = strconv.FormatInt(position, 10)
		r.SequenceID = &position
	}
	return r
}

// refuse makes an event that cannot be matched a dead letter of the bus.
func (b *bus) refuse(d *messaging.Delivery, pending messaging.PendingDelivery, err error) {
	b.metrics.refusedEvents.Inc()
	b.lines.Warn("an event cannot be matched and becomes a dead letter of the bus", zap.Stringer("message_id", d.ID), zap.Error(err))
	pending.Complete(messaging.Reject(err))
}

// partition is what the engine has for one partition, as long as it owns the partition.
type partition struct {
	bus   *bus
	topic string
	index int
	ctx   context.Context

	mu      sync.Mutex // one event at a time
	matcher matcher
	window  *window
	rebuilt bool
	judged  time.Time // when the last event was judged

	queues *sendQueues // of ordered subscribers
}

// again reports whether an event is a duplicate to drop. Before the first event, it reads the
// window back.
func (p *partition) again(ctx context.Context, hash identity, position int64, d *messaging.Delivery) bool {
	p.window.length = time.Duration(p.bus.newest.Load().DedupWindow)
	if p.window.length <= 0 {
		return false
	}
	if !p.rebuilt {
		p.rebuild(ctx, d.PublishTime)
		p.rebuilt = true
	}
	p.judged = time.Now()
	again, forgotten := p.window.judge(hash, position, d.PublishTime)
	p.bus.metrics.forgot.Add(float64(forgotten))
	return again
}

// watch waits until the partition is given up. A window forgets events only when others come. So
// watch empties the window if capacity is scarce and the partition gets no events. The next event
// then reads the window back.
func (p *partition) watch() {
	t := time.NewTicker(time.Minute)
	defer t.Stop()
	for {
		select {
		case <-p.ctx.Done():
			return
		case <-t.C:
		}
		if capacity := p.window.capacity; capacity.used.Load() <= capacity.most/2 || !p.mu.TryLock() {
			continue
		}
		if p.rebuilt && time.Since(p.judged) > p.window.length {
			p.window.close()
			p.rebuilt = false
		}
		p.mu.Unlock()
	}
}
