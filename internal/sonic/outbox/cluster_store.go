package outbox

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/sonic/primaries"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// takeOver begins behind the end of the topic.
func (o *clusterOwner) takeOver(ctx context.Context) error {
	var err error
	if o.tail, err = o.end.tail(ctx, o.writer.Last()); err != nil {
		return err
	}
	if err := o.confirmEnd(ctx); err != nil {
		return err
	}
	o.mu.Lock()
	o.lastStored = primaries.Marker{Message: o.writer.LastID(), Watermark: o.tail.Watermark}
	o.mu.Unlock()
	o.tail.Epoch++ // of the messages of this owner
	o.ClusterShipper.mu.Lock()
	o.status = Status{Owner: true, Stored: o.tail.Last, Epoch: o.tail.Epoch}
	o.ClusterShipper.mu.Unlock()
	o.log.Info("took over the topic", zap.String("topic", o.writer.Topic()), zap.Stringer("stored", o.tail.Last))
	return nil
}

// confirmEnd makes sure that the end of the topic is final before a primary is read. A message of
// the previous owner may be stored after this writer has read the end. So confirmEnd first stores a
// message without groups: nothing older can follow it.
func (o *clusterOwner) confirmEnd(ctx context.Context) error {
	for {
		if err := o.storeMessage(nil, nil, o.tail.Watermark); err != nil {
			return err
		}
		last := o.writer.Last()
		if last == nil && !o.writer.LastID().IsZero() || last != nil && o.writer.LastID() != last.ID {
			return nil
		}
		// The broker took the message for a duplicate: it has stored what another process had sent, and
		// the writer has read the end again.
		var err error
		if o.tail, err = o.end.tail(ctx, last); err != nil {
			return err
		}
		o.tail.Position = max(o.tail.Position, o.writer.Stored())
		o.log.Info("the topic has new messages: the broker has stored what another process had sent", zap.Int64("position", o.tail.Position))
	}
}

// store stores what the readers put into the queue, one message after the other. While it stores a
// message, effects of the next one gather. It stores a message each second, also without effects:
// other zones see then that there are none.
func (o *clusterOwner) store(ctx context.Context) error {
	ticker := time.NewTicker(beatEvery)
	defer ticker.Stop()
	beats := false // since the last beat a message was stored
	for {
		beat := false
		select {
		case <-o.queue.filled:
		case <-ticker.C:
			beat, beats = !beats, false
		case <-ctx.Done():
			return nil
		}
		for ctx.Err() == nil {
			stored, err := o.storeNext(beat)
			if err != nil {
				return err
			}
			beats, beat = beats || stored, false
			if !stored {
				break
			}
		}
	}
}

// storeNext stores the next message. Without beat it stores none if there are no effects.
func (o *clusterOwner) storeNext(beat bool) (stored bool, err error) {
	o.storing.Lock()
	defer o.storing.Unlock()
	items := o.queue.take()
	groups, entries := groupsOf(items)
	for i := range items {
		if w := items[i].watermark; w.ms > 0 {
			o.watermarks[items[i].reader] = w
		}
	}
	if len(groups) == 0 && !beat {
		return false, nil
	}
	if err := o.storeMessage(groups, entries, max(o.tail.Watermark, o.watermark())); err != nil {
		return false, err
	}
	o.mu.Lock()
	o.lastStored = primaries.Marker{Message: o.writer.LastID(), Watermark: o.tail.Watermark}
	o.mu.Unlock()
	o.ClusterShipper.mu.Lock()
	o.status.Stored = o.tail.Last
	o.ClusterShipper.mu.Unlock()
	o.shipped.add(groups)
	return true, nil
}

// groupsOf joins groups of the same slot. It returns all entries, too.
func groupsOf(items []clusterItem) (groups []wire.Group, entries []wire.Entry) {
	at := make(map[int]int, len(items))
	groups, entries = make([]wire.Group, 0, len(items)), make([]wire.Entry, 0, len(items))
	for i := range items {
		g := items[i].group
		if len(g.Entries) == 0 {
			continue
		}
		entries = append(entries, g.Entries...)
		if j, has := at[g.Slot]; has {
			groups[j].Entries = append(groups[j].Entries, g.Entries...)
			groups[j].Last = g.Last
			continue
		}
		at[g.Slot] = len(groups)
		groups = append(groups, g)
	}
	return groups, entries
}

// watermark returns the time before which all effects of the zone are in the topic, once the next
// message is stored. It is 0 if that is not known: all primaries must have been read since the map
// changed last, because streams that have moved are new to their primaries.
func (o *clusterOwner) watermark() uint64 {
	m := o.cluster.Map()
	least, read := uint64(0), 0
	for r, w := range o.watermarks {
		if w.of != m {
			delete(o.watermarks, r)
			continue
		}
		if read++; read == 1 || w.ms < least {
			least = w.ms
		}
	}
	if read < len(m.Primaries()) {
		return 0
	}
	return least
}

// storeMessage stores groups as one message, or in parts if it is too large.
func (o *clusterOwner) storeMessage(groups []wire.Group, entries []wire.Entry, watermark uint64) error {
	records, ends := o.pack(groups, entries, watermark)
	began := time.Now()
	for _, r := range records {
		if err := o.writer.Store(o.storeContext, r); err != nil {
			return &writerError{fmt.Errorf("cannot store effects: %w", err)}
		}
	}
	o.metrics.stored(entries, records, time.Since(began))
	o.tail = ends
	return nil
}

// pack returns groups as the records of one message or of its parts, and the end of the topic after
// these are stored. Positions are counted. watermark is that of the last part: if this process ends
// before it is stored, the effects are not in the topic, and the next owner goes on from the part
// that is the last one then.
func (o *clusterOwner) pack(groups []wire.Group, entries []wire.Entry, watermark uint64) (records []*messaging.Record, ends wire.Tail) {
	payload, effects := wire.GroupsPayload(groups)
	ends = o.tail
	ends.Count += effects
	ends.Watermark = watermark
	for i := range entries {
		ends.Last = wire.Max(ends.Last, entries[i].ID)
	}
	h := wire.Header{
		Origin: o.cfg.Zone, Epoch: o.tail.Epoch, First: ends.Last, Last: ends.Last, Count: ends.Count,
		Parts: (len(payload) + wire.PartBytes - 1) / wire.PartBytes, Config: o.cfg.Config,
		Slots: true, Watermark: o.tail.Watermark, Reached: o.cfg.Reached(),
	}
	for i := range entries {
		if entries[i].ID.Compare(h.First) < 0 {
			h.First = entries[i].ID
		}
	}
	for h.Part = 1; h.Part <= h.Parts; h.Part++ {
		ends.Position++
		if h.Position = ends.Position; h.Part == h.Parts {
			h.Watermark = watermark
		}
		position, n := ends.Position, min(wire.PartBytes, len(payload))
		records = append(records, &messaging.Record{Payload: payload[:n], Properties: h.Properties(), SequenceID: &position})
		payload = payload[n:]
	}
	return records, ends
}
