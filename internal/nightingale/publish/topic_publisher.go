package publish

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/httpserver/refusal"
	"github.com/aviaryhq/aviary/internal/httpserver/suspension"
	"github.com/aviaryhq/aviary/internal/truncate"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Meanings of an answer 204.
const (
	AckBroker = "broker" // the broker has acknowledged every message
	AckQueued = "queued" // every message is in the publisher's queue, in memory
)

// Publisher has the methods of *messaging.Publisher that a topicPublisher needs.
type Publisher interface {
	PublishAsync(ctx context.Context, r *messaging.Record, done func(messaging.MessageID, error))
	Flush(ctx context.Context) error
	Close(ctx context.Context) error
	Partitions() int
}

// topicPublisher publishes to one topic. It opens its publisher in the background, so that the
// service can start while Pulsar is unreachable. The service is then not ready.
type topicPublisher struct {
	log       *zap.Logger
	name      string
	publisher Publisher              // valid once opened is closed
	suspended *suspension.Suspension // also until the topic is open
	terminate context.CancelCauseFunc
	late      time.Duration // after which without an acknowledgement the topic refuses requests
	// dropped is called for each message that was answered 204 and could not be stored afterwards.
	// It is not nil under ack: queued.
	dropped func(error)

	pinned    bool      // the configuration names the topic in full: it stays open
	tenant    string    // that has opened it
	openUntil time.Time // until when requests wait for the opening

	opened chan struct{} // closed when the topic is open
	ended  chan struct{} // closed when run has returned
	closed chan struct{} // closed when the publisher is closed
	err    error         // why the topic takes no records; valid once ended is closed
	stop   context.CancelFunc

	// Guarded by Topics.mu.
	users    int
	lastUsed time.Time
}

var errNotOpen = errors.New("the topic is not open yet")

func newTopicPublisher(log *zap.Logger, name string, why func() error, late time.Duration) *topicPublisher {
	p := &topicPublisher{
		log: log, name: name, suspended: suspension.New(why), late: late,
		opened: make(chan struct{}), ended: make(chan struct{}), closed: make(chan struct{}),
	}
	p.suspended.Begin(errNotOpen)
	return p
}

// run opens the publisher and monitors it until ctx ends. It fails if the topic can never be
// opened, or was terminated.
func (p *topicPublisher) run(ctx context.Context, open func(context.Context) (Publisher, error)) (err error) {
	if p.publisher, err = open(ctx); err != nil {
		return err // the error of ctx, unless the topic can never be opened
	}
	ctx, p.terminate = context.WithCancelCause(ctx)
	defer p.terminate(nil)
	p.suspended.End()
	close(p.opened)
	p.log.Info("topic is open", zap.String("topic", p.name))
	err = p.suspended.Run(ctx, p.log, p.publisher.Flush) // the error of Flush; nil if ctx has ended outside of it
	if cause := context.Cause(ctx); errors.Is(cause, messaging.ErrTopicTerminated) {
		return cause
	}
	return err
}

// await waits until the topic is open, but no longer than openUntil. All requests share this
// deadline, so a topic that does not open delays each of them by a bounded time.
func (p *topicPublisher) await(ctx context.Context) error {
	if isClosed(p.opened) {
		return nil
	}
	timer := time.NewTimer(time.Until(p.openUntil))
	defer timer.Stop()
	select {
	case <-p.opened:
		return nil
	case <-p.ended:
	case <-timer.C:
	case <-ctx.Done():
	}
	err := p.suspended.Err()
	return refusal.Unavailable("topic_unavailable", refusal.RetryUnavailable, "Pulsar is unavailable: %s: %v", p.name, err)
}

// refused returns why the topic takes no records: it cannot be opened, or was terminated. It
// returns nil if the topic may take records.
func (p *topicPublisher) refused() error {
	if isClosed(p.ended) {
		return p.err
	}
	return nil
}

// close flushes and closes the publisher.
func (p *topicPublisher) close(ctx context.Context) error {
	if isClosed(p.opened) {
		return p.publisher.Close(ctx)
	}
	return nil
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// TooLarge is the error of publishing records if the broker does not accept those with these
// indexes, because they are too large, and has acknowledged the others.
type TooLarge []int

// Error says how many records are too large.
func (t TooLarge) Error() string {
	return strconv.Itoa(len(t)) + " messages are larger than the broker accepts"
}

// publish returns nil when the broker has acknowledged every record, or under ack: queued when all
// are queued. free says that nothing reads the records and their payloads any more. The error is
// TooLarge, or one for the sender, who must repeat the records.
func (p *topicPublisher) publish(ctx context.Context, records []messaging.Record) (free bool, err error) {
	if err := p.suspended.Refusal(); err != nil {
		return true, err
	}
	return p.send(ctx, records)
}

// send is publish for a topic that may refuse requests.
func (p *topicPublisher) send(ctx context.Context, records []messaging.Record) (free bool, err error) {
	if len(records) == 0 {
		return true, nil
	}
	defer time.AfterFunc(p.late, p.suspended.NoteLate).Stop()
	o := &outcome{topic: p, records: records, done: make(chan struct{})}
	o.left.Store(int64(len(records)))
	completed := o.completed // one function value for all records
	for i := range records {
		// After the first record that was not accepted, none may follow: the sender will repeat all
		// of them, and a later sample of a series would overtake an earlier one.
		if err := ctx.Err(); err != nil {
			o.fail(err)
		}
		if o.failed.Load() {
			o.count(len(records) - i)
			break
		}
		p.publisher.PublishAsync(ctx, &records[i], completed)
	}
	if p.dropped != nil && ctx.Err() == nil && o.detach() {
		return false, nil
	}
	select {
	case <-o.done:
		return !o.inUse.Load(), p.answer(ctx, o.result())
	case <-ctx.Done():
		return false, p.answer(ctx, ctx.Err())
	}
}

// answer returns the error for the sender.
func (p *topicPublisher) answer(ctx context.Context, err error) error {
	switch {
	case err == nil, errors.As(err, new(TooLarge)):
		return err
	case errors.Is(err, messaging.ErrQueueFull):
		return refusal.Unavailable("queue_full", refusal.RetryBusy, "the publish queue is full")
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		p.suspended.NoteLate()
		return refusal.Unavailable("timeout", refusal.RetryUnavailable, "Pulsar did not acknowledge in time")
	case ctx.Err() != nil:
		return refusal.ErrDisconnected
	default:
		text := truncate.Text(err.Error(), refusal.MaxReason)
		return refusal.Unavailable("publish", refusal.RetryUnavailable, "cannot publish: %s", text)
	}
}

// outcome collects the results of one call of send.
type outcome struct {
	topic   *topicPublisher
	records []messaging.Record
	left    atomic.Int64
	done    chan struct{} // closed when no record is left
	failed  atomic.Bool   // publish no further records
	inUse   atomic.Bool   // a payload may still be read, see messaging.MessageID.SentAgain

	mu       sync.Mutex
	err      error // the first one, except for records that are too large
	tooLarge TooLarge
	detached bool // send does not wait any more
}

// completed takes the result of a record.
func (o *outcome) completed(id messaging.MessageID, err error) {
	if err != nil || id.SentAgain() {
		o.inUse.Store(true)
	}
	if err != nil {
		o.fail(err)
	}
	o.count(1)
}

// count counts n records as completed.
func (o *outcome) count(n int) {
	if o.left.Add(-int64(n)) == 0 {
		close(o.done)
	}
}

// fail notes the error of a record. A terminated topic stores no further records, so its
// topicPublisher ends.
func (o *outcome) fail(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.detached {
		o.topic.dropped(err)
	}
	if large := (*messaging.TooLargeError)(nil); errors.As(err, &large) {
		// The library gives no index. Payloads are parts of one arena and not empty.
		i := slices.IndexFunc(o.records, func(r messaging.Record) bool { return &r.Payload[0] == &large.Payload[0] })
		if i >= 0 {
			o.tooLarge = append(o.tooLarge, i)
			return
		}
	}
	o.failed.Store(true)
	if o.err == nil {
		o.err = err
	}
	if errors.Is(err, messaging.ErrTopicTerminated) {
		o.topic.suspended.Begin(err)
		o.topic.terminate(err)
	}
}

// detach makes send not wait for the outcome: further failures are dropped messages. If a record
// has already failed, it returns false and changes nothing, because the sender can still get the
// error.
func (o *outcome) detach() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.detached = o.err == nil && len(o.tooLarge) == 0
	return o.detached
}

// result returns the error of publishing the records. An error of other records takes precedence
// over TooLarge: the sender must repeat them.
func (o *outcome) result() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil || len(o.tooLarge) == 0 {
		return o.err
	}
	return o.tooLarge
}
