package processor

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/time/rate"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry"
	"github.com/aviaryhq/aviary/internal/eventbridge/target"
	"github.com/aviaryhq/aviary/internal/eventbridge/transform"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// worker delivers to one subscriber, by one revision of it.
type worker struct {
	p         *Processor
	sub       *registry.Subscriber
	log       *zap.Logger
	metrics   *subscriberMetrics
	attempts  *attempts
	schedule  schedule
	limit     *rate.Limiter
	breaker   *breaker
	target    target.Target
	transform transform.Func  // nil: none
	ctx       context.Context // ends when the worker is to stop
	stop      context.CancelFunc
	done      chan struct{}

	revision atomic.Int64 // the newest one that is delivered alike
	underWay atomic.Int64
	// lastFailure is why the target failed last, as the log tells it when the breaker opens; nil: it never has.
	lastFailure atomic.Pointer[string]
	gone        sync.Once

	mu        sync.Mutex
	consumer  *messaging.Consumer
	again     context.CancelFunc // has the worker consume anew
	replaying bool               // the topic of replays is consumed, too
	failing   bool               // the breaker has opened, and was not closed since
	owned     int                // partitions of an ordered subscriber's topics that this worker has
	idle      time.Time          // since when it has none; zero before it consumes
	trouble   error
}

// errStopping: the worker stops; the message is left to the next one.
var errStopping = errors.New("the worker stops")

func (p *Processor) newWorker(ctx context.Context, s *registry.Subscriber) *worker {
	w := &worker{
		p: p, sub: s, log: p.log.With(zap.String("bus", s.Bus), zap.String("subscriber", s.Name)),
		metrics: p.metrics.of(s), attempts: p.attemptsOf(s), schedule: newSchedule(s.Delivery.Retry),
		limit: rate.NewLimiter(rate.Inf, 1), done: make(chan struct{}),
	}
	if r := s.Delivery.Rate; r > 0 {
		w.limit = rate.NewLimiter(rate.Limit(r), max(int(math.Ceil(r/20)), w.batchEvents()))
	}
	w.revision.Store(s.Revision)
	w.breaker = newBreaker(s.Delivery.Breaker, w.breakerChanged)
	w.ctx, w.stop = context.WithCancel(ctx)
	w.replaying = !p.admin && s.Order != registry.OrderLive // otherwise it is known when there is something
	return w
}

// batchEvents is how many events go together at most; 1: one by one.
func (w *worker) batchEvents() int {
	h := w.sub.Target.Webhook
	if h == nil || h.Mode != "batch" || w.sub.Order.Ordered() {
		return 1
	}
	if h.BatchEvents > 0 {
		return h.BatchEvents
	}
	return 100
}

func (w *worker) batchLinger() time.Duration {
	if d := time.Duration(w.sub.Target.Webhook.BatchLinger); d > 0 {
		return d
	}
	return 20 * time.Millisecond
}

func (w *worker) concurrency() int {
	switch {
	case w.sub.Order == registry.OrderTotal:
		return 1
	case w.sub.Delivery.Concurrency > 0:
		return w.sub.Delivery.Concurrency
	default:
		return 16
	}
}

// run delivers until the worker is to stop.
func (w *worker) run() {
	defer close(w.done)
	defer w.end()
	if w.p.starts.Wait(w.ctx) != nil {
		return
	}
	var err error
	if w.target, err = w.p.targets.New(w.sub); err == nil && w.sub.Transform != nil {
		w.transform, err = transform.Compile(w.sub.Transform)
	}
	if err != nil { // the registry has accepted it: this instance has another configuration
		w.note(fmt.Errorf("cannot deliver: %w", err))
		<-w.ctx.Done()
		return
	}
	pause := time.Duration(0)
	for w.ctx.Err() == nil {
		err := w.consume()
		if w.ctx.Err() != nil || errors.Is(err, messaging.ErrClosed) {
			return
		}
		if err == nil {
			continue // anew
		}
		w.note(err)
		pause = min(max(2*pause, 100*time.Millisecond), 30*time.Second)
		sleep(w.ctx, pause)
	}
}

// consume consumes the send topic, and that of replays when there is one to consume, until the worker is to stop or to
// consume anew.
func (w *worker) consume() error {
	stop, again := context.WithCancel(w.ctx)
	defer again()
	w.mu.Lock()
	w.again = again
	replaying := w.replaying
	w.mu.Unlock()
	var options []messaging.ConsumerOption
	if w.sub.Order.Ordered() {
		// So that deliveries of a partition that is lost end: another processor makes them, and newer ones of their keys.
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
	w.note(nil)
	switch {
	case w.sub.Order.Ordered():
		return consumer.Run(stop, func(ctx context.Context, d *messaging.Delivery) error {
			wait, end := context.WithCancel(ctx) // ends with the partition, too
			defer end()
			defer context.AfterFunc(stop, end)()
			return w.handle(wait, ctx, d)
		})
	case w.batchEvents() > 1:
		g := newGatherer(stop, w)
		defer g.end()
		return consumer.RunAsync(stop, g.take)
	default:
		return consumer.RunAsync(stop, w.single(stop))
	}
}

// single is the handler of a subscriber without an order: a goroutine for each event that is being delivered, so that
// one that gets nothing costs none.
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

// replay has the worker consume the topic of replays, too. Most subscribers have none: its consumer would be a third of
// what they cost.
func (w *worker) replay() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.replaying && w.sub.Order != registry.OrderLive {
		w.replaying = true
		if w.again != nil {
			w.again()
		}
	}
}

// config is the consumer's, by the order of the subscriber.
func (w *worker) config(replaying bool) messaging.ConsumerConfig {
	topics, s := w.p.topics, w.sub
	c := messaging.DefaultConsumerConfig()
	c.Topics, c.Subscription = []string{topics.Send(s)}, registry.DeliverSubscription
	if replaying {
		c.Topics = append(c.Topics, topics.Replay(s))
	}
	c.Concurrency = w.concurrency()
	inPlace := true
	switch s.Order {
	case registry.OrderGroup:
		// Not Key_Shared: see ADR 19.
		c.Type, c.Order = messaging.Failover, messaging.OrderKey
	case registry.OrderTotal:
		c.Type, c.Order = messaging.Failover, messaging.OrderTotal
	case registry.OrderExclusive:
		c.Type, c.Order = messaging.Exclusive, messaging.OrderKey
	case registry.OrderLive:
		c.Type, c.Order, c.Durable, c.StartAt = messaging.Exclusive, messaging.OrderNone, false, messaging.StartLatest
	default:
		c.Type, c.Order, inPlace = messaging.Shared, messaging.OrderNone, false
	}
	c.Retry = libraryRetry(topics.Retry(s), topics.DeadLetter(s), inPlace)
	// Few at a time: a thousand subscribers whose targets are away hold all that they have received.
	c.PrefetchMessages = min(max(2*c.Concurrency, 16), 2000)
	if n := w.batchEvents(); n > 1 {
		c.PrefetchMessages = n * min(c.Concurrency+1, 4)
	}
	if !s.Order.Ordered() {
		c.Concurrency = 1 // it only hands events over
	}
	c.PrefetchBytes = w.p.part.Load()
	c.HeldMessages, c.HeldBytes = w.p.cfg.HeldMessages, 2*c.PrefetchBytes
	c.MaxMessageBytes = 64 << 10
	c.DiscoverEvery = 10 * time.Minute
	// Deliveries wait for the breaker and for the rate as long as it takes, and are not stuck: see [worker.overdue].
	c.StuckAfter = math.MaxInt64
	c.StopTimeout = w.p.cfg.StopTimeout
	return c
}

// breakerChanged has the consumer follow the breaker. While it is open nothing is consumed, retries included.
func (w *worker) breakerChanged(s BreakerState) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch s {
	case BreakerOpen:
		w.metrics.breaker.Set(2)
		if w.consumer != nil {
			w.consumer.Pause()
		}
		if !w.failing {
			w.failing = true
			w.log.Warn("the breaker is open: nothing is delivered until a probe succeeds", zap.Stringp("error", w.lastFailure.Load()))
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

// note keeps what is the matter, and says so once; nil ends it.
func (w *worker) note(err error) {
	w.mu.Lock()
	was := w.trouble
	w.trouble = err
	w.mu.Unlock()
	if was == nil && err != nil {
		w.log.Warn("a subscriber gets nothing", zap.Error(err))
	}
}

// Trouble says why the subscriber gets nothing, nil when it does, or another instance delivers.
func (w *worker) Trouble() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.trouble != nil || w.consumer == nil {
		return w.trouble
	}
	if err := w.consumer.Trouble(); !w.busy(err) {
		return err
	}
	return nil
}

// own counts a partition until ctx ends, with its loss.
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

// idleAfter is how long brokers may take to say whose a partition is: they wait a second before they give one to somebody else.
const idleAfter = 3 * time.Second

// standsBy reports whether other instances deliver all: one has the subscription, which only one may have, or they have all partitions.
func (w *worker) standsBy() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.trouble != nil || w.consumer == nil {
		return false
	}
	if err := w.consumer.Trouble(); err != nil {
		return w.busy(err)
	}
	return w.sub.Order.Ordered() && w.owned == 0 && time.Since(w.idle) > idleAfter
}

func (w *worker) busy(err error) bool {
	return err != nil && (w.sub.Order == registry.OrderExclusive || w.sub.Order == registry.OrderLive) && strings.Contains(err.Error(), "ConsumerBusy")
}

// end gives back what the worker has.
func (w *worker) end() {
	w.breaker.end()
	w.note(nil)
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

// sleep waits for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
