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

	"github.com/aviaryhq/aviary/internal/connector/lane"
)

// errDoubt ends an outlet on which it cannot be told which message was given back.
var errDoubt = errors.New("it is not known which message could not be routed")

// outlet is one channel in confirm mode. Send publishes on it; run, in one goroutine, waits for the confirms in the order of publishing.
//
// A message that no queue takes is given back by basic.return and then confirmed like others, so a confirm alone proves nothing. RabbitMQ sends the
// return before the confirm of the same message, and the library puts it into returns before it opens the confirm; so when a message's confirm is
// there, its return is in returns or there is none. What is returned bears no number, only its content. A message counts as returned when its
// content, routing key and properties included, is that of a return. Of two that are alike in all of that, one routed and one not, the wrong one
// may be taken: then a copy is in the queue and a copy is refused, just as it should be. A return that is like none of the messages on their way
// was changed by the broker (a plugin may): then it is of the only one with its routing key, or, where there are several, all are sent again, one
// at a time.
type outlet struct {
	*publisher
	ch      *amqp.Channel
	ended   chan *amqp.Error
	returns chan amqp.Return
	slots   chan struct{} // one for each message on its way
	gone    chan struct{} // closed when the channel has ended

	mu      sync.Mutex // held while publishing
	pending chan sent  // published, in that order
	over    bool       // nothing is published any more

	// Of run only.
	next     []sent // taken out of pending, to be looked at
	returned []given
}

// sent is a message on its way.
type sent struct {
	key     string
	pub     amqp.Publishing
	size    int64
	confirm *amqp.DeferredConfirmation
	done    func(error)
	alone   chan struct{} // closed with its outcome; nil unless somebody waits
}

// given is a message that the broker has given back.
type given struct {
	amqp.Return
	later bool // it is like one that was published later
}

func newOutlet(p *publisher, ch *amqp.Channel) *outlet {
	window := p.cfg.Window
	return &outlet{
		publisher: p, ch: ch,
		ended: ch.NotifyClose(make(chan *amqp.Error, 1)),
		// Each message on its way may be given back once, so the library never waits to hand one over.
		returns: ch.NotifyReturn(make(chan amqp.Return, window)),
		slots:   make(chan struct{}, window), gone: make(chan struct{}), pending: make(chan sent, window),
	}
}

// publish publishes e, for which a slot is taken. After an error e has not been published.
func (o *outlet) publish(e *sent) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.over || o.ch.IsClosed() {
		return errLost
	}
	confirm, err := o.ch.PublishWithDeferredConfirm(o.cfg.Exchange, e.key, o.cfg.Mandatory, false, e.pub)
	if err != nil {
		<-o.slots
		return explain(err)
	}
	e.confirm = confirm
	o.pending <- *e // has room for as many as slots has
	return nil
}

// run gives messages their outcomes until the channel ends, and returns why it did.
func (o *outlet) run() error {
	for {
		if len(o.next) == 0 {
			select {
			case e := <-o.pending:
				o.next = append(o.next[:0], e)
			case reason := <-o.ended:
				return o.end(reason)
			}
		}
		select {
		case <-o.next[0].confirm.Done():
		case reason := <-o.ended:
			return o.end(reason)
		}
		if !o.next[0].confirm.Acked() && o.ch.IsClosed() {
			return o.end(<-o.ended)
		}
		if err := o.finishFirst(); err != nil {
			return o.end(nil)
		}
	}
}

// finishFirst gives the first message the outcome that its confirm means.
func (o *outlet) finishFirst() error {
	var err error
	if e := &o.next[0]; !e.confirm.Acked() {
		err = fmt.Errorf("RabbitMQ could not store the message for %q (nack)", e.key)
	} else if err = o.unroutable(e); errors.Is(err, errDoubt) {
		return err
	}
	if o.next[0].alone != nil {
		o.careful.Add(-1)
	}
	o.finishWith(err)
	return nil
}

// finishWith gives the first message its outcome.
func (o *outlet) finishWith(err error) {
	e := o.next[0]
	o.next[0] = sent{}
	if len(o.next) == 1 {
		o.next = o.next[:0] // to be used again from its beginning
	} else {
		o.next = o.next[1:]
	}
	o.room.give(e.size)
	e.done(err)
	if e.alone != nil {
		close(e.alone)
	}
	<-o.slots
}

// unroutable returns a refusal for a confirmed message that was given back, nil for one that was not, and errDoubt when that cannot be told.
func (o *outlet) unroutable(e *sent) error {
	for more := true; more; {
		select {
		case r, ok := <-o.returns:
			if more = ok; ok {
				o.returned = append(o.returned, given{Return: r})
			}
		default:
			more = false
		}
	}
	if len(o.returned) == 0 {
		return nil
	}
	at := slices.IndexFunc(o.returned, func(r given) bool { return alike(e, &r.Return) })
	for i := 0; at < 0 && i < len(o.returned); i++ {
		r := &o.returned[i]
		if r.later || r.RoutingKey != e.key {
			continue
		}
		o.mu.Lock() // whatever the broker has seen is in pending then
		for len(o.pending) > 0 {
			o.next = append(o.next, <-o.pending)
		}
		o.mu.Unlock()
		e = &o.next[0] // append may have moved it
		if r.later = slices.ContainsFunc(o.next[1:], func(e sent) bool { return alike(&e, &r.Return) }); r.later {
			continue
		}
		if slices.ContainsFunc(o.next[1:], func(other sent) bool { return other.key == e.key }) {
			return errDoubt
		}
		at = i
	}
	if at < 0 {
		return nil
	}
	r := o.returned[at]
	o.returned = slices.Delete(o.returned, at, at+1)
	o.metrics.unroutable.Inc()
	return lane.Refuse(refusedUnroutable, fmt.Errorf("no queue takes a message with the routing key %q at exchange %q: %s", e.key, o.cfg.Exchange, r.ReplyText))
}

// end closes the outlet. When the broker has closed the channel over the one message on it, that is refused; when there were several, they will be
// published one at a time.
func (o *outlet) end(reason *amqp.Error) error {
	o.mu.Lock()
	o.over = true
	close(o.gone)
	for len(o.pending) > 0 {
		o.next = append(o.next, <-o.pending)
	}
	o.mu.Unlock()
	_ = o.ch.Close()
	for len(o.next) > 0 && o.next[0].confirm.Acked() {
		if o.finishFirst() != nil {
			break
		}
	}
	left := len(o.next)
	switch {
	case reason == nil && left > 0: // closed here, in doubt
		o.careful.Store(int64(left))
		return errDoubt
	case reason == nil:
		return plain(nil)
	case reason.Server && reason.Code == amqp.PreconditionFailed && left == 1:
		o.careful.Add(-1)
		o.finishWith(lane.Refuse(refusedByBroker, fmt.Errorf("RabbitMQ refuses the message: %w", plain(reason))))
		return errDoubt // it was the message's fault: nothing to report
	case reason.Server && reason.Code == amqp.PreconditionFailed:
		o.careful.Store(int64(left))
		return errDoubt
	}
	return fmt.Errorf("RabbitMQ closed the channel: %w", plain(reason))
}

// abandon fails what has no outcome, in order. What was confirmed behind it is not spared: it would be sent again anyway, to come after.
func (o *outlet) abandon() {
	for len(o.next) > 0 {
		o.finishWith(errLost)
	}
}

// alike tells whether a return is of e, or of a message that cannot be told from it.
func alike(e *sent, r *amqp.Return) bool {
	p := &e.pub
	return r.RoutingKey == e.key && r.MessageId == p.MessageId && r.CorrelationId == p.CorrelationId && bytes.Equal(r.Body, p.Body) &&
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
