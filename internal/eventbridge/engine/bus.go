package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/eventbridge/event"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry"
	"github.com/aviaryhq/aviary/pkg/match"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// bus is what the engine does for one bus.
type bus struct {
	engine  *Engine
	name    string
	log     *zap.Logger
	lines   *zap.Logger // about single events: some of them
	metrics *busMetrics
	rules   *rules
	newest  atomic.Pointer[registry.Bus]
	exists  atomic.Pointer[map[string]bool] // UIDs of the subscribers, disabled ones included
	after   <-chan struct{}                 // what worked for a bus of this name before; may be nil
	begin   sync.Once
	done    chan struct{} // closed when nothing works for the bus any more

	running  context.Context // consuming
	halt     context.CancelFunc
	life     context.Context // that of the lanes of subscribers that are not ordered
	endLanes context.CancelFunc

	mu      sync.Mutex
	lanes   map[string]*lane   // of subscribers that are not ordered, by UID
	owned   map[int]*partition // the partitions that this engine has
	trouble error

	consumer *messaging.Consumer
	held     error // why nothing is consumed; nil: it is
}

// update makes events be matched for the subscribers of a snapshot. It returns false when the snapshot lacks one of
// them: nothing is consumed then, since what does not match would be lost to it.
func (b *bus) update(s *registry.Snapshot) bool {
	b.newest.Store(s.Bus(b.name))
	if err := unreadable(s.Unreadable(), b.name); err != nil {
		b.hold(err)
		return false
	}
	var wanted []*registry.Subscriber
	exists := make(map[string]bool)
	count := 0
	for sub := range s.Subscribers(b.name) {
		exists[sub.UID] = true
		if sub.State != registry.Disabled {
			wanted = append(wanted, sub)
			count += len(sub.Rules)
		}
	}
	b.exists.Store(&exists)
	b.rules.change(wanted, b.laneOf)
	b.metrics.rules.Set(float64(count))
	b.forget(exists)
	b.hold(nil)
	return true
}

// unreadable says which subscribers of a bus the registry has and cannot read.
func unreadable(keys map[string]string, bus string) error {
	var errs []error
	for key, reason := range keys {
		if name, ok := strings.CutPrefix(key, "sub/"+bus+"/"); ok {
			errs = append(errs, fmt.Errorf("subscriber %s cannot be read, and events that it is to get would be lost: %s", name, reason))
		}
	}
	return errors.Join(errs...)
}

// hold has the bus not be consumed, for the reason err; nil: it goes on.
func (b *bus) hold(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil && b.held == nil {
		b.log.Error("nothing of the bus is consumed", zap.Error(err))
	}
	b.held = err
	b.pause()
}

// pause has the consumer do what held says. b.mu is held.
func (b *bus) pause() {
	switch {
	case b.consumer == nil:
	case b.held != nil:
		b.consumer.Pause()
	default:
		b.consumer.Resume()
	}
}

// laneOf returns the lane of a subscriber that is not ordered, which it makes when there is none.
func (b *bus) laneOf(s *registry.Subscriber) *lane {
	if s.Order.Ordered() {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	l := b.lanes[s.UID]
	if l == nil {
		l = b.engine.newLane(b, s, b.life, 0)
		b.lanes[s.UID] = l
	}
	return l
}

// forget ends the lanes of subscribers that do not exist any more.
func (b *bus) forget(exists map[string]bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	forget(b.lanes, exists)
	for _, p := range b.owned {
		p.laneMu.Lock()
		forget(p.lanes, exists)
		p.laneMu.Unlock()
	}
}

func forget(lanes map[string]*lane, exists map[string]bool) {
	for uid, l := range lanes {
		if !exists[uid] {
			l.forget()
			delete(lanes, uid)
		}
	}
}

// run consumes the bus until running ends.
func (b *bus) run() {
	defer close(b.done)
	defer b.end()
	if b.after != nil {
		<-b.after
	}
	ctx, stop := context.WithCancelCause(b.running)
	defer stop(nil)
	var pause pause
	for ctx.Err() == nil {
		err := b.consume(ctx, stop)
		if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
			b.note(cause)
			b.log.Error("the engine of the bus has stopped", zap.Error(cause))
			return
		}
		if ctx.Err() != nil || errors.Is(err, messaging.ErrClosed) {
			return
		}
		b.note(err)
		pause.wait(ctx)
	}
}

// consume consumes the bus until ctx ends, or it cannot go on.
func (b *bus) consume(ctx context.Context, stop context.CancelCauseFunc) error {
	config := b.newest.Load()
	if err := b.engine.maker.MakeBus(ctx, config); err != nil {
		return err
	}
	cfg := messaging.DefaultConsumerConfig()
	own := b.engine.cfg
	topics := b.engine.topics
	cfg.Topics, cfg.Subscription, cfg.Type = []string{topics.Events(b.name)}, registry.EngineSubscription, messaging.Failover
	cfg.Order, cfg.Concurrency = messaging.OrderPartition, min(max(config.Partitions, 4), 32)
	cfg.PrefetchMessages, cfg.PrefetchBytes = own.PrefetchMessages, own.PrefetchBytes
	cfg.HeldMessages, cfg.HeldBytes = own.PrefetchMessages, own.PrefetchBytes
	cfg.MaxMessageBytes = 4 << 10 // most events are smaller: a queue that is made longer later gives partitions up for a second
	cfg.AckBatchIndex, cfg.StopTimeout = own.AckBatchIndex, own.StopTimeout
	cfg.AckEvery = 20 * time.Millisecond
	cfg.StuckAfter = 3*own.StallAfter + time.Minute
	cfg.Retry = messaging.Retry{
		MinDelay: firstPause, MaxDelay: lastPause, // of what is given up; only Reject ends attempts
		DeadLetterTopic: topics.Unmatched(b.name), DeadLetterSubscription: registry.DeliverSubscription,
	}
	consumer, err := b.engine.client.Consumer(cfg, messaging.OnOwned(b.own))
	if err != nil {
		return err
	}
	b.mu.Lock()
	b.consumer = consumer
	b.pause()
	b.mu.Unlock()
	b.note(nil)
	return consumer.RunAsync(ctx, func(ctx context.Context, d *messaging.Delivery, p messaging.PendingDelivery) {
		if err := b.take(ctx, d, p); err != nil {
			p.Complete(err)
			stop(err)
		}
	})
}

// end ends the lanes. Nothing is added any more.
func (b *bus) end() {
	b.endLanes()
	b.mu.Lock()
	var all []*lane
	for _, l := range b.lanes {
		all = append(all, l)
	}
	b.mu.Unlock()
	for _, l := range all {
		l.working.Wait()
	}
}

// note keeps what is the matter; nil ends it.
func (b *bus) note(err error) {
	b.mu.Lock()
	first := b.trouble == nil && err != nil
	b.trouble = err
	b.mu.Unlock()
	if first {
		b.log.Warn("cannot consume the bus, trying on", zap.Error(err))
	}
}

// own begins a time for which a partition is this engine's, and ends it with ctx.
func (b *bus) own(ctx context.Context, topic string, index int) {
	p := &partition{
		bus: b, topic: topic, index: index, ctx: ctx, lanes: make(map[string]*lane),
		window: newWindow(time.Duration(b.newest.Load().DedupWindow), &b.engine.room),
	}
	b.mu.Lock()
	b.owned[index] = p
	b.mu.Unlock()
	b.log.Info("owning a partition", zap.Int("partition", index))
	b.engine.working.Go(func() {
		p.watch()
		b.mu.Lock()
		if b.owned[index] == p {
			delete(b.owned, index)
		}
		b.mu.Unlock()
		p.end()
		b.log.Info("giving a partition up", zap.Int("partition", index), zap.Error(context.Cause(ctx)))
	})
}

// take matches one event. An error says that the bus' engine cannot go on.
func (b *bus) take(ctx context.Context, d *messaging.Delivery, pending messaging.PendingDelivery) error {
	b.mu.Lock()
	p := b.owned[d.Partition]
	b.mu.Unlock()
	if p == nil || p.ctx.Err() != nil || ctx.Err() != nil {
		pending.Complete(errGivenUp)
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
	p.mu.Lock() // of a time before a handler may still run
	defer p.mu.Unlock()
	if ctx.Err() != nil {
		pending.Complete(errGivenUp)
		return nil
	}
	if p.again(ctx, identityOf(e.Source, e.ID), position, d) {
		b.metrics.duplicate.Inc()
		pending.Complete(nil)
		return nil
	}
	if err := p.matcher.match(b.rules, d.Payload); err != nil {
		var fault *match.EventError
		if errors.As(err, &fault) {
			b.refuse(d, pending, err)
			return nil
		}
		return fmt.Errorf("cannot match: %w", err)
	}
	copies := p.matcher.subscribers()
	if copies == 0 {
		b.metrics.unmatched.Inc()
		pending.Complete(nil)
		return nil
	}
	b.metrics.matched.Inc()
	m := &message{pending: pending, published: d.PublishTime, metrics: b.metrics}
	m.left.Store(int32(copies) + 1)
	hops := d.Properties[PropertyHops]
	for rest := p.matcher.ids; len(rest) > 0; {
		var s *subscriber
		var names string
		s, names, rest = next(rest)
		c := entry{position: position, of: m, record: copyOf(d, s, e.PartitionKey, names, hops, position)}
		c.size = messaging.EntryBytes(c.record)
		l := s.lane
		if s.ordered {
			l = p.lane(s)
		}
		switch {
		case l == nil: // the subscriber was deleted meanwhile
			m.done(nil)
		case !l.add(ctx, c):
			m.done(errGivenUp)
		}
	}
	m.done(nil)
	return nil
}

// copyOf makes the copy of an event for a subscriber.
func copyOf(d *messaging.Delivery, s *subscriber, key, rules, hops string, position int64) *messaging.Record {
	properties := make(map[string]string, 4)
	properties[PropertyRules], properties[PropertyRevision] = rules, s.revision
	if s.ordered {
		properties[PropertyPosition] = strconv.FormatInt(position, 10)
	}
	if hops != "" {
		properties[PropertyHops] = hops
	}
	r := &messaging.Record{Key: key, Payload: d.Payload, EventTime: d.EventTime, Properties: properties}
	if s.ordered {
		r.SequenceID = &position
	}
	return r
}

// refuse gives an event that cannot be matched to the bus' dead-letter topic.
func (b *bus) refuse(d *messaging.Delivery, pending messaging.PendingDelivery, err error) {
	b.metrics.unreadable.Inc()
	b.lines.Warn("an event cannot be matched and becomes a dead letter of the bus", zap.Stringer("message_id", d.ID), zap.Error(err))
	pending.Complete(messaging.Reject(err))
}

// partition is what the engine has of one partition for as long as it owns it.
type partition struct {
	bus   *bus
	topic string
	index int
	ctx   context.Context

	mu      sync.Mutex // one event at a time
	matcher matcher
	window  *window
	rebuilt bool
	judged  time.Time // the last event

	laneMu sync.Mutex
	lanes  map[string]*lane // of ordered subscribers, by UID
}

// again reports whether an event is to be left out. Before the first one the window is read back.
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

// watch waits until the partition is given up. Meanwhile it gives the room of its window back when that is scarce and the
// partition gets nothing: events are forgotten when others come. The window is read back with the next event.
func (p *partition) watch() {
	t := time.NewTicker(time.Minute)
	defer t.Stop()
	for {
		select {
		case <-p.ctx.Done():
			return
		case <-t.C:
		}
		if room := p.window.room; room.used.Load() <= room.most/2 || !p.mu.TryLock() {
			continue
		}
		if p.rebuilt && time.Since(p.judged) > p.window.length {
			p.window.close()
			p.rebuilt = false
		}
		p.mu.Unlock()
	}
}

// lane returns the lane of an ordered subscriber, which it makes when there is none. It returns nil when the subscriber
// does not exist any more: a lane would make its topics anew.
func (p *partition) lane(s *subscriber) *lane {
	p.laneMu.Lock()
	defer p.laneMu.Unlock()
	if !(*p.bus.exists.Load())[s.UID] {
		return nil
	}
	l := p.lanes[s.UID]
	if l == nil {
		l = p.bus.engine.newLane(p.bus, s.Subscriber, p.ctx, p.index)
		p.lanes[s.UID] = l
	}
	return l
}

// end gives the partition up. Its context has ended.
func (p *partition) end() {
	p.laneMu.Lock()
	var all []*lane
	for _, l := range p.lanes {
		all = append(all, l)
	}
	p.laneMu.Unlock()
	for _, l := range all {
		l.working.Wait()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.window.close()
}

// newLane makes a lane that ends with ctx. Names are those of its subscriber's first revision, and never change.
func (e *Engine) newLane(b *bus, s *registry.Subscriber, ctx context.Context, partition int) *lane { //nolint:revive // ctx is kept
	log := b.log.With(zap.String("subscriber", s.Name), zap.Int("partition", partition))
	ctx, end := context.WithCancel(ctx)
	l := &lane{
		cfg: e.cfg, subscriber: s, ordered: s.Order.Ordered(),
		turns: e.turns, log: log, metrics: b.metrics, ctx: ctx, end: end, last: -1, stored: -1, wake: make(chan struct{}, 1),
		bury: &burier{engine: e, subscriber: s, log: log, metrics: b.metrics},
	}
	config := b.newest.Load()
	open := func(ctx context.Context) (store, error) {
		if l.ordered {
			return e.openWriter(ctx, s, partition)
		}
		return e.openPublisher(ctx, s)
	}
	l.open = func(ctx context.Context) (store, error) {
		way, err := open(ctx)
		if !errors.Is(err, messaging.ErrTopicNotFound) {
			return way, err
		}
		if err := e.maker.MakeSubscriber(ctx, config, s); err != nil { // somebody has deleted what the registry had made
			return nil, fmt.Errorf("cannot make the topics of %s: %w", s.Name, err)
		}
		return open(ctx)
	}
	return l
}

// partitions returns the indexes of the partitions that this engine has.
func (b *bus) partitions() (indexes []int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range b.owned {
		indexes = append(indexes, i)
	}
	slices.Sort(indexes)
	return indexes
}
