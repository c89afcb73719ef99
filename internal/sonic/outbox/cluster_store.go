package outbox

import (
	"context"
	"maps"
	"math"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/sonic/primaries"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
)

// takeOver begins behind the end of the topic.
func (o *clusterOwner) takeOver(ctx context.Context) error {
	if err := o.confirmEnd(ctx); err != nil {
		return err
	}
	o.packer.Tail.Epoch++ // of the messages of this owner
	o.recordLast()
	return nil
}

// recordLast records the last message of the topic.
func (o *clusterOwner) recordLast() {
	o.recordStored(o.packer.Tail)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lastStored = primaries.Marker{Message: o.writer.LastID(), Watermark: o.packer.Tail.Watermark}
}

// confirmEnd makes sure that the end of the topic is final before a primary is read. A message of
// the previous owner may be stored after this writer has read the end. So confirmEnd first stores a
// message without groups: nothing older can follow it.
func (o *clusterOwner) confirmEnd(ctx context.Context) error {
	for {
		if err := o.storeGroups(nil, o.packer.Tail.Watermark); err != nil {
			return err
		}
		last := o.writer.Last()
		if last == nil && !o.writer.LastID().IsZero() || last != nil && o.writer.LastID() != last.ID {
			return nil
		}
		// The broker took the message for a duplicate: it has stored what another process had sent, and
		// the writer has read the end again.
		var err error
		if o.packer.Tail, err = o.tail(ctx, last); err != nil {
			return err
		}
		o.packer.Tail.Position = max(o.packer.Tail.Position, o.writer.Stored())
		o.log.Info("the topic has new messages: the broker stored messages of the previous owner after this process had read the end of the topic", zap.Int64("position", o.packer.Tail.Position))
	}
}

// store stores what the readers put into the queue, one message after the other. While it stores a
// message, effects of the next one gather. If none came for a second, it stores a message without
// effects: other zones see then that there are none.
func (o *clusterOwner) store(ctx context.Context) error {
	timer := time.NewTimer(beatEvery)
	defer timer.Stop()
	for {
		beat := false
		select {
		case <-o.queue.filled:
		case <-timer.C:
			beat = true
		case <-ctx.Done():
			return nil
		}
		for ctx.Err() == nil {
			stored, err := o.storeNext(beat)
			if err != nil {
				return err
			}
			if !stored {
				break
			}
			beat = false
			timer.Reset(beatEvery)
		}
	}
}

// storeNext stores the next message. Without beat it stores none if there are no effects.
func (o *clusterOwner) storeNext(beat bool) (stored bool, err error) {
	o.storing.Lock()
	defer o.storing.Unlock()
	items := o.queue.take()
	groups := groupsOf(items)
	for i := range items {
		if w := items[i].watermark; w.ms > 0 {
			o.watermarks[items[i].reader] = w
		}
	}
	if len(groups) == 0 && !beat {
		return false, nil
	}
	if err := o.storeGroups(groups, max(o.packer.Tail.Watermark, o.watermark())); err != nil {
		return false, err
	}
	o.recordLast()
	ids := make(map[int]wire.ID, len(groups))
	for i := range groups {
		ids[groups[i].Slot] = groups[i].Last
	}
	o.shipped.add(ids)
	return true, nil
}

// storeGroups stores groups as one message, or in parts if it is too large.
func (o *clusterOwner) storeGroups(groups []wire.Group, watermark uint64) error {
	return o.storeMessages(o.packer.PackGroups(groups, watermark, o.cfg.Reached()))
}

// groupsOf returns the groups of items, those of the same slot as one.
func groupsOf(items []clusterItem) (groups []wire.Group) {
	at := make(map[int]int, len(items))
	groups = make([]wire.Group, 0, len(items))
	for i := range items {
		g := items[i].group
		if len(g.Entries) == 0 {
			continue
		}
		if j, has := at[g.Slot]; has {
			groups[j].Entries = append(groups[j].Entries, g.Entries...)
			groups[j].Last = g.Last
			continue
		}
		at[g.Slot] = len(groups)
		groups = append(groups, g)
	}
	return groups
}

// watermark returns the time before which all effects of the zone are in the topic, once the next
// message is stored. It is 0 if that is not known: all primaries must have been read since the map
// changed last, because streams that have moved are new to their primaries.
func (o *clusterOwner) watermark() uint64 {
	m := o.cluster.Map()
	maps.DeleteFunc(o.watermarks, func(_ *primaryReader, w primaryWatermark) bool { return w.of != m })
	if len(o.watermarks) == 0 || len(o.watermarks) < len(m.Primaries()) {
		return 0
	}
	least := uint64(math.MaxUint64)
	for _, w := range o.watermarks {
		least = min(least, w.ms)
	}
	return least
}
