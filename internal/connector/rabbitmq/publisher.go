package rabbitmq

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// publisher has one channel open at a time, an outlet, and opens another when it ends.
type publisher struct {
	*Sink
	part string // of health

	ready   *gate // open while there is an outlet
	current atomic.Pointer[outlet]
	// epoch changes before and after an outlet's unconfirmed messages are failed. A Send that began before must not publish on the next outlet: its
	// message would pass those that failed.
	epoch atomic.Uint64
	// careful is how many messages are still to be published one at a time: the broker closed a channel, and which of the messages on it was the
	// reason is only known when it is alone.
	careful atomic.Int64
	alone   chan struct{} // held by who publishes so
}

func newPublisher(s *Sink, i int) *publisher {
	return &publisher{Sink: s, part: "channel " + strconv.Itoa(i), ready: newGate(false), alone: make(chan struct{}, 1)}
}

// run opens one outlet after another until ctx or the connection ends, and settles what was published on them.
func (p *publisher) run(ctx context.Context, conn *link) {
	var pause backoff
	for ctx.Err() == nil && !conn.IsClosed() {
		began := time.Now()
		o, err := p.openOutlet(conn)
		if err == nil {
			p.health.set(p.part, nil)
			p.current.Store(o)
			p.ready.open()
			err = o.run()
			p.ready.shut()
			p.epoch.Add(1)
			o.abandon()
			p.epoch.Add(1)
		}
		if ctx.Err() == nil && !conn.IsClosed() {
			if !errors.Is(err, errDoubt) {
				p.health.set(p.part, err)
			}
			pause.wait(ctx, time.Since(began))
		}
	}
}

func (p *publisher) openOutlet(conn *link) (o *outlet, err error) {
	err = conn.within(func() error {
		if p.cfg.Exchange != "" {
			// A passive declaration looks at the name only.
			if err := onChannel(conn.Connection, func(ch *amqp.Channel) error {
				return ch.ExchangeDeclarePassive(p.cfg.Exchange, amqp.ExchangeDirect, true, false, false, false, nil)
			}); err != nil {
				return fmt.Errorf("exchange %q: %w", p.cfg.Exchange, explain(err))
			}
		}
		ch, err := conn.Channel()
		if err == nil {
			o, err = newOutlet(p, ch), ch.Confirm(false)
		}
		if err != nil {
			return fmt.Errorf("cannot open a channel: %w", explain(err))
		}
		return nil
	})
	return o, err
}

// publish publishes e on the present outlet or waits for the next. After an error e was not published, and its done is the caller's.
func (p *publisher) publish(ctx context.Context, epoch uint64, e sent) error {
	if p.careful.Load() > 0 {
		select {
		case p.alone <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		case <-p.stopped:
			return errStopped
		}
		defer func() { <-p.alone }()
		e.alone = make(chan struct{})
	}
	if err := await(ctx, p.stopped, p.alarm.opened()); err != nil {
		return err
	}
	if err := await(ctx, p.stopped, p.ready.opened()); err != nil {
		return err
	}
	o := p.current.Load()
	if p.epoch.Load() != epoch {
		return errLost
	}
	select {
	case o.slots <- struct{}{}:
	case <-o.gone:
		return errLost
	case <-ctx.Done():
		return ctx.Err()
	case <-p.stopped:
		return errStopped
	}
	if err := o.publish(&e); err != nil {
		return err
	}
	if e.alone != nil {
		_ = await(ctx, p.stopped, e.alone) // its outcome goes to done
	}
	return nil
}
