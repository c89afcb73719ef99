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

	"github.com/aviaryhq/aviary/internal/connector/lane"
	"github.com/aviaryhq/aviary/internal/connector/message"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Sink publishes what lanes send it. A message's way: the publisher of its destination,
// opened when first needed -> mapped -> published -> the broker's receipt -> done.
//
// Publishers send again by themselves, in order, what a broken connection or a lost
// producer left unacknowledged. So an outage fails nothing here: messages wait, and
// with the publisher's bounds reached Send does.
type Sink struct {
	cfg   SinkConfig
	o     Options
	ready chan struct{} // closed once Run has a client
	over  chan struct{} // closed once Run takes nothing more
	begun sync.Once

	client *messaging.Client
	life   context.Context // of what is open: ends with over
	sends  pool
	exacts exactPool

	closers sync.WaitGroup // of what is closed while Run goes on

	mu     sync.RWMutex
	open   map[string]*destination
	exact  map[exactKey]*writer
	closed bool
	room   chan struct{} // closed, and made anew, when something of open is closed
}

// PlaceName names the topic to in the hops of messages.
func (s *Sink) PlaceName(to string) string { return message.PlaceName(system, s.cfg.Cluster, to) }

// destination is one open topic.
type destination struct {
	topic string
	sink  *Sink
	users users

	opened chan struct{} // closed once pub or refused is set
	pub    *messaging.Publisher
	refuse error
	cancel context.CancelFunc

	mu      sync.Mutex
	trouble error // why it is not open yet
}

// NewSink prepares a sink. Nothing is connected to before Run.
func NewSink(cfg SinkConfig, o Options) (*Sink, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	o = o.withDefaults()
	o.Log = o.Log.Named("pulsar")
	if o.MaxPending > 0 {
		cfg.Profile.MaxPendingRecords = min(cfg.Profile.MaxPendingRecords, o.MaxPending)
	}
	cfg.Profile.Routing = messaging.RouteKeyHash
	if cfg.Partition == partitionSource {
		cfg.Profile.Routing = messaging.RouteExplicit
	}
	return &Sink{
		cfg: cfg, o: o,
		ready: make(chan struct{}), over: make(chan struct{}), room: make(chan struct{}),
		open: make(map[string]*destination), exact: make(map[exactKey]*writer),
	}, nil
}

// ErrStopped is the outcome of messages that come after the sink's end.
var ErrStopped = errors.New("the pulsar sink has stopped")

// Run lets the sink publish until ctx ends, then waits CloseTimeout for what is under
// way. When it returns every message has had its outcome. It may be called once.
func (s *Sink) Run(ctx context.Context) error {
	err := errors.New("the sink has run already")
	s.begun.Do(func() { err = s.run(ctx) })
	return err
}

func (s *Sink) run(ctx context.Context) error {
	client, err := messaging.Dial(context.WithoutCancel(ctx), s.cfg.Config, messaging.WithLogger(s.o.Log), messaging.WithRegisterer(s.o.Registerer))
	if err != nil {
		close(s.over)
		return err
	}
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	s.client, s.life = client, life
	close(s.ready)

	tick := time.NewTicker(reportEvery)
	defer tick.Stop()
	trouble := reporter{report: s.o.Report}
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case now := <-tick.C:
			s.closeIdle(now)
			trouble.note(s.trouble())
		}
	}
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	close(s.over)
	closing, done := context.WithTimeout(s.o.Patience, s.cfg.CloseTimeout)
	defer done()
	s.closeAll(closing, cancel)
	if err := client.Close(closing); err != nil {
		s.o.Log.Warn("cannot close the client", zap.Error(err))
	}
	return nil
}

// closeAll ends everything that is open: first what is under way is waited for.
func (s *Sink) closeAll(ctx context.Context, end context.CancelFunc) {
	s.mu.RLock()
	open, exact := slices.Collect(maps.Values(s.open)), slices.Collect(maps.Values(s.exact))
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

// Send publishes m to the topic to. See [lane.Sink].
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
	p := s.sends.get()
	p.sink, p.users, p.done = s, &d.users, done
	p.fill(m)
	d.pub.PublishAsync(ctx, &p.record, p.receipt)
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
	case <-s.over:
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
		d, closed := s.open[topic], s.closed
		if d != nil {
			d.users.enter()
		}
		s.mu.RUnlock()
		if closed {
			if d != nil {
				d.users.leave()
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
				d.users.leave()
				return nil, ctx.Err()
			case <-s.over:
				d.users.leave()
				return nil, ErrStopped
			}
		}
		if d.refuse != nil {
			d.users.leave()
			return nil, d.refuse
		}
		return d, nil
	}
}

// openTopic begins to open topic, when there is room for one more.
func (s *Sink) openTopic(ctx context.Context, topic string) error {
	if !messaging.ValidTopic(topic) {
		return lane.Refuse("bad_topic", fmt.Errorf("%q cannot be a topic of Pulsar", topic))
	}
	s.mu.Lock()
	if s.open[topic] != nil || s.closed {
		s.mu.Unlock()
		return nil
	}
	if len(s.open) >= s.cfg.MaxTopics {
		idle := s.longestIdle()
		if idle == nil {
			room := s.room
			s.mu.Unlock()
			select {
			case <-room:
				return nil
			case <-time.After(reportEvery): // another may be idle now
				return nil
			case <-ctx.Done():
				return ctx.Err()
			case <-s.over:
				return ErrStopped
			}
		}
		s.forget(idle)
	}
	opening, cancel := context.WithCancel(s.life)
	d := &destination{topic: topic, sink: s, opened: make(chan struct{}), cancel: cancel}
	d.users.used(time.Now())
	s.open[topic] = d
	s.mu.Unlock()
	go d.begin(opening)
	return nil
}

// begin opens the publisher, trying until ctx ends.
func (d *destination) begin(ctx context.Context) {
	defer close(d.opened)
	d.refuse = ErrStopped
	for ctx.Err() == nil {
		attempt, cancel := context.WithTimeout(ctx, openTimeout)
		pub, err := d.sink.client.Publisher(attempt, d.topic, d.sink.cfg.Profile)
		if err == nil {
			cancel()
			d.pub, d.refuse = pub, nil
			d.setTrouble(nil)
			return
		}
		if errors.Is(err, messaging.ErrTopicTerminated) {
			cancel()
			d.refuse = lane.Refuse("terminated", err)
			return
		}
		d.setTrouble(err)
		<-attempt.Done() // what fails at once is tried again no sooner than what takes its time
		cancel()
	}
}

// openTimeout is how long the opening of a topic takes before its failure is reported. It goes on after that.
const openTimeout = 5 * time.Second

func (d *destination) setTrouble(err error) {
	d.mu.Lock()
	d.trouble = err
	d.mu.Unlock()
}

func (d *destination) problem() error {
	select {
	case <-d.opened:
		if d.pub != nil {
			return d.pub.Trouble()
		}
		return nil
	default:
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.trouble
	}
}

// close waits until ctx ends for what is under way, then gives the rest its outcome.
func (d *destination) close(ctx context.Context) {
	d.cancel()
	<-d.opened
	if d.pub == nil {
		return
	}
	if err := d.pub.Close(ctx); err != nil {
		d.sink.o.Log.Warn("cannot close a publisher cleanly", zap.String("topic", d.topic), zap.Error(err))
	}
}

// closeIdle closes what nobody has used for IdleTimeout.
func (s *Sink) closeIdle(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.open {
		if d.users.idle(now) >= s.cfg.IdleTimeout {
			s.forget(d)
		}
	}
	for _, w := range s.exact {
		if w.users.idle(now) >= min(s.cfg.IdleTimeout, exactIdle) {
			s.release(w)
		}
	}
}

// longestIdle is the open topic without users that has been so longest. s.mu is held.
func (s *Sink) longestIdle() *destination {
	var found *destination
	var most time.Duration
	now := time.Now()
	for _, d := range s.open {
		if idle := d.users.idle(now); idle > most {
			found, most = d, idle
		}
	}
	return found
}

// forget closes a topic without users. s.mu is held: nobody can become one.
func (s *Sink) forget(d *destination) {
	delete(s.open, d.topic)
	close(s.room)
	s.room = make(chan struct{})
	s.closers.Go(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(s.life), s.cfg.CloseTimeout)
		defer cancel()
		d.close(ctx)
	})
}

// trouble is the first that there is.
func (s *Sink) trouble() error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, d := range s.open {
		if err := d.problem(); err != nil {
			return err
		}
	}
	for _, w := range s.exact {
		if err := w.problem(); err != nil {
			return err
		}
	}
	return nil
}

// outcome says what an error of the library means to a lane.
func outcome(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, messaging.ErrTooLarge):
		return lane.Refuse("too_large", err)
	case errors.Is(err, messaging.ErrBadPartition):
		return lane.Refuse("no_partition", err)
	case errors.Is(err, messaging.ErrTopicTerminated):
		return lane.Refuse("terminated", err)
	default:
		return err
	}
}
