package rabbitmq

import (
	"errors"
	"fmt"
	"maps"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"
)

const argQueueType = "x-queue-type"

// prepare verifies or makes the queue as how says. Each step has a channel of its own: the broker
// answers what it refuses by closing it.
func (q *Queue) prepare(conn *amqp.Connection, how string) error {
	if how == declareNone {
		return nil
	}
	missing := false
	err := onChannel(conn, func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclarePassive(q.Name, true, false, false, false, nil)
		return err
	})
	var refused *amqp.Error
	if errors.As(err, &refused) && refused.Code == amqp.NotFound {
		missing = true
	} else if err != nil {
		return fmt.Errorf("queue %q: %w", q.Name, plainErrorOf(err))
	}
	if missing && how == declareVerify {
		return fmt.Errorf("queue %q does not exist", q.Name)
	}
	if missing || q.Type != "" || q.Durable != nil || len(q.Arguments) > 0 {
		if err := q.declare(conn, missing); err != nil {
			return err
		}
	}
	return q.bind(conn, how)
}

// declare makes the queue, or has the broker compare one that exists with what is asked for.
func (q *Queue) declare(conn *amqp.Connection, missing bool) error {
	args, err := argumentTable(q.Arguments)
	if err != nil {
		return fmt.Errorf("queue %q: arguments: %w", q.Name, err)
	}
	durable := q.Durable == nil || *q.Durable
	attempt := func(kind string) error {
		args := maps.Clone(args)
		if kind != "" {
			if args == nil {
				args = amqp.Table{}
			}
			args[argQueueType] = kind
		}
		return onChannel(conn, func(ch *amqp.Channel) error {
			_, err := ch.QueueDeclare(q.Name, durable, false, false, false, args)
			return err
		})
	}
	// A classic queue has been declared with its type or, as ever before there were others,
	// without; to the broker that is not the same.
	kinds := []string{q.Type}
	if q.Type == typeClassic || q.Type == "" && !missing {
		kinds = []string{"", typeClassic}
		if q.Type == "" {
			kinds = append(kinds, typeQuorum)
		}
	}
	for _, kind := range kinds {
		if err = attempt(kind); err == nil || !strings.Contains(err.Error(), argQueueType) {
			break
		}
	}
	var refused *amqp.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refused) && refused.Code == amqp.PreconditionFailed && !missing:
		return fmt.Errorf("queue %q is not as configured: %w", q.Name, plainErrorOf(err))
	default:
		return fmt.Errorf("cannot declare queue %q: %w", q.Name, plainErrorOf(err))
	}
}

func (q *Queue) bind(conn *amqp.Connection, how string) error {
	for _, b := range q.Bindings {
		args, err := argumentTable(b.Arguments)
		if err == nil {
			err = onChannel(conn, func(ch *amqp.Channel) error {
				if how == declareVerify {
					// A passive declaration looks at the name only.
					return ch.ExchangeDeclarePassive(b.Exchange, amqp.ExchangeDirect, true, false, false, false, nil)
				}
				return ch.QueueBind(q.Name, b.Key, b.Exchange, false, args)
			})
		}
		if err != nil {
			return fmt.Errorf("queue %q: binding to exchange %q: %w", q.Name, b.Exchange, plainErrorOf(err))
		}
	}
	return nil
}

func onChannel(conn *amqp.Connection, f func(*amqp.Channel) error) error {
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	err = f(ch)
	_ = ch.Close()
	return err
}
