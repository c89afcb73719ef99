package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/aviaryhq/aviary/internal/connector"
)

// publisher has one confirmChannel open at a time, and opens another when it ends.
type publisher struct {
	*Sink
	part string // of health

	ready   *gate // open while current is usable
	current atomic.Pointer[confirmChannel]
	// epoch changes before and after run fails a channel's unconfirmed messages. A Send that began
	// before must not publish on the next channel: its message would overtake those that failed.
	epoch atomic.Uint64
	// exclusiveLeft is how many messages are still to be published one at a time. The broker closed
	// a channel with several unconfirmed messages, and did not say which one was the reason.
	exclusiveLeft atomic.Int64
	exclusive     chan struct{} // held while one message is published exclusively
}

func newPublisher(s *Sink, i int) *publisher {
	return &publisher{Sink: s, part: "channel " + strconv.Itoa(i), ready: newGate(false), exclusive: make(chan struct{}, 1)}
}

// run opens one confirmChannel after another until ctx or the connection ends. It completes every
// message that was published on them.
func (p *publisher) run(ctx context.Context, conn *brokerConnection) {
	pause := connector.Reconnect()
	for ctx.Err() == nil && !conn.IsClosed() {
		began := time.Now()
		c, err := p.openChannel(conn)
		if err == nil {
			p.health.Set(p.part, nil)
			p.current.Store(c)
			p.ready.open()
			err = c.run()
			p.ready.close()
			p.epoch.Add(1)
			c.failUnconfirmed()
			p.epoch.Add(1)
		}
		if ctx.Err() == nil && !conn.IsClosed() {
			if !errors.Is(err, errAmbiguous) {
				p.health.Set(p.part, err)
			}
			pause.Held(time.Since(began))
			pause.Wait(ctx)
		}
	}
}

func (p *publisher) openChannel(conn *brokerConnection) (c *confirmChannel, err error) {
	err = conn.withTimeout(func() error {
		if p.cfg.Exchange != "" {
			// A passive declaration looks at the name only.
			if err := onChannel(conn.Connection, func(ch *amqp.Channel) error {
				return ch.ExchangeDeclarePassive(p.cfg.Exchange, amqp.ExchangeDirect, true, false, false, false, nil)
			}); err != nil {
				return fmt.Errorf("exchange %q: %w", p.cfg.Exchange, plainErrorOf(err))
			}
		}
		ch, err := conn.Channel()
		if err == nil {
			c, err = newConfirmChannel(p, ch), ch.Confirm(false)
		}
		if err != nil {
			return fmt.Errorf("cannot open a channel: %w", plainErrorOf(err))
		}
		return nil
	})
	return c, err
}

// publish publishes m on the current channel, or waits for the next one. After an error m was not
// published, and the caller calls its done.
func (p *publisher) publish(ctx context.Context, epoch uint64, m pendingMessage) error {
	if p.exclusiveLeft.Load() > 0 {
		select {
		case p.exclusive <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		case <-p.running.Done():
			return errStopped
		}
		defer func() { <-p.exclusive }()
		m.completed = make(chan struct{})
	}
	if err := await(ctx, p.running.Done(), p.alarm.opened()); err != nil {
		return err
	}
	if err := await(ctx, p.running.Done(), p.ready.opened()); err != nil {
		return err
	}
	c := p.current.Load()
	if p.epoch.Load() != epoch {
		return errLost
	}
	select {
	case c.slots <- struct{}{}:
	case <-c.closed:
		return errLost
	case <-ctx.Done():
		return ctx.Err()
	case <-p.running.Done():
		return errStopped
	}
	if err := c.publish(&m); err != nil {
		return err
	}
	if m.completed != nil {
		_ = await(ctx, p.running.Done(), m.completed) // its outcome goes to done
	}
	return nil
}
