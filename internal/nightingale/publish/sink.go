package publish

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/httpserver/refusal"
	"github.com/aviaryhq/aviary/internal/httpserver/suspension"
	"github.com/aviaryhq/aviary/internal/truncate"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Publisher has the methods of *messaging.Publisher that the sink needs.
type Publisher interface {
	PublishAsync(ctx context.Context, r *messaging.Record, done func(messaging.MessageID, error))
	Flush(ctx context.Context) error
	Close(ctx context.Context) error
}

// sink publishes to one topic. It opens the publisher in the background, so that the service can
// start while Pulsar is unreachable. The service is then not ready.
type sink struct {
	log       *zap.Logger
	topic     string
	open      func(ctx context.Context) (Publisher, error)
	opened    atomic.Pointer[Publisher]
	suspended *suspension.Suspension // also until the topic is open
	ack       ackMode
	ready     chan struct{} // closed when the topic is open
	lost      chan error    // gets an error after which the publisher stores nothing any more
}

var errNotOpen = errors.New("the topic is not open yet")

func newSink(log *zap.Logger, topic string, why func() error, open func(context.Context) (Publisher, error)) *sink {
	s := &sink{log: log.Named("sink"), topic: topic, open: open, suspended: suspension.New(why), ready: make(chan struct{}), lost: make(chan error, 1)}
	s.suspended.Begin(errNotOpen)
	return s
}

// run opens the publisher and monitors it until ctx ends. It fails if the topic can never be
// opened, or if the publisher stores nothing any more.
func (s *sink) run(ctx context.Context) error {
	p, err := s.open(ctx)
	if err != nil {
		return err // the error of ctx, unless the topic can never be opened
	}
	s.opened.Store(&p)
	s.suspended.End()
	close(s.ready)
	s.log.Info("topic is open", zap.String("topic", s.topic))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var flushed error
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		flushed = s.suspended.Run(ctx, s.log, p.Flush)
	}()
	select {
	case <-ended:
		return flushed // the error of Flush; nil if ctx has ended outside of it
	case err := <-s.lost:
		cancel()
		<-ended
		return err
	}
}

// unavailable returns why the sink refuses requests now, or nil.
func (s *sink) unavailable() error { return s.suspended.Err() }

// check is the readiness check.
func (s *sink) check(context.Context) error { return s.unavailable() }

// close flushes and closes the publisher.
func (s *sink) close(ctx context.Context) error {
	if p := s.opened.Load(); p != nil {
		return (*p).Close(ctx)
	}
	return nil
}

// TooLarge is the error of publishing records if the broker does not accept those with these
// indexes, because they are too large, and has acknowledged the others.
type TooLarge []int

// Error says how many records are too large.
func (t TooLarge) Error() string {
	return strconv.Itoa(len(t)) + " messages are larger than the broker accepts"
}

// publish returns nil when the broker has acknowledged every record, or with ack queued when all
// are queued. free says that nothing reads the records and their payloads any more. The error is
// TooLarge, or one for the sender, who must repeat the records.
func (s *sink) publish(ctx context.Context, records []messaging.Record) (free bool, err error) {
	if err := s.suspended.Refusal(); err != nil {
		return true, err
	}
	return s.send(ctx, records)
}

// send is publish for a sink that may be suspended.
func (s *sink) send(ctx context.Context, records []messaging.Record) (free bool, err error) {
	if len(records) == 0 {
		return true, nil
	}
	defer s.ack.watch(s.suspended.NoteLate)()
	p := *s.opened.Load()
	o := newOutcome(len(records), s.noteLost)
	done := o.record // one function value for all records
	for i := range records {
		// After the first record that was not accepted, none may follow: the sender will repeat all
		// of them, and a later sample of a series would overtake an earlier one.
		if ctx.Err() != nil || o.stop.Load() {
			o.skip(len(records) - i)
			break
		}
		p.PublishAsync(ctx, &records[i], done)
	}
	if s.ack.queued != nil && ctx.Err() == nil && o.detach(s.ack.queued) {
		return false, nil
	}
	select {
	case <-o.done:
		return !o.kept.Load(), s.verdict(ctx, o.result(records))
	case <-ctx.Done():
		return false, s.verdict(ctx, ctx.Err())
	}
}

// verdict returns the error for the sender.
func (s *sink) verdict(ctx context.Context, err error) error {
	switch {
	case err == nil, errors.As(err, new(TooLarge)):
		return err
	case errors.Is(err, messaging.ErrQueueFull):
		return refusal.Unavailable("queue_full", refusal.RetryBusy, "the publish queue is full")
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		s.suspended.NoteLate()
		return refusal.Unavailable("timeout", refusal.RetryUnavailable, "Pulsar did not acknowledge in time")
	case ctx.Err() != nil:
		return refusal.ErrDisconnected
	default:
		return refusal.Unavailable("publish", refusal.RetryUnavailable, "cannot publish: %s", truncate.Text(err.Error(), refusal.MaxReason))
	}
}

// noteLost ends the sink if a record's error means that the topic will never store another record:
// it was terminated while it was open.
func (s *sink) noteLost(err error) {
	if !errors.Is(err, messaging.ErrTopicTerminated) {
		return
	}
	s.suspended.Begin(err)
	select {
	case s.lost <- err:
	default:
	}
}

// outcome collects the results of one request's records.
type outcome struct {
	left atomic.Int64
	stop atomic.Bool // a record was refused: publish no further records
	kept atomic.Bool // a payload may still be read, see messaging.MessageID.SentAgain
	done chan struct{}
	lost func(error) // called with each error that may concern further records

	mu       sync.Mutex
	err      error          // the first one, except for records that are too large
	tooLarge map[*byte]bool // first bytes of the payloads of such records
	drops    *dropCounter   // not nil once publish does not wait any more
}

func newOutcome(n int, lost func(error)) *outcome {
	o := &outcome{done: make(chan struct{}), lost: lost}
	o.left.Store(int64(n))
	return o
}

func (o *outcome) record(id messaging.MessageID, err error) {
	if err != nil || id.SentAgain() {
		o.kept.Store(true)
	}
	if err != nil {
		o.fail(err)
	}
	if o.left.Add(-1) == 0 {
		close(o.done)
	}
}

// fail stores an error.
func (o *outcome) fail(err error) {
	var large *messaging.TooLargeError
	if !errors.As(err, &large) {
		o.stop.Store(true)
		o.lost(err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.drops != nil {
		o.drops.note(err)
	}
	if large != nil {
		if o.tooLarge == nil {
			o.tooLarge = make(map[*byte]bool)
		}
		o.tooLarge[firstByte(large.Payload)] = true
	} else if o.err == nil {
		o.err = err
	}
}

// skip completes n records that were not published.
func (o *outcome) skip(n int) {
	if o.left.Add(-int64(n)) == 0 {
		close(o.done)
	}
}

// result returns the error of publishing these records. An error of other records takes precedence
// over TooLarge: the sender must repeat them.
func (o *outcome) result(records []messaging.Record) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil || len(o.tooLarge) == 0 {
		return o.err
	}
	var indexes TooLarge
	for i := range records {
		if o.tooLarge[firstByte(records[i].Payload)] {
			indexes = append(indexes, i)
		}
	}
	return indexes
}

// firstByte tells payloads of one request apart: they are parts of one arena, and not empty.
func firstByte(payload []byte) *byte { return &payload[0] }
