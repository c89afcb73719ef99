package outbox

import (
	"context"
	"fmt"
	"math"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/sonic/lane"
	"github.com/aviaryhq/aviary/internal/sonic/message"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// update has Redis run the library of this version: that which a predecessor of another version has opened may lack what this one calls, or do it
// differently. This process does not listen yet: what is published is counted anew then.
func (l *loader) update(ctx context.Context) error {
	state, err := l.lane.Look(ctx)
	if err != nil {
		return fmt.Errorf("cannot look at what Redis holds: %w", err)
	}
	if err := l.fits(state); err != nil {
		return err
	}
	if state.Opened {
		err = Load(ctx, l.lane, l.log, true)
	}
	if lane.NoMemory(err) {
		return nil // it goes on with the one that it has
	}
	return err
}

// prepare compares what Redis holds with what the topic has, brings Redis up to the topic when it came back older, and opens it for
// writes. It returns the effect to go on behind.
func (l *loader) prepare(ctx context.Context) (message.ID, error) {
	state, err := l.lane.Look(ctx)
	if err != nil {
		return message.ID{}, fmt.Errorf("cannot look at what Redis holds: %w", err)
	}
	if err := l.fits(state); err != nil {
		return message.ID{}, err
	}
	if !l.fresh {
		// This process may have been stopped for a while, and another may have the topic now without its being known here.
		if err := l.again(ctx); err != nil {
			return message.ID{}, err
		}
	}
	l.believe(state.Shipped)
	end := l.packer.Tail.Last
	if !state.Opened && l.one && !state.Last.IsZero() {
		if end, err = l.prove(ctx, state.Last); err != nil {
			return message.ID{}, err
		}
		l.believe(state.Shipped)
	}
	if l.cfg.Off && !state.Opened {
		// What this process holds is of before the restart of Redis, which may have lost it.
		if end, err = l.flush(ctx, end); err != nil {
			return message.ID{}, err
		}
	}
	epoch := max(state.Epoch, l.packer.Tail.Epoch)
	if state.Last.Compare(end) < 0 {
		epoch++
		l.log.Warn("this Redis is older than the topic: applying what it has lost", zap.Stringer("redis", state.Last), zap.Stringer("topic", l.packer.Tail.Last), zap.Int64("epoch", epoch))
		if err := l.recover(ctx, state.Last, epoch); err != nil {
			return message.ID{}, err
		}
		state.Last = l.packer.Tail.Last
	}
	if l.fresh || !state.Opened {
		floor := message.Max(message.AtPosition(l.packer.Tail.Position), l.packer.Tail.Last)
		if state, err = l.lane.Open(ctx, state, epoch, floor); err != nil {
			if lane.Refused(err) {
				err = fmt.Errorf("%w: %w", ErrState, err)
			}
			return message.ID{}, fmt.Errorf("cannot open Redis for writes: %w", err)
		}
		l.log.Info("opened Redis for writes", zap.Bool("ready", state.Ready), zap.Int64("epoch", epoch), zap.Stringer("floor", floor))
	}
	l.fresh, l.packer.Tail.Epoch = false, epoch
	l.setEpoch(epoch)
	return l.packer.Tail.Last, nil
}

// believe has the next message follow what the topic is known to have had: when it has lost its end, zones that had not read that see a gap.
func (l *loader) believe(shipped message.ID) {
	if shipped.Compare(l.packer.Tail.Last) > 0 {
		l.log.Warn("the topic has lost its end, or was made anew: zones that had not read it miss effects",
			zap.Stringer("topic", l.packer.Tail.Last), zap.Stringer("shipped", shipped))
		l.packer.Tail.Last = shipped
	}
}

// prove makes sure that the topic's end is known before Redis is opened, and returns it. What a predecessor sent may be stored after this writer
// has read the end, and Redis may have lost it: then it would go on without it. So a message of this writer is stored first: the first of the
// outbox, or one without effects, whose position is not above anything that the predecessor may have sent. Once it has a place of its own nothing
// older comes any more; when the broker takes it for a duplicate the end is read again. The end that is returned is without such a message.
func (l *loader) prove(ctx context.Context, last message.ID) (end message.ID, err error) {
	end = l.packer.Tail.Last
	first, whole, err := l.firstOf(ctx)
	if err != nil || !whole {
		return end, err
	}
	marks := len(first) == 0 // nothing of the outbox waits
	if marks {
		position, err := last.Position()
		if err != nil {
			return end, err
		}
		first = []message.Entry{{ID: message.AtPosition(max(position, l.packer.Tail.Position) + 1)}}
	}
	records, ends, err := l.pack(first)
	if err != nil {
		return end, err
	}
	for _, r := range records {
		if err := l.writer.Store(l.storing, r); err != nil {
			return end, &writerError{fmt.Errorf("cannot store effects: %w", err)}
		}
	}
	l.one = false
	if l.writer.Stored() > ends.Position {
		if l.packer.Tail, err = tailOf(l.writer.Last()); err != nil {
			return end, err
		}
		l.log.Info("the topic goes on further than it did: what another process had sent was stored", zap.Stringer("topic", l.packer.Tail.Last))
		return l.packer.Tail.Last, nil
	}
	l.packer.Tail = ends
	if !marks {
		end = ends.Last
	}
	return end, nil
}

// firstOf returns the first entry of the outbox that the topic does not have, or the first transaction; none when there is none.
// whole is false when the end of that transaction is missing.
func (l *loader) firstOf(ctx context.Context) (first []message.Entry, whole bool, err error) {
	if held := l.held.first(l.packer.Tail.Last, true); len(held) > 0 {
		return held, true, nil
	}
	for count := int64(readLeast); ; count *= 2 {
		found, err := l.redis.XRangeN(ctx, l.lane.Outbox(), "("+l.packer.Tail.Last.String(), "+", count).Result()
		if err != nil {
			return nil, false, fmt.Errorf("cannot read the outbox: %w", err)
		}
		entries, err := entriesOf(new(message.Joiner), found)
		if err != nil {
			return nil, false, err
		}
		if n := message.Cut(entries, true); n > 0 || int64(len(found)) < count {
			return entries[:n], n > 0 || len(found) == 0, nil
		}
	}
}

// flush stores what this process holds, with Off, and returns the end of what the topic has of the outbox, which was end.
func (l *loader) flush(ctx context.Context, end message.ID) (message.ID, error) {
	if err := l.forget(ctx); err != nil {
		return end, err
	}
	for {
		entries := l.held.first(l.packer.Tail.Last, l.one)
		if len(entries) == 0 {
			l.held.drop(message.ID{Ms: math.MaxUint64}) // the beginning of a transaction: Redis ended in the middle of it
			return end, nil
		}
		if err := l.storeOne(entries); err != nil {
			return end, err
		}
		l.held.drop(l.packer.Tail.Last)
		end = l.packer.Tail.Last
	}
}

// forget drops what this process holds and the topic has, or is past.
func (l *loader) forget(ctx context.Context) error {
	if n, last := l.held.drop(l.packer.Tail.Last); n > 0 && !last {
		return l.lose(ctx, int64(n)) // another process has stored later ones meanwhile
	}
	return nil
}

// fits reports what is wrong with the state of another zone, or of a newer Sonic.
func (l *loader) fits(state lane.State) error {
	switch {
	case state.Layout > lane.Layout:
		return fmt.Errorf("%w: a newer version of Sonic has written its state, in layout %d, and this one knows %d: run the newer version", ErrState, state.Layout, lane.Layout)
	case state.Zone != "" && state.Zone != l.cfg.Zone:
		return fmt.Errorf("%w: it holds the state of zone %q, and this is zone %q: give the right redis.url or zone", ErrState, state.Zone, l.cfg.Zone)
	default:
		return nil
	}
}

// again reads the topic's end. When it is not where this writer left it, another writer has the topic.
func (l *loader) again(ctx context.Context) error {
	last, err := l.client.Last(ctx, l.writer.Topic())
	if err != nil {
		return fmt.Errorf("cannot read the end of the topic: %w", err)
	}
	t, err := tailOf(last)
	if err != nil {
		return err
	}
	if t.Position > l.packer.Tail.Position {
		return &writerError{fmt.Errorf("another process has stored effects up to %s", t.Last)}
	}
	return nil
}

// early is how long before the clock of an effect its message may have been published: that clock may be ahead of the publisher's.
const early = time.Minute

// recover applies what the topic has behind the effect from, which Redis has lost.
func (l *loader) recover(ctx context.Context, from message.ID, epoch int64) error {
	missing := from.IsZero() // it has no stream at all: what it has lost began before the topic, perhaps
	var err error
	if !missing {
		position := messaging.Earliest()
		if from.Ms > 0 { // else it was filled by a bootstrap from a zone that had nothing of this one
			position = messaging.AtTime(time.UnixMilli(int64(from.Ms)).Add(-early))
		}
		missing, err = l.replay(ctx, position, from, epoch)
	}
	if err == nil && missing && !from.IsZero() {
		missing, err = l.replay(ctx, messaging.Earliest(), from, epoch)
	}
	switch {
	case err != nil || !missing:
	case from.IsZero() && !l.cfg.Alone:
		err = fmt.Errorf("%w: it is empty, and the topic has effects of this zone: fill it from another zone by sonic -bootstrap ZONE", ErrState)
	case l.cfg.Alone:
		l.log.Error("what this Redis has lost cannot be had from the topic: going on without it, for there is no other zone", zap.Stringer("since", from))
	default:
		err = fmt.Errorf("%w: it is older than the topic, and the topic does not have all any more that it has lost since %s: restore a newer copy of this Redis,"+
			" and give the namespace a longer retention", ErrState, from)
	}
	return err
}

// replay applies the topic's messages from position on that are behind from. missing says that what follows from is not among them.
func (l *loader) replay(ctx context.Context, position messaging.Position, from message.ID, epoch int64) (missing bool, err error) {
	r, err := l.client.Reader(ctx, messaging.ReaderConfig{Topic: l.writer.Topic(), Name: "sonic", From: &position})
	if err != nil {
		return false, fmt.Errorf("cannot read the own topic: %w", err)
	}
	defer func() { _ = r.Close(context.WithoutCancel(ctx)) }()
	n := int64(0)
	_, err = r.ReadToEnd(ctx, func(ctx context.Context, d *messaging.Delivery) error {
		h, err := message.ParseHeader(d.Properties)
		if err != nil || missing || h.Last.Compare(from) <= 0 {
			return err
		}
		if h.Prev.Compare(from) > 0 {
			missing = true
			return nil
		}
		result, err := l.lane.Apply(ctx, h, d.Payload, string(d.ID.Bytes()))
		if err != nil {
			return fmt.Errorf("cannot apply own effects: %w", err)
		}
		if result.Status == lane.Gap {
			missing = true
			return nil
		}
		n += result.Applied
		if h.Part == h.Parts {
			from = h.Last
		}
		return nil
	})
	if err == nil && !missing && from.Compare(l.packer.Tail.Last) < 0 {
		missing = true
	}
	if !missing && err == nil {
		l.log.Info("applied what this Redis had lost", zap.Int64("effects", n), zap.Int64("epoch", epoch))
	}
	return missing, err
}
