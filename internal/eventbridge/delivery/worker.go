package delivery

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/time/rate"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/store"
	"github.com/aviaryhq/aviary/internal/eventbridge/target"
	"github.com/aviaryhq/aviary/internal/eventbridge/template"
	"github.com/aviaryhq/aviary/pkg/backoff"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// worker delivers to one subscriber, as one revision of it says.
type worker struct {
	p         *Processor
	sub       *model.Subscriber
	log       *zap.Logger
	metrics   *subscriberMetrics
	attempts  *attempts
	limit     *rate.Limiter
	breaker   *breaker
	target    target.Target
	transform template.Func   // nil: none
	ctx       context.Context // ends when the worker is to stop
	stop      context.CancelFunc
	admitting chan struct{} // see admit
	done      chan struct{} // closed when the worker has ended

	revision atomic.Int64 // the newest revision with which deliveries stay the same
	inFlight atomic.Int64
	owned    atomic.Int64 // partitions of an ordered subscriber's topics that this worker owns

	mu        sync.Mutex
	consumer  *messaging.Consumer
	interrupt context.CancelFunc // ends consume
	replaying bool               // the worker consumes the topic of replays, too
	open      bool               // the breaker is open
	failing   bool               // the breaker has opened and not closed since
	unhealthy error
	gone      error // why the target takes no more events; nil: it takes events
}

// newWorker makes the worker of an active subscriber. It ends with ctx.
func (p *Processor) newWorker(ctx context.Context, s *model.Subscriber, log *attempts) *worker {
	w := &worker{
		p: p, sub: s, log: p.log.With(zap.String("bus", s.Bus), zap.String("subscriber", s.Name)),
		metrics: p.metrics.of(s), attempts: log, limit: rate.NewLimiter(rate.Inf, 1),
		done: make(chan struct{}), admitting: make(chan struct{}, 1), interrupt: func() {},
	}
	if r := s.Delivery.Rate; r > 0 {
		w.limit = rate.NewLimiter(rate.Limit(r), max(int(math.Ceil(r/20)), w.batchEvents()))
	}
	w.revision.Store(s.Revision)
	w.breaker = newBreaker(s.Delivery.Breaker, w.concurrency(), w.breakerChanged)
	w.ctx, w.stop = context.WithCancel(ctx)
	w.replaying = p.hasReplays(s)
	return w
}

// batchEvents is the greatest number of events in one batch; 1: no batches.
func (w *worker) batchEvents() int {
	h := w.sub.Target.Webhook
	if h == nil || h.Mode != "batch" || w.sub.Order.Ordered() {
		return 1
	}
	return h.BatchEvents
}

func (w *worker) concurrency() int {
	if w.sub.Order == model.OrderTotal {
		return 1
	}
	return w.sub.Delivery.Concurrency
}

// maxConsumePause is the longest pause between attempts to consume.
const maxConsumePause = 30 * time.Second

// run delivers until the worker is to stop.
func (w *worker) run() {
	defer close(w.done)
	defer w.end()
	if w.p.starts.Wait(w.ctx) != nil {
		return
	}
	pause := backoff.Backoff{Max: maxConsumePause}
	for w.ctx.Err() == nil {
		began := time.Now()
		err := w.openTarget()
		if err == nil {
			err = w.consume()
		}
		switch gone := w.isGone(); {
		case w.ctx.Err() != nil || errors.Is(err, messaging.ErrClosed):
			return
		case gone != nil:
			w.disable(gone)
		case err != nil:
			w.setUnhealthy(err)
			pause.Held(time.Since(began))
			pause.Wait(w.ctx)
		}
	}
}

// openTarget makes the target, unless there is one. The registry has accepted the subscriber, but
// the configuration of this instance may differ, or a file that it names may be missing for a while.
func (w *worker) openTarget() (err error) {
	if w.target != nil {
		return nil
	}
	if w.sub.Transform != nil {
		if w.transform, err = template.Compile(w.sub.Transform); err != nil {
			return fmt.Errorf("cannot deliver: %w", err)
		}
	}
	opened, err := w.p.targets.New(w.sub)
	if err != nil {
		return fmt.Errorf("cannot deliver: %w", err)
	}
	w.target = opened
	return nil
}

// consume consumes the send topic and, with replaying, the topic of replays. It returns when the
// worker has to stop or to consume again.
func (w *worker) consume() error {
	stop, interrupt := context.WithCancel(w.ctx)
	defer interrupt()
	w.mu.Lock()
	w.interrupt = interrupt
	replaying := w.replaying
	w.mu.Unlock()
	var options []messaging.ConsumerOption
	if w.sub.Order.Ordered() {
		// Deliveries of a lost partition must end: another processor repeats them, and delivers
		// newer events with the same keys.
		options = append(options, messaging.OnOwned(w.own))
	}
	consumer, err := w.p.client.Consumer(w.config(replaying), options...)
	if err != nil {
		return err
	}
	w.mu.Lock()
	w.consumer = consumer
	if w.open {
		consumer.Pause()
	}
	w.mu.Unlock()
	w.setUnhealthy(nil)
	if w.sub.Order.Ordered() {
		return consumer.Run(stop, func(ctx context.Context, d *messaging.Delivery) error {
			wait, end := context.WithCancel(ctx) // also ends with the partition
			defer end()
			defer context.AfterFunc(stop, end)()
			return w.attempt(wait, ctx, []*messaging.Delivery{d})[0]
		})
	}
	b := newBatcher(stop, w)
	defer context.AfterFunc(stop, func() { b.start(stop, b.collected) })()
	return consumer.RunAsync(stop, b.take)
}

// follow reports whether the worker continues after a change of its subscriber. now is nil if the
// subscriber was deleted.
func (w *worker) follow(now *model.Subscriber) bool {
	if now == nil || !deliversAs(now, w.sub) || w.isGone() != nil && now.Revision != w.revision.Load() {
		return false
	}
	w.revision.Store(now.Revision)
	if w.p.hasReplays(now) {
		w.replay()
	}
	return true
}

// replay makes the worker consume the topic of replays, too. Most subscribers have no replays, and
// a consumer for them would be a third of a subscriber's cost.
func (w *worker) replay() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.replaying {
		w.replaying = true
		w.interrupt()
	}
}

// setGone makes the worker disable the subscriber, because its target takes no more events.
func (w *worker) setGone(cause error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gone = cause
	w.interrupt()
}

func (w *worker) isGone() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.gone
}

// maxDisablePause is the longest pause between attempts to disable a subscriber.
const maxDisablePause = 10 * time.Second

// disable disables the subscriber, and returns when the worker is to stop.
func (w *worker) disable(cause error) {
	w.log.Warn("the target accepts no more events (410 Gone): disabling the subscriber", zap.Error(cause))
	pause := backoff.Backoff{Max: maxDisablePause}
	for w.ctx.Err() == nil {
		// The target rejected the definition that this worker has, not one that the subscriber may
		// get meanwhile.
		as := store.Condition{Revision: w.revision.Load()}
		_, err := w.p.source.ChangeState(w.ctx, w.sub.Bus, w.sub.Name, model.Disabled, "410 Gone", as)
		switch {
		case err == nil:
			<-w.ctx.Done()
		case !errors.Is(err, model.ErrConflict): // the conflict is with a change that ends this worker soon
			w.setUnhealthy(fmt.Errorf("cannot disable the subscriber: %w", err))
		}
		pause.Wait(w.ctx)
	}
}

// config returns the consumer's configuration for the subscriber's order.
func (w *worker) config(replaying bool) messaging.ConsumerConfig {
	topics, s := w.p.topics, w.sub
	c := messaging.DefaultConsumerConfig()
	c.Topics, c.Subscription = []string{topics.Send(s)}, model.DeliverSubscription
	if replaying {
		c.Topics = append(c.Topics, topics.Replay(s))
	}
	c.Concurrency = w.concurrency()
	switch s.Order {
	case model.OrderGroup:
		// Not Key_Shared: see ADR 19.
		c.Type, c.Order = messaging.Failover, messaging.OrderKey
	case model.OrderTotal:
		c.Type, c.Order = messaging.Failover, messaging.OrderTotal
	default:
		c.Type, c.Order = messaging.Shared, messaging.OrderNone
	}
	// The library does what the verdicts say, and nothing by itself: they count attempts, because
	// waiting for the breaker is not an attempt.
	c.Retry = messaging.Retry{
		MinDelay: time.Second, MaxDelay: time.Minute, InPlace: s.Order.Ordered(),
		Compression: messaging.NoCompression, // keeps many subscribers cheap
		Topic:       topics.Retry(s), DeadLetterTopic: topics.DeadLetter(s), DeadLetterSubscription: model.DeliverSubscription,
	}
	// Few at a time: a thousand subscribers whose targets fail hold everything that they have
	// received.
	c.PrefetchMessages = min(max(2*c.Concurrency, 16), 2000)
	if n := w.batchEvents(); n > 1 {
		c.PrefetchMessages = n * min(c.Concurrency+1, 4)
	}
	if !s.Order.Ordered() {
		c.Concurrency = 1 // the handler only hands events over
	}
	c.PrefetchBytes = w.p.part.Load()
	c.HeldMessages, c.HeldBytes = w.p.cfg.HeldMessages, max(2*c.PrefetchBytes, leastHeld)
	c.MaxMessageBytes = 64 << 10
	c.DiscoverEvery = 10 * time.Minute
	// Deliveries may wait for the breaker and the rate limit without end, and are not stuck.
	c.StuckAfter = math.MaxInt64
	c.StopTimeout = w.p.cfg.StopTimeout
	return c
}

// breakerChanged makes the consumer follow the breaker. While the breaker is open the worker
// consumes nothing, not even retries. It does not log that a target asks to wait: that may happen
// each second.
func (w *worker) breakerChanged(s BreakerState, failure error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ctx.Err() != nil {
		return // the metric is the next worker's
	}
	w.metrics.breaker.Set(map[BreakerState]float64{BreakerHalfOpen: 1, BreakerOpen: 2}[s])
	w.open = s == BreakerOpen
	switch {
	case w.consumer == nil:
	case w.open:
		w.consumer.Pause()
	default:
		w.consumer.Resume()
	}
	switch {
	case w.open && !w.failing && failure != nil:
		w.failing = true
		w.log.Warn("the breaker is open: deliveries wait until a probe succeeds", zap.Error(failure))
	case s == BreakerClosed && w.failing:
		w.failing = false
		w.log.Info("the breaker is closed")
	}
}

// setUnhealthy stores why the subscriber gets no events, and logs when that begins. nil: it gets
// events.
func (w *worker) setUnhealthy(err error) {
	w.mu.Lock()
	was := w.unhealthy
	w.unhealthy = err
	w.mu.Unlock()
	if was == nil && err != nil {
		w.log.Warn("a subscriber gets no events", zap.Error(err))
	}
}

// Unhealthy returns why the subscriber gets no events; nil if it gets events, or another instance
// delivers them.
func (w *worker) Unhealthy() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.unhealthy != nil || w.consumer == nil {
		return w.unhealthy
	}
	return w.consumer.Unhealthy()
}

// own counts a partition as owned until ctx ends: then the partition is lost.
func (w *worker) own(ctx context.Context, _ string, _ int) {
	w.owned.Add(1)
	context.AfterFunc(ctx, func() { w.owned.Add(-1) })
}

// standsBy reports whether other instances deliver all events: they own all partitions of an
// ordered subscriber. It is true, too, until brokers have assigned the first partition.
func (w *worker) standsBy() bool {
	return w.sub.Order.Ordered() && w.owned.Load() == 0 && w.Unhealthy() == nil
}

// end closes the target. The breaker has no effect any more.
func (w *worker) end() {
	w.stop()
	w.setUnhealthy(nil)
	w.mu.Lock()
	w.metrics.breaker.Set(0)
	w.mu.Unlock()
	if w.target == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), w.p.cfg.StopTimeout)
	defer cancel()
	if err := w.target.Close(ctx); err != nil {
		w.log.Warn("cannot close the target", zap.Error(err))
	}
}
