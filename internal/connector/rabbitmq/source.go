package rabbitmq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/connector"
	"github.com/aviaryhq/aviary/internal/connector/message"
	"github.com/aviaryhq/aviary/internal/connector/pipeline"
)

// Source takes messages from queues. Run may be called once; Lag at any time, from any goroutine.
type Source struct {
	*client
	cfg       SourceConfig
	consumers []*queueConsumer
	conn      atomic.Pointer[amqp.Connection] // for Lag; nil while there is none
	lagQuery  chan struct{}                   // held while Lag asks the broker
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

// NewSource implements [connector.SourceConfig].
func (c SourceConfig) NewSource(o connector.Options) connector.Source {
	s := &Source{client: newClient(c.Connection, "source", o), cfg: c, lagQuery: make(chan struct{}, 1)}
	for _, q := range c.Queues {
		for i := range c.ParallelConsumers {
			name := q.Name
			if c.ParallelConsumers > 1 {
				name += "#" + strconv.Itoa(i)
			}
			ahead := newPrefetch(q, c.Prefetch, int64(c.PrefetchBytes)/int64(c.channels()))
			s.consumers = append(s.consumers, &queueConsumer{Source: s, queue: q, name: name, prefetch: ahead})
		}
	}
	return s
}

// Run takes messages until ctx ends, and returns nil. Each consumer has a pipeline. Run reports
// failures and tries again without limit.
func (s *Source) Run(ctx context.Context, pipelines *pipeline.Set) error {
	return s.run(ctx, func(name string, ahead int, commit func(int64) error) sourcePipeline {
		l := pipelines.Open(name, commit)
		// The broker sends no more than that many messages ahead of the acknowledgements: these
		// must not wait for the commit interval.
		l.CommitEach(max(ahead/8, 1))
		return l
	})
}

func (s *Source) run(ctx context.Context, open opener) error {
	s.connect(ctx, func(conn *brokerConnection) error { return s.serve(ctx, conn, open) })
	return nil
}

// serve takes messages through one connection until it or ctx ends. It closes the pipelines that
// were opened.
func (s *Source) serve(ctx context.Context, conn *brokerConnection, open opener) (err error) {
	s.conn.Store(conn.Connection)
	defer s.conn.Store(nil)
	consuming, stop := context.WithCancel(ctx)
	defer stop()
	var wg sync.WaitGroup
	for _, c := range s.consumers {
		wg.Go(func() {
			c.repeat(consuming, conn, c.name, func() error { return c.consume(consuming, conn, open) })
		})
	}
	select {
	case <-ctx.Done():
		// The library's calls take no context. Dropping the connection ends them, so that a broker
		// that does not answer cannot keep the pipelines open.
		drain, cancel := context.WithTimeout(s.drainCtx, s.cfg.DrainTimeout)
		defer cancel()
		stopDropping := context.AfterFunc(drain, func() { time.AfterFunc(closeTimeout, conn.drop) })
		defer stopDropping()
	case reason := <-conn.lost:
		err = conn.lostError(reason)
		stop()
	}
	wg.Wait()
	conn.close()
	return err
}

// openChannel opens a channel with a consumer on it, and calls end when either ends. The caller
// closes the channel, also after an error, unless it is nil.
func (c *queueConsumer) openChannel(
	conn *brokerConnection, end context.CancelCauseFunc,
) (ch *amqp.Channel, deliveries <-chan amqp.Delivery, err error) {
	err = conn.withTimeout(func() (err error) {
		if err = c.queue.prepare(conn.Connection, c.cfg.Declare == declareCreate); err != nil {
			return err
		}
		if ch, err = conn.Channel(); err == nil {
			go c.awaitEnd(ch.NotifyClose(make(chan *amqp.Error, 1)), ch.NotifyCancel(make(chan string, 1)), end)
			err = ch.Qos(c.prefetch.beginChannel(), 0, false)
		}
		asked := time.Now()
		if err == nil {
			deliveries, err = ch.Consume(c.queue.Name, consumerTag, false, false, false, false, c.arguments())
		}
		if err != nil {
			return fmt.Errorf("cannot consume from queue %q: %w", c.queue.Name, plainError(err))
		}
		c.position.started(asked)
		return nil
	})
	return ch, deliveries, err
}

func (c *queueConsumer) awaitEnd(closed <-chan *amqp.Error, cancelled <-chan string, end context.CancelCauseFunc) {
	select {
	case reason := <-closed:
		end(fmt.Errorf("the channel of queue %q ended: %w", c.queue.Name, plainError(reason)))
	case <-cancelled:
		end(fmt.Errorf("RabbitMQ cancelled the consumer of queue %q: the queue was deleted, or moves to another node", c.queue.Name))
	}
}

// consume offers the deliveries of one channel to one pipeline until either ends. The pipeline's
// positions are delivery tags, which are valid on this channel only.
func (c *queueConsumer) consume(ctx context.Context, conn *brokerConnection, open opener) error {
	// channelCtx ends with the channel or the consumer: Offer stops waiting then.
	channelCtx, end := context.WithCancelCause(ctx)
	defer end(nil)
	ch, deliveries, err := c.openChannel(conn, end)
	if ch != nil {
		defer func() { _ = ch.Close() }()
	}
	if err != nil {
		return err
	}
	c.health.Set(c.name, nil)
	c.committed.Store(0) // first, for Lag
	c.delivered.Store(0)
	pipeline := open(c.name, c.prefetch.count, func(position int64) error { return c.commit(channelCtx, ch, position) })
	err = c.forward(channelCtx, deliveries, pipeline)
	switch {
	case errors.Is(err, errResize):
		c.closePipeline(pipeline)
		return err
	case ctx.Err() == nil:
		pipeline.Abandon()
		return cmp.Or(context.Cause(channelCtx), err)
	}
	// The broker puts other deliveries back into the queue when the channel closes.
	if err := ch.Cancel(consumerTag, false); err != nil {
		pipeline.Abandon()
		return plainError(err)
	}
	c.closePipeline(pipeline)
	return nil
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
			size := m.Size() // before the pipeline has the message
			if err := l.Offer(channelCtx, m, int64(d.DeliveryTag)); err != nil {
				return fmt.Errorf("queue %q: %w", c.queue.Name, err)
			}
			if c.prefetch.observe(size) {
				storing, cancel := context.WithTimeout(channelCtx, resizeTimeout)
				err := l.Drain(storing)
				cancel()
				if err == nil {
					return errResize
				}
				c.prefetch.next = 0
			}
		}
	}
}

// warnOfLimit warns when a message of a quorum queue was returned so often that the queue's delivery
// limit may be near. AMQP does not tell the limit.
func (c *queueConsumer) warnOfLimit(d *amqp.Delivery) {
	const warnDeliveries = 3
	count, _ := d.Headers[headerDeliveryCount].(int64)
	if count < warnDeliveries || time.Since(c.lastLimitWarning) < time.Minute {
		return
	}
	c.lastLimitWarning = time.Now()
	c.log.Warn("a message was returned to its queue several times; at the queue's delivery limit (20 by default from RabbitMQ 4.0) "+
		"the broker drops or dead-letters it: set a dead-letter exchange, or the policy delivery-limit -1",
		zap.String("queue", c.queue.Name), zap.Int64("delivery_count", count))
}

// commit acknowledges everything up to a delivery tag. On a channel that has ended, whose tags are
// not valid any more, it acknowledges nothing and returns why the channel ended.
func (c *queueConsumer) commit(channelCtx context.Context, ch *amqp.Channel, position int64) error {
	if cause := context.Cause(channelCtx); cause != nil && ch.IsClosed() {
		return cause
	}
	if err := ch.Ack(uint64(position), true); err != nil {
		return plainError(err)
	}
	c.committed.Store(uint64(position))
	c.position.committed(uint64(position))
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
		return 0, errors.New("no connection to RabbitMQ")
	}
	// The library's calls take no context. A query that hangs ends with the connection; until then
	// there is no other.
	select {
	case s.lagQuery <- struct{}{}:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	var n int64
	var err error
	answered := make(chan struct{})
	go func() {
		n, err = s.count(conn)
		<-s.lagQuery
		close(answered)
	}()
	select {
	case <-answered:
		return n, err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

func (s *Source) count(conn *amqp.Connection) (sum int64, err error) {
	for _, q := range s.cfg.Queues {
		state, err := queueState(conn, q.Name)
		if err != nil {
			return 0, fmt.Errorf("queue %q: %w", q.Name, err)
		}
		sum += int64(state.Messages)
	}
	for _, c := range s.consumers {
		committed := c.committed.Load() // first: it is never ahead of what was delivered later
		sum += int64(c.delivered.Load() - committed)
	}
	return sum, nil
}
