package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/aviaryhq/aviary/internal/trial"
)

// tryConnection is a connection that reads the broker's state and changes nothing.
type tryConnection struct {
	mu     sync.Mutex
	broker *brokerConnection
	closed bool
}

// Try finds out whether the virtual host can be connected to; path is the section's.
func (c Connection) Try(path string) (t trial.Trial, end func()) {
	return c.try(path, func(*tryConnection) []trial.Trial { return nil })
}

func (c Connection) try(path string, then func(*tryConnection) []trial.Trial) (t trial.Trial, end func()) {
	c.ConnectTimeout = min(c.ConnectTimeout, trial.Timeout)
	v := new(tryConnection)
	return trial.Trial{
		Name: path + ".url " + c.URL,
		Try: func(ctx context.Context) error {
			conn, err := c.dial(ctx, "check")
			if err != nil {
				return err
			}
			v.set(conn)
			return nil
		},
		Then: then(v),
	}, v.close
}

func (c *tryConnection) set(conn *brokerConnection) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed { // close was called while dial was under way
		conn.close()
		return
	}
	c.broker = conn
}

func (c *tryConnection) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.broker != nil {
		c.broker.close()
	}
}

func (c *tryConnection) conn() *amqp.Connection {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.broker.Connection
}

// Try finds out whether the source can take from its queues; path is its section's.
func (c SourceConfig) Try(path string) (t trial.Trial, end func()) {
	return c.try(path, func(v *tryConnection) []trial.Trial {
		var all []trial.Trial
		for i, q := range c.Queues {
			name := fmt.Sprintf("%s.queues[%d] %s", path, i, q.Name)
			all = append(all, trial.Trial{Name: name, Try: func(context.Context) error {
				if err := v.tryQueue(q, c.Declare); err != nil {
					return err
				}
				if err := checkReadPermission(v.conn(), q.Name); err != nil {
					return err
				}
				if len(q.Bindings) > 0 && c.Declare == declareCreate {
					return trial.Note("the start binds it, if this user may do that")
				}
				return nil
			}})
		}
		return all
	})
}

// tryQueue checks a queue as the start does, but declares nothing.
func (c *tryConnection) tryQueue(q Queue, how string) error {
	conn := c.conn()
	err := findQueue(conn, q.Name)
	switch {
	case errors.Is(err, errMissing) && how == declareCreate:
		for _, b := range q.Bindings {
			if err := findExchange(conn, b.Exchange); err != nil {
				return fmt.Errorf("does not exist yet; the start creates it, but its binding to exchange %q fails: %w", b.Exchange, err)
			}
		}
		return trial.Note("does not exist yet; the start creates it, if this user may do that")
	case err != nil:
		return err
	case how == declareNone:
		return nil
	}
	return q.prepare(conn, declareVerify)
}

// Try finds out whether the sink can publish to the places that are known; path is its section's.
func (c SinkConfig) Try(path string, to []trial.Place) (t trial.Trial, end func()) {
	return c.try(path, func(v *tryConnection) []trial.Trial {
		if c.Exchange != "" {
			return []trial.Trial{{Name: path + ".exchange " + c.Exchange, Try: func(context.Context) error {
				if err := findExchange(v.conn(), c.Exchange); err != nil {
					return err
				}
				return checkRoutingPermission(v.conn(), c.Exchange, to)
			}}}
		}
		var all []trial.Trial
		for _, place := range to {
			if place.Name == "" {
				all = append(all, trial.Of(place.Path, errors.New("no queue is named: no message would get to one")))
				continue
			}
			all = append(all, trial.Trial{Name: place.Path + ": queue " + place.Name, Try: func(context.Context) error {
				if err := findQueue(v.conn(), place.Name); err != nil {
					return err
				}
				return checkWritePermission(v.conn(), "", place.Name)
			}})
		}
		return all
	})
}

var errMissing = errors.New("does not exist")

// findQueue returns nil for a queue that exists, else errMissing or the broker's error.
func findQueue(conn *amqp.Connection, queue string) error {
	return notFound(onChannel(conn, func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		return err
	}))
}

// findExchange returns nil for an exchange that exists, else errMissing or the broker's error.
func findExchange(conn *amqp.Connection, name string) error {
	return notFound(onChannel(conn, func(ch *amqp.Channel) error {
		return ch.ExchangeDeclarePassive(name, amqp.ExchangeDirect, true, false, false, false, nil)
	}))
}

func notFound(err error) error {
	var refused *amqp.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refused) && refused.Code == amqp.NotFound:
		return errMissing
	default:
		return plainErrorOf(err)
	}
}

// checkReadPermission returns why this user may not consume from the queue. It asks for a consumer
// whose priority is not a number: RabbitMQ checks the permission before it refuses that.
func checkReadPermission(conn *amqp.Connection, queue string) error {
	if !isRabbitMQ(conn) {
		return nil
	}
	return permissionError("take from it", onChannel(conn, func(ch *amqp.Channel) error {
		_, err := ch.Consume(queue, "", false, false, false, false, amqp.Table{"x-priority": "none"})
		return err
	}))
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
		return trial.Note("this user may publish with some routing keys only, and the messages decide which are used")
	}
	return err
}

// checkWritePermission returns why this user may not publish to the exchange with a routing key. It
// publishes a message whose expiration is not a number: RabbitMQ checks the permission before it
// refuses that.
func checkWritePermission(conn *amqp.Connection, exchange, key string) error {
	if !isRabbitMQ(conn) {
		return nil
	}
	return permissionError("publish there", onChannel(conn, func(ch *amqp.Channel) error {
		refused := ch.NotifyClose(make(chan *amqp.Error, 1))
		if err := ch.PublishWithContext(context.Background(), exchange, key, false, false, amqp.Publishing{Expiration: "none"}); err != nil {
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
	}))
}

// isRabbitMQ is false for other brokers: they may accept the invalid requests that RabbitMQ refuses.
func isRabbitMQ(conn *amqp.Connection) bool { return conn.Properties["product"] == "RabbitMQ" }

func permissionError(what string, err error) error {
	var refused *amqp.Error
	if errors.As(err, &refused) && refused.Code == amqp.AccessRefused {
		return fmt.Errorf("this user may not %s: %w", what, plainErrorOf(err))
	}
	return nil // the broker refused the invalid value, after it had checked the permission
}
