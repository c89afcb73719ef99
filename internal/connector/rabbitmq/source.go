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
	"github.com/aviaryhq/aviary/internal/connector/lane"
	"github.com/aviaryhq/aviary/internal/connector/message"
)

// Source takes messages from queues. Run may be called once; Lag at any time, from any goroutine.
type Source struct {
	cfg     SourceConfig
	health  *health
	metrics *PartMetrics
	log     *zap.Logger
	taps    []*tap
	// patience ends when a stop must not wait any longer.
	patience context.Context

	conn   atomic.Pointer[amqp.Connection] // for Lag; nil while there is none
	asking chan struct{}                   // held by who asks the broker for Lag
}

// tap is one consumer: one queue on one channel at a time.
type tap struct {
	*Source
	queue Queue
	name  string

	delivered, committed atomic.Uint64 // delivery tags of the present channel
	place                streamPlace
	prefetch             prefetch
}

// sourceLane is what a source needs of a lane.
type sourceLane interface {
	Offer(ctx context.Context, m *message.Message, position int64) error
	Drain(ctx context.Context) error
	Close(ctx context.Context) error
	Abandon()
}

// opener opens a lane of a channel that has up to ahead messages delivered.
type opener func(name string, ahead int, commit func(position int64) error) sourceLane

// NewSource checks the configuration. It does not connect.
func NewSource(cfg SourceConfig, o Options) (*Source, error) {
	if err := faults(&cfg); err != nil {
		return nil, err
	}
	s := &Source{cfg: cfg, health: newHealth(o.Report), metrics: o.metrics(), log: o.logger(), patience: o.patience(), asking: make(chan struct{}, 1)}
	for _, q := range cfg.Queues {
		ahead := prefetch{most: cfg.Prefetch, bytes: int64(cfg.PrefetchBytes) / int64(cfg.channels())}
		if cfg.Mode == modeOrdered {
			s.taps = append(s.taps, &tap{Source: s, queue: q, name: q.Name, prefetch: ahead})
			continue
		}
		for i := range cfg.Parallel {
			s.taps = append(s.taps, &tap{Source: s, queue: q, name: q.Name + "#" + strconv.Itoa(i), prefetch: ahead})
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

// Run takes messages until ctx ends, and returns nil. Each queue has one lane (mode ordered) or several. Trouble is reported, and tried again for
// ever.
func (s *Source) Run(ctx context.Context, lanes *lane.Set) error {
	return s.run(ctx, func(name string, ahead int, commit func(int64) error) sourceLane {
		// The broker sends no more than that many messages ahead of the acknowledgements: these must not wait for the commit interval.
		return lanes.Open(name, commit, lane.CommitEach(max(ahead/8, 1)))
	})
}

func (s *Source) run(ctx context.Context, open opener) error {
	var pause backoff
	for ctx.Err() == nil {
		began := time.Now()
		conn, err := s.cfg.dial(ctx, "source")
		if err == nil {
			err = s.serve(ctx, conn, open)
		}
		if ctx.Err() == nil {
			s.health.set(partConnection, err)
			pause.wait(ctx, time.Since(began))
		}
	}
	return nil
}

// serve takes messages through one connection until it or ctx ends. All lanes that were opened are closed when it returns.
func (s *Source) serve(ctx context.Context, conn *link, open opener) error {
	lost := conn.NotifyClose(make(chan *amqp.Error, 1))
	s.metrics.connections.Inc()
	s.metrics.connected.Set(1)
	defer s.metrics.connected.Set(0)
	s.conn.Store(conn.Connection)
	defer s.conn.Store(nil)
	s.health.set(partConnection, nil)
	taps, stop := context.WithCancel(ctx)
	defer stop()
	var wg sync.WaitGroup
	for _, t := range s.taps {
		wg.Go(func() { t.run(taps, conn, open) })
	}
	var err error
	select {
	case <-ctx.Done():
		// The library's calls know no contexts: a broker that does not answer must not keep the lanes from ending.
		patience, cancel := context.WithTimeout(s.patience, s.cfg.StopTimeout)
		defer cancel()
		stopDropping := context.AfterFunc(patience, func() { time.AfterFunc(closeTime, conn.drop) })
		defer stopDropping()
	case reason := <-lost:
		err = conn.lost(s.cfg.address(), reason)
		stop()
	}
	wg.Wait()
	conn.close()
	return err
}

// run consumes through one channel after another until ctx or the connection ends.
func (t *tap) run(ctx context.Context, conn *link, open opener) {
	var pause backoff
	for ctx.Err() == nil && !conn.IsClosed() {
		began := time.Now()
		err := t.prepareAndConsume(ctx, conn, open)
		if errors.Is(err, errResize) {
			continue
		}
		if ctx.Err() == nil && !conn.IsClosed() {
			t.health.set(t.name, err)
			pause.wait(ctx, time.Since(began))
		}
	}
}

func (t *tap) prepareAndConsume(ctx context.Context, conn *link, open opener) error {
	var ch *amqp.Channel
	var deliveries <-chan amqp.Delivery
	var ended chan *amqp.Error
	var cancelled chan string
	err := conn.within(func() error {
		err := t.queue.prepare(conn.Connection, t.cfg.Declare)
		if err != nil {
			return err
		}
		if ch, err = conn.Channel(); err != nil {
			return fmt.Errorf("queue %q: %w", t.queue.Name, explain(err))
		}
		ended = ch.NotifyClose(make(chan *amqp.Error, 1))
		cancelled = ch.NotifyCancel(make(chan string, 1))
		if err = ch.Qos(t.prefetch.begin(), 0, false); err == nil {
			asked := time.Now()
			if deliveries, err = ch.Consume(t.queue.Name, consumerTag, false, false, false, false, t.arguments()); err == nil {
				t.place.begin(asked)
			}
		}
		if err != nil {
			return fmt.Errorf("cannot consume from queue %q: %w", t.queue.Name, explain(err))
		}
		return nil
	})
	if ch != nil {
		defer func() { _ = ch.Close() }()
	}
	if err != nil {
		return err
	}
	return t.consume(ctx, ch, deliveries, ended, cancelled, open)
}

// consume is the life of one channel: delivery tags, which are the positions of its lane, mean something on it only.
func (t *tap) consume(ctx context.Context, ch *amqp.Channel, deliveries <-chan amqp.Delivery, ended <-chan *amqp.Error, cancelled <-chan string, open opener) error {
	t.health.set(t.name, nil)
	t.committed.Store(0) // first, for Lag
	t.delivered.Store(0)

	// alive ends with the channel or the consumer: Offer must not go on waiting for room then.
	alive, end := context.WithCancelCause(ctx)
	defer end(nil)
	over := make(chan struct{})
	defer close(over)
	go func() {
		select {
		case reason := <-ended:
			end(fmt.Errorf("the channel of queue %q ended: %w", t.queue.Name, plain(reason)))
		case <-cancelled:
			end(fmt.Errorf("RabbitMQ cancelled the consumer of queue %q: it was deleted, or is moving", t.queue.Name))
		case <-over:
		}
	}()

	l := open(t.name, t.prefetch.count, func(position int64) error { return t.commit(alive, ch, position) })
	err := t.forward(alive, deliveries, l)
	if errors.Is(err, errResize) {
		t.closeLane(l)
		return err
	}
	if ctx.Err() == nil {
		l.Abandon()
		if cause := context.Cause(alive); cause != nil {
			err = cause
		}
		return err
	}
	return t.drain(ch, l)
}

const consumerTag = "pigeonhole"

// forward offers deliveries until alive ends.
func (t *tap) forward(alive context.Context, deliveries <-chan amqp.Delivery, l sourceLane) error {
	stream := t.queue.Type == typeStream
	for {
		select {
		case <-alive.Done():
			return nil
		case d, ok := <-deliveries:
			if !ok {
				<-alive.Done() // the reason is on its way
				return nil
			}
			if d.Redelivered {
				t.metrics.redelivered.Inc()
			}
			m := fromDelivery(&d, t.queue.Name, stream, time.Now())
			m.From.Cluster = t.cfg.Cluster
			m.Begin(d.MessageId)
			t.delivered.Store(d.DeliveryTag)
			if stream {
				t.place.delivered(d.DeliveryTag, m.From.Offset)
			}
			size := m.Size()
			if err := l.Offer(alive, m, int64(d.DeliveryTag)); err != nil {
				return fmt.Errorf("queue %q: %w", t.queue.Name, err)
			}
			if t.prefetch.note(size) && drained(alive, l) {
				return errResize
			}
		}
	}
}

// drained waits a moment for what is on its way, and reports whether it has arrived.
func drained(ctx context.Context, l sourceLane) bool {
	ctx, cancel := context.WithTimeout(ctx, resizeTime)
	defer cancel()
	return l.Drain(ctx) == nil
}

// commit acknowledges everything up to a delivery tag. It is a no-op on a channel that has ended, whose tags mean nothing any more.
func (t *tap) commit(alive context.Context, ch *amqp.Channel, position int64) error {
	if cause := context.Cause(alive); cause != nil && ch.IsClosed() {
		return cause
	}
	if err := ch.Ack(uint64(position), true); err != nil {
		return explain(err)
	}
	t.committed.Store(uint64(position))
	if t.queue.Type == typeStream {
		t.place.committed(uint64(position))
	}
	return nil
}

// drain has no more delivered, waits until what was offered is stored, and commits it. What else was delivered goes back to the queue when the
// channel closes.
func (t *tap) drain(ch *amqp.Channel, l sourceLane) error {
	if err := ch.Cancel(consumerTag, false); err != nil {
		l.Abandon()
		return explain(err)
	}
	t.closeLane(l)
	return nil
}

// closeLane waits until what was offered is stored, and commits it.
func (t *tap) closeLane(l sourceLane) {
	ctx, cancel := context.WithTimeout(t.patience, t.cfg.StopTimeout)
	defer cancel()
	if err := l.Close(ctx); err != nil {
		t.log.Warn("not all messages were stored in time; they stay in the queue", zap.String("queue", t.queue.Name), zap.Error(err))
	}
}

// Lag is how many messages wait in the queues: those that were not delivered, and those that this source was given and has not committed. Of a
// stream it counts the latter only: AMQP 0-9-1 does not tell how many messages it has.
func (s *Source) Lag(ctx context.Context) (int64, error) {
	conn := s.conn.Load()
	if conn == nil {
		return 0, fmt.Errorf("no connection to RabbitMQ at %s", s.cfg.address())
	}
	select {
	case s.asking <- struct{}{}:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	type answer struct {
		n   int64
		err error
	}
	// The library's calls know no contexts. One that hangs ends with the connection, and until then keeps others from being made.
	answers := make(chan answer, 1)
	go func() {
		defer func() { <-s.asking }()
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
			return 0, fmt.Errorf("queue %q: %w", q.Name, explain(err))
		}
	}
	for _, t := range s.taps {
		committed := t.committed.Load() // first: it is never ahead of what was delivered later
		sum += int64(t.delivered.Load() - committed)
	}
	return sum, nil
}
