package outbox

import (
	"context"
	"errors"
	"fmt"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/sonic/redislib"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// readState returns the state of Redis. It returns an error for the state of another zone or of a newer
// Sonic.
func (o *owner) readState(ctx context.Context) (redislib.State, error) {
	state, err := o.library.ReadState(ctx)
	switch {
	case err != nil:
		err = fmt.Errorf("cannot read Sonic's state in Redis: %w", err)
	case state.Layout > redislib.Layout:
		err = fmt.Errorf("%w: a newer version of Sonic has written its state, in layout %d, and this one knows %d: run the newer version", ErrState, state.Layout, redislib.Layout)
	case state.Zone != "" && state.Zone != o.cfg.Zone:
		err = fmt.Errorf("%w: it holds the state of zone %q, and this is zone %q: give the right redis.url or zone", ErrState, state.Zone, o.cfg.Zone)
	}
	return state, err
}

// updateLibrary makes an open Redis use this version of the library. The previous owner may have
// opened another version, which may lack functions or behave differently.
func (o *owner) updateLibrary(ctx context.Context) error {
	state, err := o.readState(ctx)
	if err == nil && state.Opened {
		err = o.library.Load(ctx)
	}
	if redislib.NoMemory(err) {
		o.log.Error("cannot load this version's functions, because Redis has reached its maxmemory: Redis keeps the functions of the previous version", zap.Error(err))
		return nil
	}
	return err
}

// prepare compares the state of Redis with the topic, and opens Redis for writes. If Redis came
// back with older data, prepare first applies the missing effects from the topic.
func (o *owner) prepare(ctx context.Context) error {
	state, err := o.readState(ctx)
	if err != nil {
		return err
	}
	if o.prepared {
		// This process may have been suspended for a while. Another process may own the topic now,
		// and this one may not know that yet.
		if err := o.checkOwnership(ctx); err != nil {
			return err
		}
	}
	o.followShipped(state.Shipped)
	if state, err = o.settleHistory(ctx, state); err != nil {
		return err
	}
	end := o.packer.Tail.Last
	if !state.Opened && o.single && !state.Last.IsZero() {
		before := end
		if end, err = o.confirmEnd(ctx, state.Last); err != nil {
			return err
		}
		o.followShipped(state.Shipped)
		if before != o.packer.Tail.Last {
			if state, err = o.settleHistory(ctx, state); err != nil {
				return err
			}
		}
	}
	epoch := max(state.Epoch, o.packer.Tail.Epoch)
	if !state.Opened {
		epoch++
	}
	if state.Last.Compare(end) < 0 {
		o.log.Warn("this Redis is older than the topic: restoring its lost effects from the topic", zap.Stringer("redis", state.Last), zap.Stringer("topic", o.packer.Tail.Last), zap.Int64("epoch", epoch))
		if err := o.recover(ctx, state.Last, epoch); err != nil {
			return err
		}
		state.Last = o.packer.Tail.Last
	}
	if !o.prepared || !state.Opened {
		floor := wire.Max(wire.AtPosition(o.packer.Tail.Position), o.packer.Tail.Last)
		if state, err = o.library.Open(ctx, state, epoch, floor); err != nil {
			if redislib.Fatal(err) {
				err = fmt.Errorf("%w: %w", ErrState, err)
			}
			return fmt.Errorf("cannot open Redis for writes: %w", err)
		}
		o.log.Info("opened Redis for writes", zap.Bool("ready", state.Ready), zap.Int64("epoch", epoch), zap.Stringer("floor", floor))
	}
	o.prepared, o.packer.Tail.Epoch = true, epoch
	return nil
}

// settleHistory checks the history of Redis, and returns its state. If the history differs, it
// closes Redis for writes and marks it, and returns [ErrHistory]. An operator accepts the history by
// sonic -repair. Then settleHistory continues without the effects that one of them lacks: -repair
// compares all keys afterwards.
func (o *owner) settleHistory(ctx context.Context, state redislib.State) (redislib.State, error) {
	end := o.packer.Tail.Last
	if state.Opened && state.Last.Compare(end) < 0 {
		// A former primary that still takes writes must first apply what its successor has shipped.
		err := o.library.Close(ctx)
		if err == nil {
			state, err = o.library.ReadState(ctx)
		}
		if err != nil {
			return state, fmt.Errorf("cannot close Redis for writes: %w", err)
		}
	}
	switch err := o.checkHistory(ctx, state); {
	case errors.Is(err, ErrHistory) && state.History == redislib.HistoryAccepted:
		o.log.Warn("keeping the history of this Redis, because sonic -repair ran", zap.Error(err))
	case errors.Is(err, ErrHistory):
		if err := o.library.RejectHistory(ctx); err != nil {
			return state, fmt.Errorf("cannot close Redis for writes: %w", err)
		}
		err = fmt.Errorf("%w: run sonic -repair to keep what it holds, or empty it and run sonic -bootstrap ZONE", err)
		if state.History == "" { // health logs the first error of an outage only
			o.log.Error("refusing the writes of clients and publishing no effects", zap.Error(err))
		}
		return state, err
	case err != nil:
		return state, err
	}
	if end.Compare(state.Shipped) > 0 { // from now on the histories are equal up to the end of the topic
		if err := o.library.Shipped(ctx, end); err != nil {
			return state, fmt.Errorf("cannot trim the outbox: %w", err)
		}
		state.Shipped = end
	}
	return state, nil
}

// followShipped makes the next message follow the effect shipped, which the topic once had. If the
// topic has lost its end, zones that had not read that end yet then detect a gap.
func (o *owner) followShipped(shipped wire.ID) {
	if shipped.Compare(o.packer.Tail.Last) > 0 {
		o.log.Warn("the newest messages of the topic are gone, or the topic was deleted and created again: zones that had not read these messages miss effects",
			zap.Stringer("topic", o.packer.Tail.Last), zap.Stringer("shipped", shipped))
		o.packer.Tail.Last = shipped
	}
}

// confirmEnd makes sure that the end of the topic is final before Redis is opened, and returns it.
// A message of the previous owner may be stored after this writer has read the end. If Redis has
// lost the effects of that message, it would continue without them. So confirmEnd first stores a
// message of this writer: the first entry of the outbox, or a marker without effects, at a position
// that is not above any message that the previous owner may have sent. If the broker stores it, no
// older message can follow. If the broker drops it as a duplicate, confirmEnd reads the end again.
// The returned end does not include a marker.
func (o *owner) confirmEnd(ctx context.Context, last wire.ID) (end wire.ID, err error) {
	end = o.packer.Tail.Last
	first, whole, err := o.firstUnstored(ctx)
	if err != nil || !whole {
		return end, err
	}
	marker := len(first) == 0 // the outbox is empty: store a marker
	if marker {
		position, err := last.Position()
		if err != nil {
			return end, err
		}
		first = []wire.Entry{{ID: wire.AtPosition(max(position, o.packer.Tail.Position) + 1)}}
	}
	if err := o.storeOne(first); err != nil {
		return end, err
	}
	if o.writer.Stored() > o.packer.Tail.Position {
		t, err := o.tail(ctx, o.writer.Last())
		if err != nil {
			return end, &writerError{err} // the end is unknown
		}
		o.packer.Tail = t
		o.log.Info("the topic has new messages: the broker stored messages of the previous owner after this process had read the end of the topic", zap.Stringer("topic", t.Last))
		return t.Last, nil
	}
	if !marker {
		end = o.packer.Tail.Last
	}
	return end, nil
}

// firstUnstored returns the first entry or transaction of the outbox that the topic does not have,
// or none. whole is false if the end of that transaction is missing.
func (o *owner) firstUnstored(ctx context.Context) (first []wire.Entry, whole bool, err error) {
	var f firstUnit
	entries, last, err := o.readRange(ctx, o.packer.Tail.Last, "+", f.find)
	if f.size == 0 {
		f.size = wire.Cut(entries, true)
	}
	return entries[:f.size], f.size > 0 || last == o.packer.Tail.Last, err
}

// firstUnit finds the end of the first entry or transaction of a list that grows. It looks again once
// the list is twice as long: a client's transaction may have millions of entries.
type firstUnit struct{ size, searched int }

// find reports whether the end is in entries.
func (f *firstUnit) find(entries []wire.Entry) bool {
	if len(entries) >= 2*f.searched {
		f.size, f.searched = wire.Cut(entries, true), len(entries)
	}
	return f.size > 0
}

// checkOwnership reads the end of the topic again. If it is after this writer's last message,
// another process owns the topic.
func (o *owner) checkOwnership(ctx context.Context) error {
	last, err := o.client.Last(ctx, o.writer.Topic())
	if err != nil {
		return fmt.Errorf("cannot read the end of the topic: %w", err)
	}
	t, err := o.tail(ctx, last)
	if err != nil {
		return err
	}
	if t.Position > o.packer.Tail.Position {
		return &writerError{fmt.Errorf("another process has stored effects up to %s", t.Last)}
	}
	return nil
}

// recover applies the effects of the topic after from, which Redis has lost. If Redis has no stream at
// all, it may have lost effects from before the beginning of the topic.
func (o *owner) recover(ctx context.Context, from wire.ID, epoch int64) error {
	if !from.IsZero() {
		for _, begin := range []wire.ID{from, {}} { // the beginning: the clock of effects may be far ahead
			if err := o.replay(ctx, begin, from, epoch); !errors.Is(err, errMissing) {
				return err
			}
		}
	}
	if o.cfg.Alone {
		o.log.Error("this Redis has lost effects that the topic no longer has: continuing without them, because there is no other zone", zap.Stringer("since", from))
		return nil
	}
	return fmt.Errorf("%w: it is older than the topic, and has lost effects since %s that the topic no longer has: restore a newer copy of this Redis,"+
		" and give the namespace a longer retention", ErrState, from)
}

// errMissing says that the topic does not have all effects.
var errMissing = errors.New("effects are missing in the topic")

// replay reads the topic from about the effect begin on, and applies the messages after the effect
// from. It returns errMissing if some effects after from are not in the topic.
func (o *owner) replay(ctx context.Context, begin, from wire.ID, epoch int64) error {
	n := int64(0)
	err := o.readTopic(ctx, begin, func(ctx context.Context, h *wire.Header, d *messaging.Delivery) error {
		switch {
		case h.Last.Compare(from) <= 0:
			return nil
		case h.Prev.Compare(from) > 0:
			return errMissing
		}
		result, err := o.library.Apply(ctx, h, d.Payload, string(d.ID.Bytes()))
		switch {
		case err != nil:
			return fmt.Errorf("cannot apply the effects of this zone: %w", err)
		case result.Status == redislib.Gap:
			return errMissing
		case h.Part == h.Parts:
			from = h.Last
		}
		n += result.Applied
		return nil
	})
	if err == nil && from.Compare(o.packer.Tail.Last) < 0 {
		err = errMissing
	}
	if err == nil {
		o.log.Info("restored the effects that this Redis had lost", zap.Int64("effects", n), zap.Int64("epoch", epoch))
	}
	return err
}
