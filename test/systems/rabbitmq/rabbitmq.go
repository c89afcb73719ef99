// Package rabbitmq puts messages into queues of RabbitMQ and reads them, for tests, benchmarks and
// the demo.
package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Open opens a connection and a channel of it. Closing the connection closes both.
func Open(url string) (*amqp.Connection, *amqp.Channel, error) {
	connection, err := amqp.Dial(url)
	if err != nil {
		return nil, nil, err
	}
	channel, err := connection.Channel()
	if err != nil {
		return nil, nil, errors.Join(err, connection.Close())
	}
	return connection, channel, nil
}

// With opens a channel for as long as do takes.
func With(url string, do func(*amqp.Channel) error) error {
	connection, channel, err := Open(url)
	if err != nil {
		return err
	}
	defer connection.Close() // what do did is confirmed, or do has failed
	return do(channel)
}

// Declare makes a durable queue.
func Declare(url, queue string) error {
	return With(url, func(c *amqp.Channel) error {
		_, err := c.QueueDeclare(queue, true, false, false, false, nil)
		return err
	})
}

// Delete deletes a queue with what it has.
func Delete(url, queue string) error {
	return With(url, func(c *amqp.Channel) error {
		_, err := c.QueueDelete(queue, false, false, false)
		return err
	})
}

// A Publisher puts messages into one queue and knows that they are stored. One goroutine may use
// it.
type Publisher struct {
	queue      string
	connection *amqp.Connection
	channel    *amqp.Channel
	returned   chan amqp.Return
}

// atOnce is how many messages of one [Publisher.Publish] may be returned: the connection waits for
// who takes more.
const atOnce = 1024

// NewPublisher opens a publisher.
func NewPublisher(url, queue string) (*Publisher, error) {
	connection, channel, err := Open(url)
	if err != nil {
		return nil, err
	}
	if err := channel.Confirm(false); err != nil {
		return nil, errors.Join(err, connection.Close())
	}
	return &Publisher{queue, connection, channel, channel.NotifyReturn(make(chan amqp.Return, atOnce))}, nil
}

// Publish returns when the queue has stored all messages.
func (p *Publisher) Publish(ctx context.Context, messages ...amqp.Publishing) error {
	var confirms []*amqp.DeferredConfirmation
	for _, m := range messages {
		c, err := p.channel.PublishWithDeferredConfirmWithContext(ctx, "", p.queue, true, false, m)
		if err != nil {
			return err
		}
		confirms = append(confirms, c)
	}
	for _, c := range confirms {
		if ok, err := c.WaitContext(ctx); err != nil || !ok {
			return errors.Join(errors.New("not confirmed"), err)
		}
		select {
		case r := <-p.returned: // it comes before the confirmation
			return fmt.Errorf("returned: %s", r.ReplyText)
		default:
		}
	}
	return nil
}

// Close ends the connection.
func (p *Publisher) Close() error { return p.connection.Close() }

// Publish puts messages into a queue and returns when it has stored all.
func Publish(ctx context.Context, url, queue string, messages ...amqp.Publishing) error {
	p, err := NewPublisher(url, queue)
	if err != nil {
		return err
	}
	return errors.Join(p.Publish(ctx, messages...), p.Close())
}

// Read calls got with each message that a queue has and gets, and acknowledges it, until ctx ends.
// It goes on while the server is unavailable.
func Read(ctx context.Context, url, queue string, got func(amqp.Delivery)) {
	for ctx.Err() == nil {
		err := With(url, func(c *amqp.Channel) error { return readChannel(ctx, c, queue, got) })
		if err != nil {
			select {
			case <-time.After(100 * time.Millisecond): // the server is unavailable
			case <-ctx.Done():
			}
		}
	}
}

func readChannel(ctx context.Context, c *amqp.Channel, queue string, got func(amqp.Delivery)) error {
	deliveries, err := c.Consume(queue, "", false, false, false, false, nil)
	if err != nil {
		return err
	}
	for {
		select {
		case d, ok := <-deliveries:
			if !ok {
				return amqp.ErrClosed
			}
			got(d)
			if err := d.Ack(false); err != nil {
				return err
			}
		case <-ctx.Done():
			return nil
		}
	}
}
