package consume

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/adminapi"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/budget"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/retry"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/schedule"
)

// Consumer consumes a subscription while inside [Consumer.Run], [Consumer.RunAsync] or
// [Consumer.Drain], one of them at a time, and has no connection and holds no message outside
// them. [Consumers.New] makes one. It needs no closing. It is safe for concurrent use.
type Consumer struct {
	parent *Consumers
	cfg    ConsumerConfig
	log    *zap.Logger
	busy   atomic.Bool
	pauses pauses

	onOwned func(ctx context.Context, topic string, partition int)

	mu              sync.Mutex
	subscribeErrors map[source]error // why there is no session, by source
}

// Unhealthy returns why the consumer, inside Run, cannot subscribe to all of its topics; nil
// when it is subscribed, or has not tried yet. The client reconnects by itself afterwards: broken
// connections do not show here. It may be called from any goroutine.
func (c *Consumer) Unhealthy() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for src, err := range c.subscribeErrors {
		return fmt.Errorf("messaging: subscribe to %s: %w", src, err)
	}
	return nil
}

// noteSubscribe records why src has no session; nil: it has one.
func (c *Consumer) noteSubscribe(src source, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		delete(c.subscribeErrors, src)
		return
	}
	if c.subscribeErrors == nil {
		c.subscribeErrors = make(map[source]error)
	}
	c.subscribeErrors[src] = err
}

// ErrRunning is returned by Run, RunAsync and Drain when the consumer is inside one of
// them already.
var ErrRunning = errors.New("messaging: consumer is running already")

var errNilHandler = errors.New("messaging: nil handler")

// New makes a consumer. Errors are those of the configuration.
func (c *Consumers) New(cfg ConsumerConfig, opts ...ConsumerOption) (*Consumer, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("messaging: consumer: %w", err)
	}
	cfg = cfg.derived()
	if cfg.From != nil && !c.api.HasURL() {
		return nil, fmt.Errorf("messaging: consumer: from: %w", adminapi.ErrNoAdminURL)
	}
	consumer := &Consumer{
		parent: c, cfg: cfg,
		log: c.Log.Named("consumer").With(zap.String("subscription", cfg.Subscription)),
	}
	for _, opt := range opts {
		opt(consumer)
	}
	if consumer.onOwned != nil && cfg.Type != Exclusive && cfg.Type != Failover {
		return nil, fmt.Errorf("messaging: consumer: type: OnOwned needs exclusive or failover, got %q", string(cfg.Type))
	}
	return consumer, nil
}

// Run subscribes and calls h for each message until ctx ends, then returns nil. When it returns,
// every handler has finished, acknowledgements are sent and the subscription is closed: another
// consumer gets all unacknowledged messages at once. An unreachable broker, or one that ends the
// subscription, is no error: Run logs once and subscribes again, with delays from 0.1 to 2 s. The
// same holds while another consumer has an Exclusive subscription: see [Consumer.Unhealthy].
//
// Run returns [record.ErrClosed] when the client closes, [ErrRunning] when the consumer is running,
// and an error at once when the subscription can never succeed, for instance because it exists with
// another type. It may be called again after it has returned.
//
// When ctx ends, messages that were received and not started stay unacknowledged. Handlers in
// flight may finish; their context ends StopTimeout later. Run waits for them in any case.
func (c *Consumer) Run(ctx context.Context, h Handler) error {
	r, err := c.begin(h, false)
	if err != nil {
		return err
	}
	defer c.end()
	return r.do(ctx)
}

// begin claims the consumer for one run; end must follow.
func (c *Consumer) begin(h Handler, async bool) (*run, error) {
	if h == nil {
		return nil, errNilHandler
	}
	if !c.busy.CompareAndSwap(false, true) {
		return nil, ErrRunning
	}
	if err := c.parent.Enter(); err != nil {
		c.busy.Store(false)
		return nil, err
	}
	r := &run{
		c: c, cfg: c.cfg, handler: h, log: c.log,
		metrics: c.parent.metrics.of(c.cfg.Subscription),
		budget: budget.New(budget.Config{
			Messages: c.cfg.PrefetchMessages, Bytes: c.cfg.PrefetchBytes, MaxMessage: c.cfg.MaxMessageBytes,
			Failover: c.cfg.Type == Failover && c.cfg.Durable, Fixed: !c.cfg.Durable,
		}),
		parts: make(map[source]int), weights: make(map[source]sourceWeight),
		sessions: make(map[*session]struct{}),
	}
	r.sched = c.cfg.scheduler(async, r.tasks.give)
	for range c.cfg.Concurrency {
		r.workers = append(r.workers, new(worker))
	}
	r.copies = retry.NewCopier(retry.CopierConfig{
		Publishers: c.parent.publishers, Log: r.log, Retry: c.cfg.Retry, Subscription: c.cfg.Subscription,
		RetryTopic: c.cfg.usesRetryTopic(), PendingBytes: c.cfg.PrefetchBytes, Until: func() context.Context { return r.stop },
	})
	return r, nil
}

// scheduler makes what hands out the messages.
func (c ConsumerConfig) scheduler(async bool, ended func([]*schedule.Item)) *schedule.Scheduler {
	held, heldBytes := c.HeldMessages, c.HeldBytes
	if c.Order == OrderTotal {
		held, heldBytes = 0, 0 // everything waits for the one that is held
	}
	return schedule.New(schedule.Config{
		Workers: c.Concurrency, Async: async, Ended: ended,
		MaxCount: c.PrefetchMessages, MaxBytes: max(c.PrefetchBytes/2, 1),
		HeldCount: held, HeldBytes: heldBytes,
	})
}

func (c *Consumer) end() {
	c.parent.Leave()
	c.mu.Lock()
	c.subscribeErrors = nil
	c.mu.Unlock()
	c.busy.Store(false)
}
