package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/aviaryhq/aviary/internal/trial"
)

// Try finds out whether the virtual host can be connected to; path is the section's.
func (c Connection) Try(path string) (t trial.Trial, end func()) {
	t, _, end = c.try(path)
	return t, end
}

// try returns the trial of a connection. conn returns the connection once the trial has succeeded.
func (c Connection) try(path string) (t trial.Trial, conn func() *amqp.Connection, end func()) {
	var made atomic.Pointer[brokerConnection]
	t = trial.Trial{Name: path + ".url " + c.URL, Try: func(ctx context.Context) error {
		conn, err := c.dial(ctx, "check")
		if err == nil {
			made.Store(conn)
		}
		return err
	}}
	end = func() {
		if conn := made.Load(); conn != nil {
			conn.close()
		}
	}
	return t, func() *amqp.Connection { return made.Load().Connection }, end
}

// Try finds out whether the source can take from its queues; path is its section's.
func (c SourceConfig) Try(path string) (t trial.Trial, end func()) {
	t, conn, end := c.try(path)
	for i, q := range c.Queues {
		t.Then = append(t.Then, trial.Trial{Name: fmt.Sprintf("%s.queues[%d] %s", path, i, q.Name), Try: func(context.Context) error {
			return tryQueue(conn(), q, c.Declare == declareCreate)
		}})
	}
	return t, end
}

// tryQueue checks a queue as the start does, but declares nothing.
func tryQueue(conn *amqp.Connection, q Queue, create bool) error {
	_, err := queueState(conn, q.Name)
	switch {
	case errors.Is(err, errMissing) && create:
		for _, b := range q.Bindings {
			if err := findExchange(conn, b.Exchange); err != nil {
				return fmt.Errorf("does not exist yet; the start creates it, but its binding to exchange %q fails: %w", b.Exchange, err)
			}
		}
		err = trial.Note("does not exist yet; the start creates it, if this user may do that")
	case err == nil:
		err = q.prepare(conn, false)
	}
	if err == nil {
		err = checkReadPermission(conn, q.Name)
	}
	if err == nil && len(q.Bindings) > 0 && create {
		err = trial.Note("the start binds it, if this user may do that")
	}
	return err
}

// Try finds out whether the sink can publish to the places that are known; path is its section's.
func (c SinkConfig) Try(path string, to []trial.Place) (t trial.Trial, end func()) {
	t, conn, end := c.try(path)
	if c.Exchange != "" {
		t.Then = []trial.Trial{{Name: path + ".exchange " + c.Exchange, Try: func(context.Context) error {
			if err := findExchange(conn(), c.Exchange); err != nil {
				return err
			}
			return checkRoutingPermission(conn(), c.Exchange, to)
		}}}
		return t, end
	}
	for _, place := range to {
		if place.Name == "" {
			t.Then = append(t.Then, trial.Of(place.Path, errors.New("no queue is configured: no message would reach a queue")))
			continue
		}
		t.Then = append(t.Then, trial.Trial{Name: place.Path + ": queue " + place.Name, Try: func(context.Context) error {
			if _, err := queueState(conn(), place.Name); err != nil {
				return err
			}
			return checkWritePermission(conn(), "", place.Name)
		}})
	}
	return t, end
}

// checkReadPermission returns why this user may not consume from the queue. It asks for a consumer
// whose priority is not a number: RabbitMQ checks the permission before it refuses that.
func checkReadPermission(conn *amqp.Connection, queue string) error {
	return checkPermission(conn, "take from it", func(ch *amqp.Channel) error {
		_, err := ch.Consume(queue, "", false, false, false, false, amqp.Table{"x-priority": "none"})
		return err
	})
}

// checkRoutingPermission returns why this user may not publish to the exchange with the known
// routing keys. If none is known it tries an arbitrary one. That a topic exchange refuses that key
// says nothing about other keys.
func checkRoutingPermission(conn *amqp.Connection, exchange string, keys []trial.Place) error {
	for _, key := range keys {
		if err := checkWritePermission(conn, exchange, key.Name); err != nil {
			return fmt.Errorf("with the routing key %q: %w", key.Name, err)
		}
	}
	if len(keys) > 0 {
		return nil
	}
	err := checkWritePermission(conn, exchange, "aviary-reach")
	if err != nil && strings.Contains(err.Error(), "access to topic") {
		return trial.Note("this user may publish with some routing keys only; the messages determine the routing keys")
	}
	return err
}

// checkWritePermission returns why this user may not publish to the exchange with a routing key. It
// publishes a message whose expiration is not a number: RabbitMQ checks the permission before it
// refuses that.
func checkWritePermission(conn *amqp.Connection, exchange, key string) error {
	return checkPermission(conn, "publish there", func(ch *amqp.Channel) error {
		refused := ch.NotifyClose(make(chan *amqp.Error, 1))
		invalid := amqp.Publishing{Expiration: "none"}
		if err := ch.PublishWithContext(context.Background(), exchange, key, false, false, invalid); err != nil {
			return err
		}
		// The broker does not answer a publish. It answers this request after it has handled it.
		if err := ch.Qos(1, 0, false); err == nil {
			return nil
		}
		if reason := <-refused; reason != nil {
			return reason
		}
		return nil
	})
}

// checkPermission makes an invalid request, which RabbitMQ refuses after it has checked the
// permission. Other brokers may accept it, so they are not asked.
func checkPermission(conn *amqp.Connection, what string, request func(*amqp.Channel) error) error {
	if conn.Properties["product"] != "RabbitMQ" {
		return nil
	}
	if err := onChannel(conn, request); hasCode(err, amqp.AccessRefused) {
		return fmt.Errorf("this user may not %s: %w", what, err)
	}
	return nil
}
