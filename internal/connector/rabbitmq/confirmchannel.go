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
// other, so a confirm alone proves nothing. RabbitMQ sends the return before the confirm, and the
// library puts the return into returns before it resolves the confirm. So once a message is
// confirmed, its return is in returns or does not exist.
//
// A return has no delivery tag, only the content. A message counts as returned when its content,
// routing key and properties equal those of a return. Of two equal messages, one routed and one
// not, the wrong one may be taken. That does no harm: one copy is in the queue, one is refused.
//
// A return that equals no unconfirmed message was changed by the broker (a plugin may do that). It
// belongs to the only unconfirmed message with its routing key. If several have that key, all of
// them are sent again, one at a time.
type confirmChannel struct {
	*publisher
	ch          *amqp.Channel
	closeReason chan *amqp.Error
	returns     chan amqp.Return
	slots       chan struct{} // one for each unconfirmed message
	closed      chan struct{} // closed when the channel has ended

	mu       sync.Mutex          // held while publishing
	pending  chan pendingMessage // published, in that order
	isClosed bool                // nothing is published any more

	// Of run only.
	unconfirmed ring.Ring[pendingMessage] // taken out of pending, to be looked at
	returned    []returnedMessage
}

// pendingMessage is a published message that waits for its confirm.
type pendingMessage struct {
	key       string
	pub       amqp.Publishing
	size      int64
	confirm   *amqp.DeferredConfirmation
	done      func(error)
	completed chan struct{} // closed with its outcome; nil unless somebody waits
}

// returnedMessage is a message that the broker has sent back with basic.return.
type returnedMessage struct {
	amqp.Return
	matchesLater bool // it is like one that was published later
}

func newConfirmChannel(p *publisher, ch *amqp.Channel) *confirmChannel {
	window := p.cfg.Window
	return &confirmChannel{
		publisher: p, ch: ch,
		closeReason: ch.NotifyClose(make(chan *amqp.Error, 1)),
		// The broker may return each unconfirmed message once, so the library never blocks on this
		// channel.
		returns: ch.NotifyReturn(make(chan amqp.Return, window)),
		slots:   make(chan struct{}, window), closed: make(chan struct{}), pending: make(chan pendingMessage, window),
	}
}

// publish publishes m. The caller has taken a slot. After an error m has not been published.
func (c *confirmChannel) publish(m *pendingMessage) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isClosed || c.ch.IsClosed() {
		return errLost
	}
	confirm, err := c.ch.PublishWithDeferredConfirm(c.cfg.Exchange, m.key, c.cfg.Mandatory, false, m.pub)
	if err != nil {
		<-c.slots
		return plainErrorOf(err)
	}
	m.confirm = confirm
	c.pending <- *m // has room for as many as slots has
	return nil
}

// run completes messages until the channel ends, and returns why it ended.
func (c *confirmChannel) run() error {
	for {
		if c.unconfirmed.Len() == 0 {
			select {
			case m := <-c.pending:
				c.unconfirmed.Push(m)
			case reason := <-c.closeReason:
				return c.finish(reason)
			}
		}
		select {
		case <-c.unconfirmed.Head().confirm.Done():
		case reason := <-c.closeReason:
			return c.finish(reason)
		}
		if !c.unconfirmed.Head().confirm.Acked() && c.ch.IsClosed() {
			return c.finish(<-c.closeReason)
		}
		if err := c.completeFirst(); err != nil {
			return c.finish(nil)
		}
	}
}

// completeFirst completes the first unconfirmed message according to its confirm.
func (c *confirmChannel) completeFirst() error {
	var err error
	if m := c.unconfirmed.Head(); !m.confirm.Acked() {
		err = fmt.Errorf("RabbitMQ could not store the message for %q (nack)", m.key)
	} else if err = c.unroutable(m); errors.Is(err, errAmbiguous) {
		return err
	}
	if c.unconfirmed.Head().completed != nil {
		c.exclusiveLeft.Add(-1)
	}
	c.completeFirstWith(err)
	return nil
}

// completeFirstWith completes the first unconfirmed message with err.
func (c *confirmChannel) completeFirstWith(err error) {
	m := c.unconfirmed.Pop()
	c.inFlight.release(m.size)
	m.done(err)
	if m.completed != nil {
		close(m.completed)
	}
	<-c.slots
}

// unroutable returns a refusal when the broker has returned the confirmed message, nil when it has
// not, and errAmbiguous when a return may belong to several messages.
func (c *confirmChannel) unroutable(m *pendingMessage) error {
	for more := true; more; {
		select {
		case r, ok := <-c.returns:
			if more = ok; ok {
				c.returned = append(c.returned, returnedMessage{Return: r})
			}
		default:
			more = false
		}
	}
	if len(c.returned) == 0 {
		return nil
	}
	index := slices.IndexFunc(c.returned, func(r returnedMessage) bool { return matchesReturn(m, &r.Return) })
	for i := 0; index < 0 && i < len(c.returned); i++ {
		r := &c.returned[i]
		if r.matchesLater || r.RoutingKey != m.key {
			continue
		}
		c.mu.Lock() // whatever the broker has seen is in pending then
		for len(c.pending) > 0 {
			c.unconfirmed.Push(<-c.pending)
		}
		c.mu.Unlock()
		m = c.unconfirmed.Head() // Push may have moved it
		if r.matchesLater = c.anyAfterFirst(func(m *pendingMessage) bool { return matchesReturn(m, &r.Return) }); r.matchesLater {
			continue
		}
		if c.anyAfterFirst(func(other *pendingMessage) bool { return other.key == m.key }) {
			return errAmbiguous
		}
		index = i
	}
	if index < 0 {
		return nil
	}
	r := c.returned[index]
	c.returned = slices.Delete(c.returned, index, index+1)
	c.metrics.unroutable.Inc()
	return pipeline.Refuse(refusedUnroutable, fmt.Errorf("no queue takes a message with the routing key %q at exchange %q: %s", m.key, c.cfg.Exchange, r.ReplyText))
}

// anyAfterFirst reports whether any unconfirmed message after the first matches.
func (c *confirmChannel) anyAfterFirst(matches func(*pendingMessage) bool) bool {
	for i := 1; i < c.unconfirmed.Len(); i++ {
		if matches(c.unconfirmed.At(i)) {
			return true
		}
	}
	return false
}

// finish closes the channel. When the broker has closed it because of a message, and only one was
// unconfirmed, that message is refused. Several will be published again one at a time.
func (c *confirmChannel) finish(reason *amqp.Error) error {
	c.mu.Lock()
	c.isClosed = true
	close(c.closed)
	for len(c.pending) > 0 {
		c.unconfirmed.Push(<-c.pending)
	}
	c.mu.Unlock()
	_ = c.ch.Close()
	for c.unconfirmed.Len() > 0 && c.unconfirmed.Head().confirm.Acked() {
		if c.completeFirst() != nil {
			break
		}
	}
	left := c.unconfirmed.Len()
	switch {
	case reason == nil && left > 0: // run has closed it after errAmbiguous
		c.exclusiveLeft.Store(int64(left))
		return errAmbiguous
	case reason == nil:
		return plainError(nil)
	case reason.Server && reason.Code == amqp.PreconditionFailed && left == 1:
		c.exclusiveLeft.Add(-1)
		c.completeFirstWith(pipeline.Refuse(refusedByBroker, fmt.Errorf("RabbitMQ refuses the message: %w", plainError(reason))))
		return errAmbiguous // the message was at fault, not the connection: run reports nothing
	case reason.Server && reason.Code == amqp.PreconditionFailed:
		c.exclusiveLeft.Store(int64(left))
		return errAmbiguous
	}
	return fmt.Errorf("RabbitMQ closed the channel: %w", plainError(reason))
}

// failUnconfirmed fails the messages that finish has left, in order. It also fails confirmed
// messages behind an unconfirmed one: the pipeline would send them again anyway, to keep the order.
func (c *confirmChannel) failUnconfirmed() {
	for c.unconfirmed.Len() > 0 {
		c.completeFirstWith(errLost)
	}
}

// matchesReturn reports whether r has the same routing key, properties and body as m.
func matchesReturn(m *pendingMessage, r *amqp.Return) bool {
	p := &m.pub
	return r.RoutingKey == m.key && r.MessageId == p.MessageId && r.CorrelationId == p.CorrelationId && bytes.Equal(r.Body, p.Body) &&
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
