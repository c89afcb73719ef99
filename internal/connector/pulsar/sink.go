package pulsar

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/connector"
	"github.com/aviaryhq/aviary/internal/connector/message"
	"github.com/aviaryhq/aviary/internal/connector/pipeline"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Sink publishes what pipelines send it. A message's way: the publisher of its destination,
// opened when first needed -> mapped -> published -> the broker's receipt -> done.
//
// Publishers send unacknowledged messages again by themselves, in order, after a connection or
// producer was lost. So an outage fails no message here: messages wait, and when a publisher's
// bounds are reached, Send blocks.
type Sink struct {
	cfg      SinkConfig
	options  connector.Options
	ready    chan struct{} // closed once Run has a client
	stopping chan struct{} // closed once Run accepts no more messages
	runOnce  sync.Once

	client          *messaging.Client
	openCtx         context.Context // of open publishers and writers: ends once Run has closed them
	pendingMessages pendingPool
	exactMessages   exactMessagePool

	closers sync.WaitGroup // goroutines that close idle publishers and writers

	mu           sync.RWMutex
	destinations map[string]*destination
	writers      map[exactKey]*writer
	closed       bool
	topicClosed  chan struct{} // closed and replaced when a destination is closed
}

// PlaceName names the topic to in the hops of messages.
func (s *Sink) PlaceName(to string) string { return message.PlaceName(system, s.cfg.Cluster, to) }

// destination is one open topic.
type destination struct {
	topic string
	sink  *Sink
	users usage

	opened  chan struct{} // closed once pub or refusal is set
	pub     *messaging.Publisher
	refusal error
	cancel  context.CancelFunc

	mu        sync.Mutex
	openError error // why it is not open yet
}

// NewSink prepares a sink. Nothing is connected to before Run.
func NewSink(cfg SinkConfig, o connector.Options) (*Sink, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	o = o.WithDefaults()
	o.Log = o.Log.Named("pulsar")
	if o.MaxPending > 0 {
		cfg.Profile.MaxPendingRecords = min(cfg.Profile.MaxPendingRecords, o.MaxPending)
	}
	cfg.Profile.Routing = messaging.RouteKeyHash
	if cfg.Partition == partitionSource {
		cfg.Profile.Routing = messaging.RouteExplicit
	}
	return &Sink{
		cfg: cfg, options: o,
		ready: make(chan struct{}), stopping: make(chan struct{}), topicClosed: make(chan struct{}),
		destinations: make(map[string]*destination), writers: make(map[exactKey]*writer),
	}, nil
}

// ErrStopped is the outcome of messages that are sent after the sink has stopped.
var ErrStopped = errors.New("the pulsar sink has stopped")

// Run publishes until ctx ends, then waits CloseTimeout for unacknowledged messages. When it
// returns, every done has been called. It may be called once.
func (s *Sink) Run(ctx context.Context) error {
	err := errors.New("the sink has run already")
	s.runOnce.Do(func() { err = s.run(ctx) })
	return err
}

func (s *Sink) run(ctx context.Context) error {
	client, err := messaging.Dial(context.WithoutCancel(ctx), s.cfg.Config, messaging.WithLogger(s.options.Log), messaging.WithRegisterer(s.options.Registerer))
	if err != nil {
		close(s.stopping)
		return err
	}
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	s.client, s.openCtx = client, life
	close(s.ready)

	tick := time.NewTicker(reportEvery)
	defer tick.Stop()
	health := connector.NewHealth(s.options.Report)
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case now := <-tick.C:
			s.closeIdle(now)
			health.Set(connector.Connection, s.healthError())
		}
	}
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	close(s.stopping)
	closing, done := context.WithTimeout(s.options.DrainContext, s.cfg.CloseTimeout)
	defer done()
	s.closeAll(closing, cancel)
	if err := client.Close(closing); err != nil {
		s.options.Log.Warn("cannot close the client", zap.Error(err))
	}
	return nil
}

// closeAll closes all publishers and writers. It waits for unacknowledged messages until ctx ends.
func (s *Sink) closeAll(ctx context.Context, end context.CancelFunc) {
	s.mu.RLock()
	open, exact := slices.Collect(maps.Values(s.destinations)), slices.Collect(maps.Values(s.writers))
	s.mu.RUnlock()
	var wg sync.WaitGroup
	for _, d := range open {
		wg.Go(func() { d.close(ctx) })
	}
	for _, w := range exact {
		wg.Go(func() { w.close(ctx) })
	}
	wg.Wait()
	s.closers.Wait()
	end()
}

// Send publishes m to the topic to. See [pipeline.Sink].
func (s *Sink) Send(ctx context.Context, to string, m *message.Message, done func(error)) {
	if err := s.await(ctx); err != nil {
		done(err)
		return
	}
	if s.cfg.Guarantee == effectivelyOnce {
		s.sendExactly(to, m, done)
		return
	}
	d, err := s.destination(ctx, to)
	if err != nil {
		done(err)
		return
	}
	p := s.pendingMessages.get()
	p.sink, p.users, p.done = s, &d.users, done
	p.setRecord(m)
	d.pub.PublishAsync(ctx, &p.record, p.onReceipt)
}

// await waits for the client.
func (s *Sink) await(ctx context.Context) error {
	select {
	case <-s.ready:
		return nil
	default:
	}
	select {
	case <-s.ready:
		return nil
	case <-s.stopping:
		return ErrStopped
	case <-ctx.Done():
		return ctx.Err()
	}
}

// destination returns the open publisher of topic, and counts the caller as one of its
// users until the message's receipt.
func (s *Sink) destination(ctx context.Context, topic string) (*destination, error) {
	for {
		s.mu.RLock()
		d, closed := s.destinations[topic], s.closed
		if d != nil {
			d.users.acquire()
		}
		s.mu.RUnlock()
		if closed {
			if d != nil {
				d.users.release()
			}
			return nil, ErrStopped
		}
		if d == nil {
			if err := s.openTopic(ctx, topic); err != nil {
				return nil, err
			}
			continue
		}
		select {
		case <-d.opened:
		default:
			select {
			case <-d.opened:
			case <-ctx.Done():
				d.users.release()
				return nil, ctx.Err()
			case <-s.stopping:
				d.users.release()
				return nil, ErrStopped
			}
		}
		if d.refusal != nil {
			d.users.release()
			return nil, d.refusal
		}
		return d, nil
	}
}

// openTopic starts to open topic. With MaxTopics open it first closes the one that has been idle
// longest, or waits.
func (s *Sink) openTopic(ctx context.Context, topic string) error {
	if !messaging.ValidTopic(topic) {
		return pipeline.Refuse("bad_topic", fmt.Errorf("%q cannot be a topic of Pulsar", topic))
	}
	s.mu.Lock()
	if s.destinations[topic] != nil || s.closed {
		s.mu.Unlock()
		return nil
	}
	if len(s.destinations) >= s.cfg.MaxTopics {
		idle := s.longestIdle()
		if idle == nil {
			closed := s.topicClosed
			s.mu.Unlock()
			select {
			case <-closed:
				return nil
			case <-time.After(reportEvery): // another may be idle now
				return nil
			case <-ctx.Done():
				return ctx.Err()
			case <-s.stopping:
				return ErrStopped
			}
		}
		s.closeDestination(idle)
	}
	opening, cancel := context.WithCancel(s.openCtx)
	d := &destination{topic: topic, sink: s, opened: make(chan struct{}), cancel: cancel}
	d.users.markUsed(time.Now())
	s.destinations[topic] = d
	s.mu.Unlock()
	go d.open(opening)
	return nil
}

// open opens the publisher, and tries again until ctx ends.
func (d *destination) open(ctx context.Context) {
	defer close(d.opened)
	d.refusal = ErrStopped
	for ctx.Err() == nil {
		attempt, cancel := context.WithTimeout(ctx, openTimeout)
		pub, err := d.sink.client.Publisher(attempt, d.topic, d.sink.cfg.Profile)
		if err == nil {
			cancel()
			d.pub, d.refusal = pub, nil
			d.setOpenError(nil)
			return
		}
		if errors.Is(err, messaging.ErrTopicTerminated) {
			cancel()
			d.refusal = pipeline.Refuse("terminated", err)
			return
		}
		d.setOpenError(err)
		<-attempt.Done() // also after an error that came at once: one attempt in openTimeout
		cancel()
	}
}

// openTimeout bounds one attempt to open a destination, and one request for partitions. A writer
// that is not open after this time reports that, and goes on waiting.
const openTimeout = 5 * time.Second

func (d *destination) setOpenError(err error) {
	d.mu.Lock()
	d.openError = err
	d.mu.Unlock()
}

func (d *destination) healthError() error {
	select {
	case <-d.opened:
		if d.pub != nil {
			return d.pub.Unhealthy()
		}
		return nil
	default:
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.openError
	}
}

// close waits until ctx ends for unacknowledged messages, then completes the rest with an error.
func (d *destination) close(ctx context.Context) {
	d.cancel()
	<-d.opened
	if d.pub == nil {
		return
	}
	if err := d.pub.Close(ctx); err != nil {
		d.sink.options.Log.Warn("cannot close a publisher cleanly", zap.String("topic", d.topic), zap.Error(err))
	}
}

// closeIdle closes publishers that have been idle for IdleTimeout, and writers that have been idle
// for IdleTimeout or maxExactIdle, whichever is shorter.
func (s *Sink) closeIdle(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.destinations {
		if d.users.idle(now) >= s.cfg.IdleTimeout {
			s.closeDestination(d)
		}
	}
	for _, w := range s.writers {
		if w.users.idle(now) >= min(s.cfg.IdleTimeout, maxExactIdle) {
			s.closeExactWriter(w)
		}
	}
}

// longestIdle is the open topic that has had no users for the longest time. s.mu is held.
func (s *Sink) longestIdle() *destination {
	var found *destination
	var most time.Duration
	now := time.Now()
	for _, d := range s.destinations {
		if idle := d.users.idle(now); idle > most {
			found, most = d, idle
		}
	}
	return found
}

// closeDestination closes a topic without users, in a goroutine. s.mu is held, so that it gets none.
func (s *Sink) closeDestination(d *destination) {
	delete(s.destinations, d.topic)
	close(s.topicClosed)
	s.topicClosed = make(chan struct{})
	s.closers.Go(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(s.openCtx), s.cfg.CloseTimeout)
		defer cancel()
		d.close(ctx)
	})
}

// healthError is the error of any publisher or writer that has one; nil for none.
func (s *Sink) healthError() error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, d := range s.destinations {
		if err := d.healthError(); err != nil {
			return err
		}
	}
	for _, w := range s.writers {
		if err := w.healthError(); err != nil {
			return err
		}
	}
	return nil
}

// pipelineOutcome turns an error of the library into the outcome for a pipeline.
func pipelineOutcome(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, messaging.ErrTooLarge):
		return pipeline.Refuse("too_large", err)
	case errors.Is(err, messaging.ErrBadPartition):
		return pipeline.Refuse("no_partition", err)
	case errors.Is(err, messaging.ErrTopicTerminated):
		return pipeline.Refuse("terminated", err)
	default:
		return err
	}
}
