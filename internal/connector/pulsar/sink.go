package pulsar

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/connector"
	"github.com/aviaryhq/aviary/internal/connector/message"
	"github.com/aviaryhq/aviary/internal/connector/pipeline"
	"github.com/aviaryhq/aviary/pkg/backoff"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Sink publishes what pipelines send it. A message's way: the publisher of its destination,
// opened when first needed -> mapped -> published -> the broker's receipt -> done.
//
// Publishers send unacknowledged messages again by themselves, in order. So an outage fails no message
// here: messages wait, and when a publisher's bounds are reached, Send blocks.
type Sink struct {
	cfg      SinkConfig
	options  connector.Options
	ready    chan struct{} // closed once Run has a client
	stopping chan struct{} // closed, with mu, once Run accepts no more messages

	client   *messaging.Client
	messages sync.Pool // of *outgoing

	openCtx context.Context // of open publishers and writers: ends once Run has closed them

	closers sync.WaitGroup // goroutines that close idle publishers and writers

	mu           sync.RWMutex
	destinations map[string]*destination
	writers      map[exactKey]*writer
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

	openError atomic.Pointer[error] // why it is not open yet
}

// NewSink implements [connector.SinkConfig].
func (c SinkConfig) NewSink(o connector.Options) connector.Sink {
	o = o.WithDefaults()
	o.Log = o.Log.Named("pulsar")
	c.Profile.Routing = messaging.RouteKeyHash
	if c.Partition == partitionSource {
		c.Profile.Routing = messaging.RouteExplicit
	}
	s := &Sink{
		cfg: c, options: o, ready: make(chan struct{}), stopping: make(chan struct{}),
		destinations: make(map[string]*destination), writers: make(map[exactKey]*writer),
	}
	s.messages.New = s.newOutgoing
	return s
}

// errStopped is the outcome of messages that are sent after the sink has stopped.
var errStopped = errors.New("the pulsar sink has stopped")

// Run publishes until ctx ends, then waits CloseTimeout for unacknowledged messages. When it
// returns, every done has been called. It may be called once.
func (s *Sink) Run(ctx context.Context) error {
	client, err := newClient(ctx, s.cfg.Config, s.options)
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
	close(s.stopping)
	s.mu.Unlock()
	closing, done := context.WithTimeout(s.options.DrainContext, s.cfg.CloseTimeout)
	defer done()
	s.closeAll(closing)
	cancel()
	if err := client.Close(closing); err != nil {
		s.options.Log.Warn("cannot close the client", zap.Error(err))
	}
	return nil
}

// newClient returns a client that outlives ctx.
func newClient(ctx context.Context, cfg messaging.Config, o connector.Options) (*messaging.Client, error) {
	return messaging.Dial(context.WithoutCancel(ctx), cfg, messaging.WithLogger(o.Log), messaging.WithRegisterer(o.Registerer))
}

// closeAll closes all publishers and writers. It waits for unacknowledged messages until ctx ends.
func (s *Sink) closeAll(ctx context.Context) {
	var wg sync.WaitGroup
	s.mu.RLock()
	for _, d := range s.destinations {
		wg.Go(func() { d.close(ctx) })
	}
	for _, w := range s.writers {
		wg.Go(func() { w.close(ctx) })
	}
	s.mu.RUnlock()
	wg.Wait()
	s.closers.Wait()
}

// Send publishes m to the topic to. See [pipeline.Sink].
func (s *Sink) Send(ctx context.Context, to string, m *message.Message, done func(error)) {
	err := s.await(ctx, s.ready)
	if err == nil && s.stopped() {
		err = errStopped
	}
	if err != nil {
		done(err)
		return
	}
	if s.cfg.EffectivelyOnce {
		s.sendExactly(to, m, done)
		return
	}
	d, err := s.destination(ctx, to)
	if err != nil {
		done(err)
		return
	}
	o, _ := s.messages.Get().(*outgoing)
	o.record, o.users, o.done = recordOf(m), &d.users, done
	d.pub.PublishAsync(ctx, &o.record, o.onReceipt)
}

// outgoing is a message until its receipt. They are reused: a message costs no allocation here.
type outgoing struct {
	record    messaging.Record
	users     *usage
	done      func(error)
	onReceipt func(messaging.MessageID, error)
}

func (s *Sink) newOutgoing() any {
	o := new(outgoing)
	o.onReceipt = func(_ messaging.MessageID, err error) {
		users, done := o.users, o.done
		o.record, o.users, o.done = messaging.Record{}, nil, nil
		s.messages.Put(o)
		users.release()
		done(pipelineOutcome(err))
	}
	return o
}

// recordOf maps m to a record.
func recordOf(m *message.Message) messaging.Record {
	key, payload, properties := m.Pulsar()
	partition := int(m.From.Partition)
	r := messaging.Record{
		Key: key, OrderingKey: m.OrderingKey, Payload: payload, Properties: properties,
		// Partition counts where the destination's partition is the source's. Else SpreadHint does:
		// messages without a key from different pipelines go to different partitions.
		Partition: partition, SpreadHint: partition,
	}
	if m.Time.UnixMilli() > 0 { // Pulsar's event time cannot hold others
		r.EventTime = m.Time
	}
	return r
}

// await waits for c, until ctx ends or the sink stops.
func (s *Sink) await(ctx context.Context, c <-chan struct{}) error {
	select {
	case <-c:
		return nil
	default:
	}
	select {
	case <-c:
		return nil
	case <-s.stopping:
		return errStopped
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *Sink) stopped() bool {
	select {
	case <-s.stopping:
		return true
	default:
		return false
	}
}

// destination returns the open publisher of topic. The caller releases its use of it. While MaxTopics
// are in use, it waits.
func (s *Sink) destination(ctx context.Context, topic string) (*destination, error) {
	d, err := s.openTopic(topic)
	for d == nil && err == nil {
		if !backoff.Sleep(ctx, busyPause) {
			return nil, ctx.Err()
		}
		d, err = s.openTopic(topic)
	}
	if err != nil {
		return nil, err
	}
	if err = s.await(ctx, d.opened); err == nil {
		err = d.refusal
	}
	if err != nil {
		d.users.release()
		return nil, err
	}
	return d, nil
}

// busyPause is the pause between two looks for a topic that is not in use.
const busyPause = 20 * time.Millisecond

// openTopic starts to open topic, unless it is open, and counts the caller as a user. With MaxTopics
// open it first closes the one that has been idle longest. It returns nil when all are in use.
func (s *Sink) openTopic(topic string) (*destination, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.destinations[topic]
	if d == nil {
		switch {
		case s.stopped():
			return nil, errStopped
		case !messaging.ValidTopic(topic):
			return nil, badTopic(topic)
		case len(s.destinations) >= s.cfg.MaxTopics && !s.closeLongestIdle():
			return nil, nil //nolint:nilnil // it is no error to wait
		}
		d = &destination{topic: topic, sink: s, opened: make(chan struct{}), users: usage{opened: time.Now()}}
		var opening context.Context
		opening, d.cancel = context.WithCancel(s.openCtx)
		s.destinations[topic] = d
		go d.open(opening)
	}
	d.users.acquire()
	return d, nil
}

func badTopic(topic string) error {
	return pipeline.Refuse("bad_topic", fmt.Errorf("%q cannot be a topic of Pulsar", topic))
}

// open opens the publisher, and tries again until ctx ends.
func (d *destination) open(ctx context.Context) {
	defer close(d.opened)
	d.refusal = errStopped
	for ctx.Err() == nil {
		attempt, cancel := context.WithTimeout(ctx, openTimeout)
		pub, err := d.sink.client.Publisher(attempt, d.topic, d.sink.cfg.Profile)
		switch {
		case err == nil:
			d.pub, d.refusal = pub, nil
		case errors.Is(err, messaging.ErrTopicTerminated):
			d.refusal = pipeline.Refuse("terminated", err)
		default:
			d.openError.Store(&err)
			<-attempt.Done() // also after an error that came at once: one attempt in openTimeout
			cancel()
			continue
		}
		cancel()
		return
	}
}

// openTimeout bounds one attempt to open a destination, and one request for partitions. A writer
// that is not open after this time reports that.
const openTimeout = 5 * time.Second

func (d *destination) healthError() error {
	select {
	case <-d.opened:
		if d.pub != nil {
			return d.pub.Unhealthy()
		}
	default:
		if err := d.openError.Load(); err != nil {
			return *err
		}
	}
	return nil
}

// close waits until ctx ends for unacknowledged messages, then completes the rest with an error.
func (d *destination) close(ctx context.Context) {
	d.cancel()
	<-d.opened
	if d.pub != nil {
		if err := d.pub.Close(ctx); err != nil {
			d.sink.options.Log.Warn("cannot close a publisher cleanly", zap.String("topic", d.topic), zap.Error(err))
		}
	}
}

// closeIdle closes publishers and writers that have been idle for long.
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

// closeLongestIdle closes the topic that has had no users for the longest time. It reports whether
// there was one. s.mu is held.
func (s *Sink) closeLongestIdle() bool {
	var found *destination
	var most time.Duration
	now := time.Now()
	for _, d := range s.destinations {
		if idle := d.users.idle(now); idle > most {
			found, most = d, idle
		}
	}
	if found != nil {
		s.closeDestination(found)
	}
	return found != nil
}

// closeDestination closes a topic without users, in a goroutine. s.mu is held, so that it gets none.
func (s *Sink) closeDestination(d *destination) {
	delete(s.destinations, d.topic)
	s.closeLater(d.close)
}

// closeLater calls end with CloseTimeout, in a goroutine.
func (s *Sink) closeLater(end func(context.Context)) {
	s.closers.Go(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(s.openCtx), s.cfg.CloseTimeout)
		defer cancel()
		end(ctx)
	})
}

// healthError is the error of any publisher or writer that has one; nil for none.
func (s *Sink) healthError() error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var errs []error
	for _, d := range s.destinations {
		errs = append(errs, d.healthError())
	}
	for _, w := range s.writers {
		errs = append(errs, w.healthError())
	}
	return cmp.Or(errs...)
}

// pipelineOutcome turns an error of the library into the outcome for a pipeline.
func pipelineOutcome(err error) error {
	switch {
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

// usage counts the users of a topic or writer, and knows since when there are none. acquire is called
// while a lock keeps the topic or writer from being closed.
type usage struct {
	count    atomic.Int64
	opened   time.Time
	lastUsed atomic.Int64 // nanoseconds after opened
}

func (u *usage) acquire() { u.count.Add(1) }

func (u *usage) release() {
	u.lastUsed.Store(int64(time.Since(u.opened)))
	u.count.Add(-1)
}

// free reports whether there are no users.
func (u *usage) free() bool { return u.count.Load() == 0 }

// idle is how long there have been no users; 0 while there are some.
func (u *usage) idle(now time.Time) time.Duration {
	if !u.free() {
		return 0
	}
	return now.Sub(u.opened) - time.Duration(u.lastUsed.Load())
}
