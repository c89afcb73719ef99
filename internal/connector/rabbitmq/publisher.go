package rabbitmq

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"sync"
	"sync/atomic"

	amqp "github.com/rabbitmq/amqp091-go"
	"golang.org/x/sync/semaphore"

	"github.com/aviaryhq/aviary/internal/connector/pipeline"
	"github.com/aviaryhq/aviary/internal/ring"
)

// errAmbiguous ends a channel when it is not known to which message a basic.return, or the broker's
// reason for closing the channel, belongs.
var errAmbiguous = errors.New("it is not known which message could not be routed")

// publisher has one channel in confirm mode open at a time. Send publishes on it. One goroutine
// (run) waits for the confirms in the order of publishing.
//
// RabbitMQ returns a message that no queue takes with basic.return, and then confirms it like any
// other. The library puts the return into returns before it resolves the confirm.
//
// A return has no delivery tag. It belongs to the first unconfirmed message that equals it. Of two
// equal messages this may be the wrong one, which does no harm: one copy is in the queue, one is
// refused. A return that equals no message was changed by a plugin of the broker. It belongs to the
// only unconfirmed message with its routing key. If several have that key, all unconfirmed messages
// are sent again, one at a time.
type publisher struct {
	*Sink
	part string // of health

	current chan *amqp.Channel // holds the channel while it is open and nobody publishes
	slots   *window            // of the unconfirmed messages
	// epoch changes after the unconfirmed messages of a channel have failed. A Send that began
	// before must not publish on the next channel: its message would overtake those that failed.
	epoch atomic.Uint64
	// exclusiveLeft is how many messages are still to be published one at a time.
	exclusiveLeft atomic.Int64

	mu          sync.Mutex                // held while publishing
	unconfirmed ring.Ring[pendingMessage] // in the order of publishing
	published   chan struct{}             // holds a token after a message was added to unconfirmed
}

// pendingMessage is a message until the broker confirms it.
type pendingMessage struct {
	key     string
	pub     amqp.Publishing
	size    int64
	slots   int64 // 1, or all of them when it is published alone
	confirm *amqp.DeferredConfirmation
	refusal error // set once the broker has returned it
	done    func(error)
}

func newPublisher(s *Sink, i int) *publisher {
	return &publisher{
		Sink: s, part: "channel " + strconv.Itoa(i), current: make(chan *amqp.Channel, 1),
		slots: newWindow(int64(s.cfg.Window)), published: make(chan struct{}, 1),
	}
}

// publish publishes m on the current channel, or waits for the next one. After an error m was not
// published, and the caller calls its done.
func (p *publisher) publish(ctx context.Context, m pendingMessage) (err error) {
	epoch := p.epoch.Load()
	m.slots = 1
	if p.exclusiveLeft.Load() > 0 {
		m.slots = p.slots.size
	}
	if err = p.inFlight.acquire(ctx, m.size); err != nil {
		return err
	}
	if err = p.slots.acquire(ctx, m.slots); err != nil {
		p.inFlight.release(m.size)
		return err
	}
	defer func() {
		if err != nil {
			p.release(&m)
		}
	}()
	token, err := receive(ctx, p.Sink, p.noAlarm)
	if err != nil {
		return err
	}
	p.noAlarm <- token
	ch, err := receive(ctx, p.Sink, p.current)
	if err != nil {
		return err
	}
	defer func() { p.current <- ch }()
	if p.epoch.Load() != epoch || ch.IsClosed() {
		return errLost
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	m.confirm, err = ch.PublishWithDeferredConfirm(p.cfg.Exchange, m.key, p.cfg.Mandatory, false, m.pub)
	if err != nil {
		return plainError(err)
	}
	p.unconfirmed.Push(m)
	select {
	case p.published <- struct{}{}:
	default:
	}
	return nil
}

func (p *publisher) release(m *pendingMessage) {
	p.inFlight.release(m.size)
	p.slots.release(m.slots)
}

// receive receives from c until ctx or the sink ends.
func receive[T any](ctx context.Context, s *Sink, c <-chan T) (v T, err error) {
	select {
	case v = <-c:
		return v, nil
	case <-ctx.Done():
		return v, ctx.Err()
	case <-s.running.Done():
		return v, errStopped
	}
}

// run publishes on one channel after another until ctx or the connection ends. It completes every
// message that was published on them.
func (p *publisher) run(ctx context.Context, conn *brokerConnection) {
	p.repeat(ctx, conn, p.part, func() error {
		ch, err := p.openChannel(conn)
		if err != nil {
			return err
		}
		closed := ch.NotifyClose(make(chan *amqp.Error, 1))
		// The broker may return each unconfirmed message once, so the library never blocks here.
		returns := ch.NotifyReturn(make(chan amqp.Return, p.cfg.Window))
		p.health.Set(p.part, nil)
		p.current <- ch
		reason, err := p.awaitConfirms(ch, closed, returns)
		<-p.current // nothing is published any more
		_ = ch.Close()
		return p.finish(reason, err, returns)
	})
}

func (p *publisher) openChannel(conn *brokerConnection) (ch *amqp.Channel, err error) {
	err = conn.withTimeout(func() (err error) {
		if p.cfg.Exchange != "" {
			if err = findExchange(conn.Connection, p.cfg.Exchange); err != nil {
				return fmt.Errorf("exchange %q: %w", p.cfg.Exchange, err)
			}
		}
		if ch, err = conn.Channel(); err == nil {
			err = ch.Confirm(false)
		}
		if err != nil {
			return fmt.Errorf("cannot open a channel: %w", plainError(err))
		}
		return nil
	})
	return ch, err
}

// awaitConfirms completes messages until the channel ends. It returns the reason of the broker, or
// errAmbiguous.
func (p *publisher) awaitConfirms(
	ch *amqp.Channel, closed <-chan *amqp.Error, returns <-chan amqp.Return,
) (reason *amqp.Error, err error) {
	for {
		var confirm *amqp.DeferredConfirmation
		p.mu.Lock()
		if p.unconfirmed.Len() > 0 {
			confirm = p.unconfirmed.Head().confirm
		}
		p.mu.Unlock()
		if confirm == nil {
			select {
			case <-p.published:
				continue
			case reason = <-closed:
				return reason, nil
			}
		}
		select {
		case <-confirm.Done():
		case reason = <-closed:
			return reason, nil
		}
		if !confirm.Acked() && ch.IsClosed() {
			return <-closed, nil
		}
		if err = p.completeFirst(returns); err != nil {
			return nil, err
		}
	}
}

// completeFirst completes the first unconfirmed message according to its confirm. The error is
// errAmbiguous: the message is not completed.
func (p *publisher) completeFirst(returns <-chan amqp.Return) error {
	for len(returns) > 0 {
		if err := p.assignReturn(<-returns); err != nil {
			return err
		}
	}
	p.complete(func(m *pendingMessage) error {
		if m.slots > 1 {
			p.exclusiveLeft.Add(-1)
		}
		if !m.confirm.Acked() {
			return fmt.Errorf("RabbitMQ could not store the message for %q (nack)", m.key)
		}
		return m.refusal
	})
	return nil
}

// complete takes the first message out of unconfirmed and completes it with its outcome.
func (p *publisher) complete(outcome func(*pendingMessage) error) {
	p.mu.Lock()
	m := p.unconfirmed.Pop()
	p.mu.Unlock()
	p.release(&m)
	m.done(outcome(&m))
}

// assignReturn refuses the unconfirmed message that r belongs to, or returns errAmbiguous.
func (p *publisher) assignReturn(r amqp.Return) error {
	p.mu.Lock() // what the broker has seen is in unconfirmed then
	defer p.mu.Unlock()
	var found *pendingMessage
	sameKey := 0
	for i := range p.unconfirmed.Len() {
		m := p.unconfirmed.At(i)
		if m.refusal != nil || m.key != r.RoutingKey {
			continue
		}
		found = m
		if sameKey++; matchesReturn(&m.pub, &r) {
			sameKey = 1
			break
		}
	}
	if sameKey > 1 {
		return errAmbiguous
	}
	if found != nil {
		p.metrics.unroutable.Inc()
		found.refusal = pipeline.Refuse(refusedUnroutable,
			fmt.Errorf("no queue takes a message with the routing key %q at exchange %q: %s", found.key, p.cfg.Exchange, r.ReplyText))
	}
	return nil
}

// finish completes the messages of a channel that was closed with reason, or by us because of err.
// It returns why the channel ended. When the broker has closed it because of a message, and only one
// was unconfirmed, that message is refused. Several will be published again one at a time.
func (p *publisher) finish(reason *amqp.Error, err error, returns <-chan amqp.Return) error {
	for p.unconfirmed.Len() > 0 && p.unconfirmed.Head().confirm.Acked() && err == nil {
		err = p.completeFirst(returns)
	}
	left := p.unconfirmed.Len()
	switch {
	case err == nil && (reason == nil || reason.Code != amqp.PreconditionFailed):
		err = fmt.Errorf("RabbitMQ closed the channel: %w", plainError(reason))
	case err == nil && left == 1:
		err = errAmbiguous
		p.exclusiveLeft.Add(-1)
		p.complete(func(*pendingMessage) error {
			return pipeline.Refuse(refusedByBroker, fmt.Errorf("RabbitMQ refuses the message: %w", plainError(reason)))
		})
	default:
		err = errAmbiguous
		p.exclusiveLeft.Store(int64(left))
	}
	// Confirmed messages behind an unconfirmed one fail, too: the pipeline would send them again
	// anyway, to keep the order.
	for p.unconfirmed.Len() > 0 {
		p.complete(func(*pendingMessage) error { return errLost })
	}
	p.epoch.Add(1)
	return err
}

// matchesReturn reports whether r has the same properties and body as p.
func matchesReturn(p *amqp.Publishing, r *amqp.Return) bool {
	return r.MessageId == p.MessageId && r.CorrelationId == p.CorrelationId && bytes.Equal(r.Body, p.Body) &&
		r.ContentType == p.ContentType && r.ContentEncoding == p.ContentEncoding && r.DeliveryMode == p.DeliveryMode &&
		r.Priority == p.Priority && r.ReplyTo == p.ReplyTo && r.Expiration == p.Expiration && r.Type == p.Type &&
		r.UserId == p.UserId && r.AppId == p.AppId && r.Timestamp.Unix() == p.Timestamp.Unix() &&
		reflect.DeepEqual(r.Headers, p.Headers)
}

// window bounds how much is in use. Who needs more than the bound takes all of it.
type window struct {
	size int64
	free *semaphore.Weighted
}

func newWindow(size int64) *window { return &window{size: size, free: semaphore.NewWeighted(size)} }

// acquire waits for n, behind those who wait already, until ctx ends.
func (w *window) acquire(ctx context.Context, n int64) error {
	return w.free.Acquire(ctx, min(n, w.size))
}

func (w *window) release(n int64) { w.free.Release(min(n, w.size)) }

// waitEmpty waits until nothing is in use, at most until ctx ends.
func (w *window) waitEmpty(ctx context.Context) {
	if w.acquire(ctx, w.size) == nil {
		w.release(w.size)
	}
}
