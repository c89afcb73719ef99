package rabbitmq

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
)

// publisher has one confirmChannel open at a time, and opens another when it ends.
type publisher struct {
	*Sink
	part string // of health

	current chan *confirmChannel // holds the channel while it is open and nobody publishes
	slots   *window              // of the unconfirmed messages
	// epoch changes after the unconfirmed messages of a channel have failed. A Send that began
	// before must not publish on the next channel: its message would overtake those that failed.
	epoch atomic.Uint64
	// exclusiveLeft is how many messages are still to be published one at a time. The broker closed
	// a channel with several unconfirmed messages, and did not say which one was the reason.
	exclusiveLeft atomic.Int64
}

func newPublisher(s *Sink, i int) *publisher {
	return &publisher{
		Sink: s, part: "channel " + strconv.Itoa(i), current: make(chan *confirmChannel, 1), slots: newWindow(int64(s.cfg.Window)),
	}
}

// run opens one confirmChannel after another until ctx or the connection ends. It completes every
// message that was published on them.
func (p *publisher) run(ctx context.Context, conn *brokerConnection) {
	p.repeat(ctx, conn, p.part, func() error {
		c, err := p.openChannel(conn)
		if err != nil {
			return err
		}
		p.health.Set(p.part, nil)
		p.current <- c
		return c.run()
	})
}

func (p *publisher) openChannel(conn *brokerConnection) (c *confirmChannel, err error) {
	err = conn.withTimeout(func() error {
		if p.cfg.Exchange != "" {
			if err := findExchange(conn.Connection, p.cfg.Exchange); err != nil {
				return fmt.Errorf("exchange %q: %w", p.cfg.Exchange, err)
			}
		}
		ch, err := conn.Channel()
		if err == nil {
			c, err = newConfirmChannel(p, ch), ch.Confirm(false)
		}
		if err != nil {
			return fmt.Errorf("cannot open a channel: %w", plainError(err))
		}
		return nil
	})
	return c, err
}

// publish publishes m on the current channel, or waits for the next one. After an error m was not
// published, and the caller calls its done.
func (p *publisher) publish(ctx context.Context, m pendingMessage) error {
	epoch := p.epoch.Load()
	m.slots = 1
	if p.exclusiveLeft.Load() > 0 {
		m.slots = p.slots.size
	}
	if err := p.inFlight.acquire(ctx, m.size); err != nil {
		return err
	}
	if err := p.slots.acquire(ctx, m.slots); err != nil {
		p.inFlight.release(m.size)
		return err
	}
	err := p.publishAcquired(ctx, epoch, m)
	if err != nil {
		p.release(&m)
	}
	return err
}

func (p *publisher) publishAcquired(ctx context.Context, epoch uint64, m pendingMessage) error {
	if _, err := receive(ctx, p.Sink, p.alarm.opened()); err != nil {
		return err
	}
	c, err := receive(ctx, p.Sink, p.current)
	if err != nil {
		return err
	}
	defer func() { p.current <- c }()
	if p.epoch.Load() != epoch {
		return errLost
	}
	return c.publish(m)
}

// release gives back what publish has acquired for m.
func (p *publisher) release(m *pendingMessage) {
	p.inFlight.release(m.size)
	p.slots.release(m.slots)
}

// receive receives from c until ctx or the sink ends.
func receive[T any](ctx context.Context, s *Sink, c <-chan T) (v T, err error) {
	select {
	case v = <-c:
		return v, nil
	case <-ctx.Done():
		return v, ctx.Err()
	case <-s.running.Done():
		return v, errStopped
	}
}
