package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/connector"
	"github.com/aviaryhq/aviary/internal/connector/message"
	"github.com/aviaryhq/aviary/internal/connector/pipeline"
)

// Source takes messages from queues. Run may be called once; Lag at any time, from any goroutine.
type Source struct {
	cfg       SourceConfig
	health    *connector.Health
	metrics   *metrics
	log       *zap.Logger
	consumers []*queueConsumer
	// drainCtx ends when a stop must not wait any longer.
	drainCtx context.Context

	conn     atomic.Pointer[amqp.Connection] // for Lag; nil while there is none
	lagQuery chan struct{}                   // held while Lag asks the broker
}

// queueConsumer consumes one queue, on one channel at a time.
type queueConsumer struct {
	*Source
	queue Queue
	name  string

	delivered, committed atomic.Uint64 // delivery tags of the present channel
	position             streamPosition
	prefetch             prefetch
	lastLimitWarning     time.Time // only the present channel's goroutine uses it
}

// sourcePipeline is what a source needs of a pipeline.
type sourcePipeline interface {
	Offer(ctx context.Context, m *message.Message, position int64) error
	Drain(ctx context.Context) error
	Close(ctx context.Context) error
	Abandon()
}

// opener opens the pipeline of a channel whose prefetch is ahead.
type opener func(name string, ahead int, commit func(position int64) error) sourcePipeline

// NewSource checks the configuration. It does not connect.
func NewSource(cfg SourceConfig, o connector.Options) (*Source, error) {
	if err := faults(&cfg); err != nil {
		return nil, err
	}
	o = o.WithDefaults()
	s := &Source{cfg: cfg, health: connector.NewHealth(o.Report), metrics: newMetrics(o.Metrics), log: o.Log.Named("rabbitmq"), drainCtx: o.DrainContext, lagQuery: make(chan struct{}, 1)}
	for _, q := range cfg.Queues {
		ahead := newPrefetch(q, cfg.Prefetch, int64(cfg.PrefetchBytes)/int64(cfg.channels()))
		if cfg.Mode == modeOrdered {
			s.consumers = append(s.consumers, &queueConsumer{Source: s, queue: q, name: q.Name, prefetch: ahead})
			continue
		}
		for i := range cfg.ParallelConsumers {
			s.consumers = append(s.consumers, &queueConsumer{Source: s, queue: q, name: q.Name + "#" + strconv.Itoa(i), prefetch: ahead})
		}
	}
	return s, nil
}

// faults validates a configuration with all its parts.
func faults(cfg any) error {
	var errs []error
	for _, fault := range config.Validate(cfg) {
		errs = append(errs, fault)
	}
	return errors.Join(errs...)
}

// Run takes messages until ctx ends, and returns nil. Each queue has one pipeline (mode ordered) or
// several. Run reports failures, and tries again for ever.
func (s *Source) Run(ctx context.Context, pipelines *pipeline.Set) error {
	return s.run(ctx, func(name string, ahead int, commit func(int64) error) sourcePipeline {
		// The broker sends no more than that many messages ahead of the acknowledgements: these
		// must not wait for the commit interval.
		return pipelines.Open(name, commit, pipeline.CommitEach(max(ahead/8, 1)))
	})
}

func (s *Source) run(ctx context.Context, open opener) error {
	pause := connector.Reconnect()
	for ctx.Err() == nil {
		began := time.Now()
		conn, err := s.cfg.dial(ctx, "source")
		if err == nil {
			err = s.serve(ctx, conn, open)
		}
		if ctx.Err() == nil {
			s.health.Set(connector.Connection, err)
			pause.Held(time.Since(began))
			pause.Wait(ctx)
		}
	}
	return nil
}

// serve takes messages through one connection until it or ctx ends. All pipelines that were opened are
// closed when it returns.
func (s *Source) serve(ctx context.Context, conn *brokerConnection, open opener) error {
	lost := conn.NotifyClose(make(chan *amqp.Error, 1))
	s.metrics.connections.Inc()
	s.metrics.connected.Set(1)
	defer s.metrics.connected.Set(0)
	s.conn.Store(conn.Connection)
	defer s.conn.Store(nil)
	s.health.Set(connector.Connection, nil)
	consuming, stop := context.WithCancel(ctx)
	defer stop()
	var wg sync.WaitGroup
	for _, c := range s.consumers {
		wg.Go(func() { c.run(consuming, conn, open) })
	}
	var err error
	select {
	case <-ctx.Done():
		// The library's calls take no context. Dropping the connection ends them, so that a broker
		// that does not answer cannot keep the pipelines open.
		drain, cancel := context.WithTimeout(s.drainCtx, s.cfg.DrainTimeout)
		defer cancel()
		stopDropping := context.AfterFunc(drain, func() { time.AfterFunc(closeTimeout, conn.drop) })
		defer stopDropping()
	case reason := <-lost:
		err = conn.lostError(s.cfg.address(), reason)
		stop()
	}
	wg.Wait()
	conn.close()
	return err
}

// run consumes through one channel after another until ctx or the connection ends.
func (c *queueConsumer) run(ctx context.Context, conn *brokerConnection, open opener) {
	pause := connector.Reconnect()
	for ctx.Err() == nil && !conn.IsClosed() {
		began := time.Now()
		err := c.prepareAndConsume(ctx, conn, open)
		if errors.Is(err, errResize) {
			continue
		}
		if ctx.Err() == nil && !conn.IsClosed() {
			c.health.Set(c.name, err)
			pause.Held(time.Since(began))
			pause.Wait(ctx)
		}
	}
}

func (c *queueConsumer) prepareAndConsume(ctx context.Context, conn *brokerConnection, open opener) error {
	var ch *amqp.Channel
	var deliveries <-chan amqp.Delivery
	var ended chan *amqp.Error
	var cancelled chan string
	err := conn.withTimeout(func() error {
		err := c.queue.prepare(conn.Connection, c.cfg.Declare)
		if err != nil {
			return err
		}
		if ch, err = conn.Channel(); err != nil {
			return fmt.Errorf("queue %q: %w", c.queue.Name, plainErrorOf(err))
		}
		ended = ch.NotifyClose(make(chan *amqp.Error, 1))
		cancelled = ch.NotifyCancel(make(chan string, 1))
		if err = ch.Qos(c.prefetch.beginChannel(), 0, false); err == nil {
			asked := time.Now()
			if deliveries, err = ch.Consume(c.queue.Name, consumerTag, false, false, false, false, c.arguments()); err == nil {
				c.position.started(asked)
			}
		}
		if err != nil {
			return fmt.Errorf("cannot consume from queue %q: %w", c.queue.Name, plainErrorOf(err))
		}
		return nil
	})
	if ch != nil {
		defer func() { _ = ch.Close() }()
	}
	if err != nil {
		return err
	}
	return c.consume(ctx, ch, deliveries, ended, cancelled, open)
}

// consume offers the deliveries of one channel to one pipeline until either ends. The pipeline's
// positions are delivery tags, which are valid on this channel only.
func (c *queueConsumer) consume(ctx context.Context, ch *amqp.Channel, deliveries <-chan amqp.Delivery, ended <-chan *amqp.Error, cancelled <-chan string, open opener) error {
	c.health.Set(c.name, nil)
	c.committed.Store(0) // first, for Lag
	c.delivered.Store(0)

	// channelCtx ends with the channel or the consumer, so that Offer stops waiting for room then.
	channelCtx, end := context.WithCancelCause(ctx)
	defer end(nil)
	consumed := make(chan struct{})
	defer close(consumed)
	go func() {
		select {
		case reason := <-ended:
			end(fmt.Errorf("the channel of queue %q ended: %w", c.queue.Name, plainError(reason)))
		case <-cancelled:
			end(fmt.Errorf("RabbitMQ cancelled the consumer of queue %q: it was deleted, or is moving", c.queue.Name))
		case <-consumed:
		}
	}()

	pipeline := open(c.name, c.prefetch.count, func(position int64) error { return c.commit(channelCtx, ch, position) })
	err := c.forward(channelCtx, deliveries, pipeline)
	if errors.Is(err, errResize) {
		c.closePipeline(pipeline)
		return err
	}
	if ctx.Err() == nil {
		pipeline.Abandon()
		if cause := context.Cause(channelCtx); cause != nil {
			err = cause
		}
		return err
	}
	return c.drain(ch, pipeline)
}

const consumerTag = "source"

// forward offers deliveries to the pipeline until channelCtx ends.
func (c *queueConsumer) forward(channelCtx context.Context, deliveries <-chan amqp.Delivery, l sourcePipeline) error {
	stream := c.queue.Type == typeStream
	for {
		select {
		case <-channelCtx.Done():
			return nil
		case d, ok := <-deliveries:
			if !ok {
				<-channelCtx.Done() // its cause follows
				return nil
			}
			if d.Redelivered {
				c.metrics.redelivered.Inc()
				c.warnOfLimit(&d)
			}
			m := fromDelivery(&d, c.queue.Name, stream, time.Now())
			m.From.Cluster = c.cfg.Cluster
			m.SetOrigin(d.MessageId)
			c.delivered.Store(d.DeliveryTag)
			if stream {
				c.position.delivered(d.DeliveryTag, m.From.Offset)
			}
			size := m.Size()
			if err := l.Offer(channelCtx, m, int64(d.DeliveryTag)); err != nil {
				return fmt.Errorf("queue %q: %w", c.queue.Name, err)
			}
			if c.prefetch.observe(size) {
				if waitDrained(channelCtx, l) {
					return errResize
				}
				c.prefetch.cancelResize()
			}
		}
	}
}

// warnOfLimit warns when a message of a quorum queue was returned so often that the queue's delivery
// limit may be near. The limit may be a policy, of which AMQP tells nothing.
func (c *queueConsumer) warnOfLimit(d *amqp.Delivery) {
	count, _ := d.Headers[headerDeliveryCount].(int64)
	if count < warnDeliveries || time.Since(c.lastLimitWarning) < time.Minute {
		return
	}
	c.lastLimitWarning = time.Now()
	c.log.Warn("a message was returned to its queue several times; at the queue's delivery limit (20 by default from RabbitMQ 4.0) "+
		"the broker drops or dead-letters it: set a dead-letter exchange, or the policy delivery-limit -1",
		zap.String("queue", c.queue.Name), zap.Int64("delivery_count", count))
}

// warnDeliveries is the x-delivery-count from which warnOfLimit warns.
const warnDeliveries = 3

// waitDrained waits up to resizeTimeout for the pipeline's messages, and reports whether all are done.
func waitDrained(ctx context.Context, l sourcePipeline) bool {
	ctx, cancel := context.WithTimeout(ctx, resizeTimeout)
	defer cancel()
	return l.Drain(ctx) == nil
}

// commit acknowledges everything up to a delivery tag. On a channel that has ended, whose tags are
// not valid any more, it acknowledges nothing and returns why the channel ended.
func (c *queueConsumer) commit(channelCtx context.Context, ch *amqp.Channel, position int64) error {
	if cause := context.Cause(channelCtx); cause != nil && ch.IsClosed() {
		return cause
	}
	if err := ch.Ack(uint64(position), true); err != nil {
		return plainErrorOf(err)
	}
	c.committed.Store(uint64(position))
	if c.queue.Type == typeStream {
		c.position.committed(uint64(position))
	}
	return nil
}

// drain cancels the consumer, waits until the offered messages are stored, and commits them. The
// broker puts other deliveries back into the queue when the channel closes.
func (c *queueConsumer) drain(ch *amqp.Channel, l sourcePipeline) error {
	if err := ch.Cancel(consumerTag, false); err != nil {
		l.Abandon()
		return plainErrorOf(err)
	}
	c.closePipeline(l)
	return nil
}

// closePipeline waits up to DrainTimeout until the offered messages are stored, and commits them.
func (c *queueConsumer) closePipeline(l sourcePipeline) {
	ctx, cancel := context.WithTimeout(c.drainCtx, c.cfg.DrainTimeout)
	defer cancel()
	if err := l.Close(ctx); err != nil {
		c.log.Warn("not all messages were stored in time; they stay in the queue", zap.String("queue", c.queue.Name), zap.Error(err))
	}
}

// Lag is how many messages wait in the queues: those that were not delivered, and those that this
// source was given and has not committed. Of a stream it counts the latter only: AMQP 0-9-1 does
// not tell how many messages it has.
func (s *Source) Lag(ctx context.Context) (int64, error) {
	conn := s.conn.Load()
	if conn == nil {
		return 0, fmt.Errorf("no connection to RabbitMQ at %s", s.cfg.address())
	}
	select {
	case s.lagQuery <- struct{}{}: // released when the query ends
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	type answer struct {
		n   int64
		err error
	}
	// The library's calls take no context. A call that hangs ends with the connection. Until then
	// lagQuery keeps other calls from starting.
	answers := make(chan answer, 1)
	go func() {
		defer func() { <-s.lagQuery }()
		n, err := s.count(conn)
		answers <- answer{n, err}
	}()
	select {
	case a := <-answers:
		return a.n, a.err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

func (s *Source) count(conn *amqp.Connection) (int64, error) {
	var sum int64
	for _, q := range s.cfg.Queues {
		err := onChannel(conn, func(ch *amqp.Channel) error {
			state, err := ch.QueueDeclarePassive(q.Name, true, false, false, false, nil)
			sum += int64(state.Messages)
			return err
		})
		if err != nil {
			return 0, fmt.Errorf("queue %q: %w", q.Name, plainErrorOf(err))
		}
	}
	for _, t := range s.consumers {
		committed := t.committed.Load() // first: it is never ahead of what was delivered later
		sum += int64(t.delivered.Load() - committed)
	}
	return sum, nil
}
