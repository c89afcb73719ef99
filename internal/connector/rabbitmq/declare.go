package rabbitmq

import (
	"errors"
	"fmt"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

const argQueueType = "x-queue-type"

var errMissing = errors.New("does not exist")

// prepare verifies the queue, or with create makes it if it does not exist.
func (q *Queue) prepare(conn *amqp.Connection, create bool) error {
	_, err := queueState(conn, q.Name)
	missing := errors.Is(err, errMissing)
	switch {
	case missing && !create:
		return fmt.Errorf("queue %q %w", q.Name, errMissing)
	case err != nil && !missing:
		return fmt.Errorf("queue %q: %w", q.Name, err)
	case missing || q.Type != "" || len(q.Arguments) > 0:
		if err := q.declare(conn, missing); err != nil {
			return err
		}
	}
	for _, b := range q.Bindings {
		if create {
			err = onChannel(conn, func(ch *amqp.Channel) error {
				return ch.QueueBind(q.Name, b.Key, b.Exchange, false, argumentTable(b.Arguments))
			})
		} else {
			err = findExchange(conn, b.Exchange)
		}
		if err != nil {
			return fmt.Errorf("queue %q: binding to exchange %q: %w", q.Name, b.Exchange, err)
		}
	}
	return nil
}

// declare creates the queue, or has the broker compare an existing one with the configuration.
func (q *Queue) declare(conn *amqp.Connection, missing bool) error {
	// To the broker a classic queue that was declared with its type differs from one that was
	// declared without.
	kinds := []string{"", typeClassic, typeQuorum}
	switch q.Type {
	case typeClassic:
		kinds = kinds[:2]
	case typeQuorum, typeStream:
		kinds = []string{q.Type}
	}
	var err error
	for _, kind := range kinds {
		args := argumentTable(q.Arguments)
		if kind != "" {
			args[argQueueType] = kind
		}
		err = onChannel(conn, func(ch *amqp.Channel) error {
			_, err := ch.QueueDeclare(q.Name, true, false, false, false, args)
			return err
		})
		if err == nil || !strings.Contains(err.Error(), argQueueType) {
			break
		}
	}
	switch {
	case err == nil:
		return nil
	case !missing && hasCode(err, amqp.PreconditionFailed):
		return fmt.Errorf("queue %q is not as configured: %w", q.Name, err)
	}
	return fmt.Errorf("cannot declare queue %q: %w", q.Name, err)
}

// argumentTable makes the arguments of a declaration of what YAML gave.
func argumentTable(m map[string]any) amqp.Table {
	t := amqp.Table{}
	for name, v := range m {
		if n, ok := v.(int); ok {
			v = int64(n) // the library cuts an int to 32 bits
		}
		t[name] = v
	}
	return t
}

// queueState returns the broker's state of a queue, or errMissing.
func queueState(conn *amqp.Connection, name string) (state amqp.Queue, err error) {
	err = onChannel(conn, func(ch *amqp.Channel) error {
		state, err = ch.QueueDeclarePassive(name, true, false, false, false, nil)
		return err
	})
	return state, err
}

// findExchange returns errMissing if there is no exchange of this name. The broker compares nothing
// but the name.
func findExchange(conn *amqp.Connection, name string) error {
	return onChannel(conn, func(ch *amqp.Channel) error {
		return ch.ExchangeDeclarePassive(name, amqp.ExchangeDirect, true, false, false, false, nil)
	})
}
