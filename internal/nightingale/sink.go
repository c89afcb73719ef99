package nightingale

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/pkg/messaging"

	"github.com/aviaryhq/aviary/internal/door"
)

// publisher is what the sink needs of *messaging.Publisher.
type publisher interface {
	PublishAsync(ctx context.Context, r *messaging.Record, done func(messaging.MessageID, error))
	Flush(ctx context.Context) error
	Close(ctx context.Context) error
}

// sink publishes to the topic. The publisher opens in the background, so that the
// service starts, and says that it is not ready, while Pulsar is away.
//
// When a request was not acknowledged in time, the sink is away: requests are
// refused at once, instead of each filling the queue with what its sender will
// send again. What the publisher still holds tells when that is over: the sink is
// back when all of it has been acknowledged.
type sink struct {
	log     *zap.Logger
	topic   string
	open    func(ctx context.Context) (publisher, error)
	opened  atomic.Pointer[publisher]
	trouble atomic.Pointer[error] // why the sink is away
	why     func() error          // why Pulsar cannot be connected to; may be nil
	late    chan struct{}         // a request ran out of time
	ack     acknowledging
	ready   chan struct{} // closed when the topic is open
	lost    chan error    // the publisher stores nothing any more
}

var errNotOpen = errors.New("the topic is not open yet")

func newSink(log *zap.Logger, topic string, why func() error, open func(context.Context) (publisher, error)) *sink {
	s := &sink{log: log.Named("sink"), topic: topic, why: why, open: open, late: make(chan struct{}, 1), ready: make(chan struct{}), lost: make(chan error, 1)}
	s.trouble.Store(&errNotOpen)
	return s
}

// run opens the publisher and watches over it until ctx ends. It fails when the topic
// can never be opened, and when the publisher stores nothing any more.
func (s *sink) run(ctx context.Context) error {
	p, err := s.open(ctx)
	if err != nil {
		return err // ctx's own, unless the topic can never be opened
	}
	s.opened.Store(&p)
	s.trouble.Store(nil)
	close(s.ready)
	s.log.Info("topic is open", zap.String("topic", s.topic))
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-s.lost:
			return err
		case <-s.late:
		}
		if s.trouble.Load() == nil {
			continue
		}
		began := time.Now()
		s.log.Warn("refusing requests until the broker acknowledges what is queued", zap.Error(s.away()))
		if err := p.Flush(ctx); err != nil {
			return err // ctx's own
		}
		s.trouble.Store(nil)
		s.log.Info("taking requests again", zap.Duration("after", time.Since(began)))
	}
}

// away returns why requests are refused now, or nil.
func (s *sink) away() error {
	trouble := s.trouble.Load()
	if trouble == nil {
		return nil
	}
	return door.Because(*trouble, s.why)
}

// check is the readiness check.
func (s *sink) check(context.Context) error { return s.away() }

// close flushes and closes the publisher.
func (s *sink) close(ctx context.Context) error {
	if p := s.opened.Load(); p != nil {
		return (*p).Close(ctx)
	}
	return nil
}

// publish returns nil when the broker has acknowledged every record. free tells
// whether nothing reads the records and their payloads any more.
func (s *sink) publish(ctx context.Context, records []messaging.Record) (free bool, err error) {
	if err := s.away(); err != nil {
		return true, door.Unavailable("pulsar_away", door.RetryAway, "Pulsar is away: %s", door.Cut(err.Error(), door.MaxReason))
	}
	if len(records) == 0 {
		return true, nil
	}
	defer s.ack.watch(s.noteLate)()
	p := *s.opened.Load()
	o := newOutcome(len(records), s.noteLost)
	done := o.done // one function value for all records
	for i := range records {
		// Past the first record that was not accepted none may follow: the sender
		// will send all of them again, and a later sample of a series would have
		// overtaken an earlier one.
		if ctx.Err() != nil || o.stop.Load() {
			o.skip(len(records) - i)
			break
		}
		p.PublishAsync(ctx, &records[i], done)
	}
	if s.ack.queued != nil && ctx.Err() == nil && o.leave(s.ack.queued) {
		return false, nil
	}
	select {
	case <-o.settled:
		return !o.kept.Load(), s.verdict(ctx, o.first())
	case <-ctx.Done():
		return false, s.verdict(ctx, ctx.Err())
	}
}

// verdict says what an outcome means for the sender.
func (s *sink) verdict(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, messaging.ErrTooLarge):
		return door.Invalid(reasonRecordTooLarge, "a sample's message is larger than the broker accepts, the others were written")
	case errors.Is(err, messaging.ErrQueueFull):
		return door.Unavailable("queue_full", door.RetryBusy, "the publish queue is full")
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		s.noteLate()
		return door.Unavailable("timeout", door.RetryAway, "Pulsar did not acknowledge in time")
	case ctx.Err() != nil:
		return door.ErrDisconnected
	default:
		return door.Unavailable("publish", door.RetryAway, "cannot publish: %s", door.Cut(err.Error(), door.MaxReason))
	}
}

// noteLost ends the sink when the outcome of a record says that no further record will
// ever be stored: the topic was terminated while it was open, or taken by another owner.
func (s *sink) noteLost(err error) {
	if !errors.Is(err, messaging.ErrTopicTerminated) && !errors.Is(err, messaging.ErrProducerLost) {
		return
	}
	s.trouble.Store(&err)
	select {
	case s.lost <- err:
	default:
	}
}

func (s *sink) noteLate() {
	err := fmt.Errorf("no acknowledgement of a request in time, since %s", time.Now().UTC().Format(time.RFC3339))
	if s.trouble.CompareAndSwap(nil, &err) {
		select {
		case s.late <- struct{}{}:
		default:
		}
	}
}

// outcome gathers the outcomes of one request's records.
type outcome struct {
	left    atomic.Int64
	stop    atomic.Bool // a record was refused: publish no more
	kept    atomic.Bool // a payload may still be read, see messaging.MessageID.SentAgain
	settled chan struct{}
	lost    func(error) // told of each error that is not final for its record alone

	mu    sync.Mutex
	err   error
	drops *dropCounter // once nobody waits for the outcome
}

func newOutcome(n int, lost func(error)) *outcome {
	o := &outcome{settled: make(chan struct{}), lost: lost}
	o.left.Store(int64(n))
	return o
}

func (o *outcome) done(id messaging.MessageID, err error) {
	if err != nil || id.SentAgain() {
		o.kept.Store(true)
	}
	if err != nil {
		o.fail(err)
	}
	if o.left.Add(-1) == 0 {
		close(o.settled)
	}
}

// fail keeps an error. One that passes outweighs a final one: the sender must come
// again for the records that it concerns.
func (o *outcome) fail(err error) {
	final := errors.Is(err, messaging.ErrTooLarge)
	if !final {
		o.stop.Store(true)
		o.lost(err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.drops != nil {
		o.drops.note(err)
	}
	if o.err == nil || !final && errors.Is(o.err, messaging.ErrTooLarge) {
		o.err = err
	}
}

// skip settles n records that were not published.
func (o *outcome) skip(n int) {
	if o.left.Add(-int64(n)) == 0 {
		close(o.settled)
	}
}

func (o *outcome) first() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}
