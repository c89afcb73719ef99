package rabbitmq

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/aviaryhq/aviary/internal/connector/pipeline"
	"github.com/aviaryhq/aviary/internal/ring"
)

// errAmbiguous ends a confirmChannel when it is not known to which message a basic.return, or the
// broker's reason for closing the channel, belongs.
var errAmbiguous = errors.New("it is not known which message could not be routed")

// confirmChannel is one channel in confirm mode. Send publishes on it. One goroutine (run) waits
// for the confirms in the order of publishing.
//
// RabbitMQ returns a message that no queue takes with basic.return, and then confirms it like any
// other, so a confirm alone proves nothing. The library puts the return into returns before it
// resolves the confirm. So once a message is confirmed, its return is in returns or does not exist.
//
// A return has no delivery tag, only the content. It belongs to the first unconfirmed message of
// the same content, routing key and properties. Of two equal messages, one routed and one not, this
// may be the wrong one. That does no harm: one copy is in the queue, one is refused.
//
// A return that equals no unconfirmed message was changed by a plugin of the broker. It belongs to
// the only unconfirmed message with its routing key. If several have that key, all unconfirmed
// messages are sent again, one at a time.
type confirmChannel struct {
	*publisher
	ch          *amqp.Channel
	closeReason chan *amqp.Error
	returns     chan amqp.Return
	published   chan struct{} // holds a token after a message was added to unconfirmed

	mu          sync.Mutex                // held while publishing
	unconfirmed ring.Ring[pendingMessage] // in the order of publishing
}

// pendingMessage is a message until the broker confirms it.
type pendingMessage struct {
	key     string
	pub     amqp.Publishing
	size    int64
	slots   int64 // of the window: 1, or all of them when it is published alone
	confirm *amqp.DeferredConfirmation
	refusal error // set once the broker has returned it
	done    func(error)
}

func newConfirmChannel(p *publisher, ch *amqp.Channel) *confirmChannel {
	return &confirmChannel{
		publisher: p, ch: ch,
		closeReason: ch.NotifyClose(make(chan *amqp.Error, 1)),
		// The broker may return each unconfirmed message once, so the library never blocks on this
		// channel.
		returns:   ch.NotifyReturn(make(chan amqp.Return, p.cfg.Window)),
		published: make(chan struct{}, 1),
	}
}

// publish publishes m. After an error m has not been published.
func (c *confirmChannel) publish(m pendingMessage) (err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ch.IsClosed() {
		return errLost
	}
	m.confirm, err = c.ch.PublishWithDeferredConfirm(c.cfg.Exchange, m.key, c.cfg.Mandatory, false, m.pub)
	if err != nil {
		return plainError(err)
	}
	c.unconfirmed.Push(m)
	select {
	case c.published <- struct{}{}:
	default:
	}
	return nil
}

// run completes messages until the channel ends, and returns why it ended. Then every message has
// its outcome.
func (c *confirmChannel) run() error {
	for {
		confirm := c.firstConfirm()
		if confirm == nil {
			select {
			case <-c.published:
				continue
			case reason := <-c.closeReason:
				return c.finish(reason)
			}
		}
		select {
		case <-confirm.Done():
		case reason := <-c.closeReason:
			return c.finish(reason)
		}
		if !confirm.Acked() && c.ch.IsClosed() {
			return c.finish(<-c.closeReason)
		}
		if c.completeFirst() != nil {
			return c.finish(nil)
		}
	}
}

// firstConfirm returns the confirm of the first unconfirmed message, nil if there is none.
func (c *confirmChannel) firstConfirm() *amqp.DeferredConfirmation {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unconfirmed.Len() == 0 {
		return nil
	}
	return c.unconfirmed.Head().confirm
}

// completeFirst completes the first unconfirmed message according to its confirm. The error is
// errAmbiguous: the message is not completed.
func (c *confirmChannel) completeFirst() error {
	for len(c.returns) > 0 {
		if err := c.assignReturn(<-c.returns); err != nil {
			return err
		}
	}
	c.complete(func(m *pendingMessage) error {
		if m.slots > 1 {
			c.exclusiveLeft.Add(-1)
		}
		if !m.confirm.Acked() {
			return fmt.Errorf("RabbitMQ could not store the message for %q (nack)", m.key)
		}
		return m.refusal
	})
	return nil
}

// complete takes the first message out of unconfirmed and completes it with its outcome.
func (c *confirmChannel) complete(outcome func(*pendingMessage) error) {
	c.mu.Lock()
	m := c.unconfirmed.Pop()
	c.mu.Unlock()
	c.release(&m)
	m.done(outcome(&m))
}

// assignReturn refuses the unconfirmed message that r belongs to, or returns errAmbiguous.
func (c *confirmChannel) assignReturn(r amqp.Return) error {
	c.mu.Lock() // what the broker has seen is in unconfirmed then
	defer c.mu.Unlock()
	var found *pendingMessage
	sameKey := 0
	for i := range c.unconfirmed.Len() {
		m := c.unconfirmed.At(i)
		if m.refusal != nil || m.key != r.RoutingKey {
			continue
		}
		found = m
		if sameKey++; matchesReturn(m, &r) {
			sameKey = 1
			break
		}
	}
	switch sameKey {
	case 0:
		return nil
	case 1:
		c.metrics.unroutable.Inc()
		found.refusal = pipeline.Refuse(refusedUnroutable,
			fmt.Errorf("no queue takes a message with the routing key %q at exchange %q: %s", found.key, c.cfg.Exchange, r.ReplyText))
		return nil
	}
	return errAmbiguous
}

// finish closes the channel and completes its messages, and returns why it ended. When the broker
// has closed it because of a message, and only one was unconfirmed, that message is refused. Several
// will be published again one at a time.
func (c *confirmChannel) finish(reason *amqp.Error) error {
	<-c.current // nothing is published any more
	_ = c.ch.Close()
	for c.unconfirmed.Len() > 0 && c.unconfirmed.Head().confirm.Acked() {
		if c.completeFirst() != nil {
			break
		}
	}
	left := c.unconfirmed.Len()
	var err error
	switch {
	case reason == nil && left > 0: // run has closed it after errAmbiguous
		c.exclusiveLeft.Store(int64(left))
		err = errAmbiguous
	case reason == nil:
		err = plainError(reason)
	case !hasCode(reason, amqp.PreconditionFailed):
		err = fmt.Errorf("RabbitMQ closed the channel: %w", plainError(reason))
	case left == 1:
		c.exclusiveLeft.Add(-1)
		c.complete(func(*pendingMessage) error {
			return pipeline.Refuse(refusedByBroker, fmt.Errorf("RabbitMQ refuses the message: %w", plainError(reason)))
		})
		err = errAmbiguous
	default:
		c.exclusiveLeft.Store(int64(left))
		err = errAmbiguous
	}
	// Confirmed messages behind an unconfirmed one fail, too: the pipeline would send them again
	// anyway, to keep the order.
	for c.unconfirmed.Len() > 0 {
		c.complete(func(*pendingMessage) error { return errLost })
	}
	c.epoch.Add(1)
	return err
}

// matchesReturn reports whether r has the same properties and body as m.
func matchesReturn(m *pendingMessage, r *amqp.Return) bool {
	p := &m.pub
	return r.MessageId == p.MessageId && r.CorrelationId == p.CorrelationId && bytes.Equal(r.Body, p.Body) &&
		r.ContentType == p.ContentType && r.ContentEncoding == p.ContentEncoding && r.DeliveryMode == p.DeliveryMode && r.Priority == p.Priority &&
		r.ReplyTo == p.ReplyTo && r.Expiration == p.Expiration && r.Type == p.Type && r.UserId == p.UserId && r.AppId == p.AppId &&
		r.Timestamp.Unix() == p.Timestamp.Unix() && maps.EqualFunc(r.Headers, p.Headers, equalField)
}

func equalField(a, b any) bool {
	switch a := a.(type) {
	case amqp.Table:
		b, ok := b.(amqp.Table)
		return ok && maps.EqualFunc(a, b, equalField)
	case []any:
		b, ok := b.([]any)
		return ok && slices.EqualFunc(a, b, equalField)
	case []byte:
		b, ok := b.([]byte)
		return ok && bytes.Equal(a, b)
	case time.Time:
		b, ok := b.(time.Time)
		return ok && a.Unix() == b.Unix()
	}
	switch b.(type) {
	case amqp.Table, []any, []byte:
		return false // not comparable
	}
	return a == b
}
