package load

import (
	"context"
	"errors"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/aviaryhq/aviary/pkg/messaging"
)

const (
	// RabbitMQPrefetch is the number of messages that a consumer may have without acknowledgement.
	RabbitMQPrefetch = 2000
	// unconfirmed is the number of messages that a producer may have without confirmation.
	unconfirmed = 8000
)

// rabbitMQ is the driver of amqp091-go. A topic is a queue, and has one subscription.
type rabbitMQ struct{ connection *amqp.Connection }

func newRabbitMQ(_ context.Context, _ messaging.Config, t Turn) (Driver, error) {
	connection, err := amqp.Dial(t.URL)
	return &rabbitMQ{connection}, err
}

// Producer opens a producer of persistent messages with confirmations.
func (r *rabbitMQ) Producer(_ context.Context, queue string, report func(time.Time, error)) (Producer, error) {
	channel, err := r.connection.Channel()
	if err != nil {
		return nil, err
	}
	p := &rabbitMQProducer{channel: channel, queue: queue, report: report, sent: make(chan rabbitMQMessage, unconfirmed)}
	go func() {
		for m := range p.sent {
			if m.confirmation.Wait() {
				p.done(m.due, nil)
			} else {
				p.done(m.due, errors.New("not confirmed"))
			}
		}
	}()
	return p, channel.Confirm(false)
}

// Consume acknowledges several messages at once, as often as the source of Pigeonhole.
func (r *rabbitMQ) Consume(ctx context.Context, queue, subscription string, received func([]byte)) error {
	channel, err := r.connection.Channel()
	if err != nil {
		return err
	}
	if err := channel.Qos(RabbitMQPrefetch, 0, false); err != nil {
		return err
	}
	deliveries, err := channel.ConsumeWithContext(ctx, queue, subscription, false, false, false, false, nil)
	if err != nil {
		return err
	}
	n := 0
	for d := range deliveries { // until ctx ends
		received(d.Body)
		if n++; n%(RabbitMQPrefetch/4) == 0 {
			if err := d.Ack(true); err != nil {
				return err
			}
		}
	}
	if ctx.Err() == nil {
		return amqp.ErrClosed
	}
	return nil
}

func (r *rabbitMQ) Close() { _ = r.connection.Close() }

type rabbitMQProducer struct {
	pending
	channel *amqp.Channel
	queue   string
	report  func(time.Time, error)
	sent    chan rabbitMQMessage // without confirmation
}

type rabbitMQMessage struct {
	due          time.Time
	confirmation *amqp.DeferredConfirmation
}

func (p *rabbitMQProducer) Send(ctx context.Context, m Message, due time.Time) {
	p.Add(1)
	message := amqp.Publishing{DeliveryMode: amqp.Persistent, Body: m.Payload}
	confirmation, err := p.channel.PublishWithDeferredConfirmWithContext(ctx, "", p.queue, true, false, message)
	if err != nil {
		p.done(due, err)
		return
	}
	p.sent <- rabbitMQMessage{due, confirmation}
}

func (p *rabbitMQProducer) done(due time.Time, err error) {
	p.report(due, err)
	p.Done()
}
