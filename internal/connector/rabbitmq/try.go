package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"sync"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/aviaryhq/aviary/internal/trial"
)

// visit is a connection that only looks.
type visit struct {
	mu     sync.Mutex
	link   *link
	closed bool
}

// Try finds out whether the virtual host can be connected to; path is the section's.
func (c Connection) Try(path string) (t trial.Trial, end func()) {
	return c.try(path, func(*visit) []trial.Trial { return nil })
}

func (c Connection) try(path string, then func(*visit) []trial.Trial) (t trial.Trial, end func()) {
	c.ConnectTimeout = min(c.ConnectTimeout, trial.Timeout)
	v := new(visit)
	return trial.Trial{
		Name: path + ".url " + c.URL,
		Try: func(ctx context.Context) error {
			conn, err := c.dial(ctx, "check")
			if err != nil {
				return err
			}
			v.keep(conn)
			return nil
		},
		Then: then(v),
	}, v.end
}

func (v *visit) keep(conn *link) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed { // it came late
		conn.close()
		return
	}
	v.link = conn
}

func (v *visit) end() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.closed = true
	if v.link != nil {
		v.link.close()
	}
}

func (v *visit) conn() *amqp.Connection {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.link.Connection
}

// Try finds out whether the source can take from its queues; path is its section's. Whether the user may read is known only to who takes a message.
func (c SourceConfig) Try(path string) (t trial.Trial, end func()) {
	return c.try(path, func(v *visit) []trial.Trial {
		var all []trial.Trial
		for i, q := range c.Queues {
			name := fmt.Sprintf("%s.queues[%d] %s", path, i, q.Name)
			all = append(all, trial.Trial{Name: name, Try: func(context.Context) error { return v.try(q, c.Declare) }})
		}
		return all
	})
}

// try looks at a queue as the start does, and makes nothing.
func (v *visit) try(q Queue, how string) error {
	conn := v.conn()
	err := passive(conn, q.Name)
	switch {
	case errors.Is(err, errMissing) && how == declareCreate:
		for _, b := range q.Bindings {
			if err := exchange(conn, b.Exchange); err != nil {
				return fmt.Errorf("does not exist yet; the start makes it, but its binding to exchange %q fails: %w", b.Exchange, err)
			}
		}
		return trial.Note("does not exist yet; the start makes it, if this user may")
	case err != nil:
		return err
	case how == declareNone:
		return nil
	}
	return q.prepare(conn, declareVerify)
}

// Try finds out whether the sink can publish to the places that are known; path is its section's.
func (c SinkConfig) Try(path string, to []trial.Place) (t trial.Trial, end func()) {
	return c.try(path, func(v *visit) []trial.Trial {
		if c.Exchange != "" {
			return []trial.Trial{{Name: path + ".exchange " + c.Exchange, Try: func(context.Context) error { return exchange(v.conn(), c.Exchange) }}}
		}
		var all []trial.Trial
		for _, place := range to {
			if place.Name == "" {
				all = append(all, trial.Of(place.Path, errors.New("no queue is named: no message would get to one")))
				continue
			}
			all = append(all, trial.Trial{Name: place.Path + ": queue " + place.Name, Try: func(context.Context) error {
				return passive(v.conn(), place.Name)
			}})
		}
		return all
	})
}

var errMissing = errors.New("does not exist")

// passive returns nil for a queue that exists.
func passive(conn *amqp.Connection, queue string) error {
	return missing(onChannel(conn, func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		return err
	}))
}

// exchange returns nil for one that exists.
func exchange(conn *amqp.Connection, name string) error {
	return missing(onChannel(conn, func(ch *amqp.Channel) error {
		return ch.ExchangeDeclarePassive(name, amqp.ExchangeDirect, true, false, false, false, nil)
	}))
}

func missing(err error) error {
	var refused *amqp.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refused) && refused.Code == amqp.NotFound:
		return errMissing
	default:
		return explain(err)
	}
}
