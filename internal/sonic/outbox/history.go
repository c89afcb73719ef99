package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/sonic/redislib"
	"github.com/aviaryhq/aviary/internal/sonic/topic"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// ErrHistory says that the effects of this Redis are not those of the topic: the zone's writes went
// to another Redis meanwhile. The zone publishes nothing until an operator decides.
var ErrHistory = errors.New("this Redis and the topic have different histories")

// checkHistory returns [ErrHistory] if one of Redis and the topic has an effect, up to the end of
// the other, that the other does not have. That happens when a former primary returns with writes
// that it had not shipped, or without writes that its successor has shipped. A Redis that is only
// older than the topic, or ahead of it, has the same history.
//
// Redis keeps all effects after state.Shipped, up to which the topic had all when they were last
// equal. So checkHistory compares what follows. It returns [ErrState] for a Redis that was emptied.
func (o *owner) checkHistory(ctx context.Context, state redislib.State) error {
	end := o.packer.Tail.Last
	switch {
	case o.cfg.Alone:
		return nil
	case state.Zone == "" && !end.IsZero():
		return fmt.Errorf("%w: it is empty, and the topic has effects of this zone: fill it from another zone by sonic -bootstrap ZONE", ErrState)
	case end.Compare(state.Shipped) <= 0:
		return nil
	}
	entries, _, err := o.readRange(ctx, state.Shipped, end.String(), nil)
	if err != nil {
		return err
	}
	known := false
	for _, from := range []wire.ID{state.Shipped, {}} { // the beginning: the clock of effects may be far ahead
		c := historyComparison{state: state, end: end, outbox: entries}
		err := o.readTopic(ctx, from, func(_ context.Context, h *wire.Header, d *messaging.Delivery) error { return c.add(h, d.Payload) })
		if err == nil {
			err = c.rejectUnknown(len(c.outbox))
		}
		if err != nil && !errors.Is(err, errCompared) {
			return err
		}
		if known = c.topicHasMessage && !c.topicTruncated; known {
			break
		}
	}
	if !known {
		o.log.Warn("the topic no longer has all effects since Redis and the topic were equal: Sonic cannot check whether their histories differ", zap.Stringer("since", state.Shipped))
	}
	return nil
}

// clockMargin is how much earlier than the time in an effect's id its message may have been
// published: the clock of effects may be ahead of the publisher's clock.
const clockMargin = time.Minute

// readTopic passes the messages of the zone's topic to handle, from before the effect that follows
// from on, up to the end. It skips foreign messages.
func (o *owner) readTopic(ctx context.Context, from wire.ID, handle func(context.Context, *wire.Header, *messaging.Delivery) error) error {
	position := messaging.Earliest()
	if from.Ms > 0 {
		position = messaging.AtTime(time.UnixMilli(int64(from.Ms)).Add(-clockMargin))
	}
	return topic.Read(ctx, o.client, o.writer.Topic(), position, o.cfg.Zone,
		func(ctx context.Context, h *wire.Header, d *messaging.Delivery, err error) error {
			if err != nil {
				return err
			}
			return handle(ctx, h, d)
		})
}

// historyComparison compares the outbox with the messages of the topic.
type historyComparison struct {
	state           redislib.State
	end             wire.ID
	outbox          []wire.Entry // after state.Shipped, up to end
	topicTruncated  bool         // the topic does not have the effect after state.Shipped any more
	topicHasMessage bool         // the topic has a message after state.Shipped
	parts           []byte
}

// errCompared says that the rest of the topic is after all that Redis has.
var errCompared = errors.New("all is compared")

// add compares the next message. It returns errCompared when no further message matters.
func (c *historyComparison) add(h *wire.Header, payload []byte) error {
	if h.Last.Compare(c.state.Shipped) <= 0 || h.Last.Compare(c.end) > 0 {
		return nil
	}
	if !c.topicHasMessage {
		c.topicHasMessage, c.topicTruncated = true, h.Prev.Compare(c.state.Shipped) > 0
	}
	if h.Part == 1 {
		c.parts = nil
	}
	if c.parts = append(c.parts, payload...); h.Part < h.Parts {
		return nil
	}
	entries, err := wire.Entries(c.parts)
	if err != nil {
		c.topicTruncated = true
		return nil //nolint:nilerr // other zones stop at the message, with an alarm
	}
	for i := range entries {
		if err := c.addEntry(&entries[i]); err != nil {
			return err
		}
	}
	return nil
}

func (c *historyComparison) addEntry(e *wire.Entry) error {
	if e.ID.Compare(c.state.Shipped) <= 0 {
		return nil
	}
	earlier := 0
	for earlier < len(c.outbox) && c.outbox[earlier].ID.Compare(e.ID) < 0 {
		earlier++
	}
	if err := c.rejectUnknown(earlier); err != nil {
		return err
	}
	switch {
	case len(c.outbox) > 0 && c.outbox[0].ID == e.ID:
		if c.outbox[0].Effects != e.Effects {
			return fmt.Errorf("%w: the effect %s differs", ErrHistory, e.ID)
		}
		c.outbox = c.outbox[1:]
	case e.ID.Compare(c.state.Last) > 0: // Redis ends before it
		if len(c.outbox) == 0 {
			return errCompared
		}
	default:
		return fmt.Errorf("%w: Redis lacks the effect %s of the topic, and has later ones", ErrHistory, e.ID)
	}
	return nil
}

// rejectUnknown removes the first n entries of the outbox, which the topic does not have. It returns an
// error if one of them has effects, unless the topic does not have that part any more.
func (c *historyComparison) rejectUnknown(n int) error {
	for i := range c.outbox[:n] {
		if e := &c.outbox[i]; e.Effects != "" && (c.topicHasMessage && !c.topicTruncated) {
			return fmt.Errorf("%w: the topic lacks the effect %s of this Redis, and has later ones", ErrHistory, e.ID)
		}
	}
	c.outbox = c.outbox[n:]
	return nil
}
