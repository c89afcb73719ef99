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
	schedule  schedule
	limit     *rate.Limiter
	breaker   *breaker
	target    target.Target
	transform template.Func   // nil: none
	ctx       context.Context // ends when the worker is to stop
	stop      context.CancelFunc
	admitting chan struct{} // see admit
	done      chan struct{}

	revision atomic.Int64 // the newest revision with which deliveries stay the same
	inFlight atomic.Int64
	// lastFailure is why the target failed last. The worker logs it when the breaker opens. nil:
	// the target has never failed.
	lastFailure atomic.Pointer[string]
	gone        sync.Once

	mu        sync.Mutex
	consumer  *messaging.Consumer
	again     context.CancelFunc // makes the worker consume again
	replaying bool               // the worker consumes the topic of replays, too
	failing   bool               // the breaker has opened and not closed since
	owned     int                // partitions of an ordered subscriber's topics that this worker owns
	idle      time.Time          // since when it owns none; zero before it consumes
	unhealthy error
}

// errStopping: the worker stops. The message is left to the next worker.
var errStopping = errors.New("the worker stops")

func (p *Processor) newWorker(ctx context.Context, s *model.Subscriber) *worker {
	w := &worker{
		p: p, sub: s, log: p.log.With(zap.String("bus", s.Bus), zap.String("subscriber", s.Name)),
		metrics: p.metrics.of(s), attempts: p.attemptsOf(s), schedule: newSchedule(s.Delivery.Retry),
		limit: rate.NewLimiter(rate.Inf, 1), done: make(chan struct{}), admitting: make(chan struct{}, 1),
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
		err := w.open()
		if err == nil {
			err = w.consume()
		}
		if w.ctx.Err() != nil || errors.Is(err, messaging.ErrClosed) {
			return
		}
		if err == nil {
			continue // consume again
		}
		w.setUnhealthy(err)
		pause.Held(time.Since(began))
		pause.Wait(w.ctx)
	}
}

// open makes the target, unless there is one. The registry has accepted the subscriber, but the
// configuration of this instance may differ, or a file that it names may be missing for a while.
func (w *worker) open() (err error) {
	if w.target != nil {
		return nil
	}
	if w.sub.Transform != nil {
		if w.transform, err = template.Compile(w.sub.Transform); err != nil {
			return fmt.Errorf("cannot deliver: %w", err)
		}
	}
	if w.target, err = w.p.targets.New(w.sub); err != nil {
		w.target = nil
		return fmt.Errorf("cannot deliver: %w", err)
	}
	return nil
}

// consume consumes the send topic and, with replaying, the topic of replays. It returns when the
// worker has to stop or to consume again.
func (w *worker) consume() error {
	stop, again := context.WithCancel(w.ctx)
	defer again()
	w.mu.Lock()
	w.again = again
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
	w.consumer, w.idle = consumer, time.Now()
	w.mu.Unlock()
	w.breaker.repeat()
	w.setUnhealthy(nil)
	switch {
	case w.sub.Order.Ordered():
		return consumer.Run(stop, func(ctx context.Context, d *messaging.Delivery) error {
			wait, end := context.WithCancel(ctx) // also ends with the partition
			defer end()
			defer context.AfterFunc(stop, end)()
			return w.handle(wait, ctx, d)
		})
	case w.batchEvents() > 1:
		g := newBatcher(stop, w)
		defer g.end()
		return consumer.RunAsync(stop, g.take)
	default:
		return consumer.RunAsync(stop, w.single(stop))
	}
}

// single returns the handler of a subscriber without an order. It starts a goroutine for each
// event, so that a subscriber without events needs none.
func (w *worker) single(stop context.Context) messaging.AsyncHandler {
	slots := make(chan struct{}, w.concurrency())
	return func(ctx context.Context, d *messaging.Delivery, p messaging.PendingDelivery) {
		select {
		case slots <- struct{}{}:
		case <-stop.Done():
			p.Complete(errStopping)
			return
		}
		go func() {
			defer func() { <-slots }()
			p.Complete(w.handle(stop, ctx, d))
		}()
	}
}

// replay makes the worker consume the topic of replays, too. Most subscribers have no replays, and
// a consumer for them would be a third of a subscriber's cost.
func (w *worker) replay() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.replaying {
		w.replaying = true
		if w.again != nil {
			w.again()
		}
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
	inPlace := true
	switch s.Order {
	case model.OrderGroup:
		// Not Key_Shared: see ADR 19.
		c.Type, c.Order = messaging.Failover, messaging.OrderKey
	case model.OrderTotal:
		c.Type, c.Order = messaging.Failover, messaging.OrderTotal
	default:
		c.Type, c.Order, inPlace = messaging.Shared, messaging.OrderNone, false
	}
	c.Retry = libraryRetry(topics.Retry(s), topics.DeadLetter(s), inPlace)
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
	// Deliveries may wait for the breaker and the rate limit without end, and are not stuck: see
	// [worker.overdue].
	c.StuckAfter = math.MaxInt64
	c.StopTimeout = w.p.cfg.StopTimeout
	return c
}

// breakerChanged makes the consumer follow the breaker. While the breaker is open the worker
// consumes nothing, not even retries. It does not log that a target asks to wait: that may happen
// each second.
func (w *worker) breakerChanged(s BreakerState, asked bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch s {
	case BreakerOpen:
		w.metrics.breaker.Set(2)
		if w.consumer != nil {
			w.consumer.Pause()
		}
		if !w.failing && !asked {
			w.failing = true
			w.log.Warn("the breaker is open: nothing is delivered until a probe is answered", zap.Stringp("error", w.lastFailure.Load()))
		}
	case BreakerHalfOpen:
		w.metrics.breaker.Set(1)
		if w.consumer != nil {
			w.consumer.Resume()
		}
	default:
		w.metrics.breaker.Set(0)
		if w.consumer != nil {
			w.consumer.Resume()
		}
		if w.failing {
			w.failing = false
			w.log.Info("the breaker is closed again")
		}
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
	count := func(n int) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.owned += n; w.owned == 0 {
			w.idle = time.Now()
		}
	}
	count(1)
	context.AfterFunc(ctx, func() { count(-1) })
}

// idleAfter is how long brokers may take to assign a partition: they wait a second before they give
// one to another consumer.
const idleAfter = 3 * time.Second

// standsBy reports whether other instances deliver all events: they own all partitions of an
// ordered subscriber.
func (w *worker) standsBy() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.unhealthy != nil || w.consumer == nil || w.consumer.Unhealthy() != nil {
		return false
	}
	return w.sub.Order.Ordered() && w.owned == 0 && time.Since(w.idle) > idleAfter
}

// end shuts the breaker and closes the target.
func (w *worker) end() {
	w.breaker.end()
	w.setUnhealthy(nil)
	w.metrics.breaker.Set(0)
	if w.target == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), w.p.cfg.StopTimeout)
	defer cancel()
	if err := w.target.Close(ctx); err != nil {
		w.log.Warn("cannot close the target", zap.Error(err))
	}
}
