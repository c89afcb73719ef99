package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/sonic/primaries"
	"github.com/aviaryhq/aviary/internal/sonic/redislib"
	"github.com/aviaryhq/aviary/internal/sonic/script"
	"github.com/aviaryhq/aviary/internal/sonic/topic"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// recover applies what the topic of the zone has, and the primary has lost. It was restarted, or has
// taken over from one whose last writes it did not get.
func (r *primaryReader) recover(ctx context.Context) error {
	// A message of what a former primary had may be on its way: it is to be in the topic before that is
	// read to its end. Nothing of it is in the queue any more.
	r.storing.Lock()
	count := r.packer.Tail.Count
	r.storing.Unlock()
	marker, err := primaries.ReadRecovery(ctx, r.library.Conn(), r.slots, r.cfg.Zone)
	if err != nil {
		return err
	}
	if count > 0 {
		from := messaging.AtMessage(marker.Message)
		if marker.IsZero() {
			if err := r.requireMarker(ctx); err != nil {
				return err
			}
			from = messaging.Earliest()
		}
		if err := r.restore(ctx, from); err != nil {
			return err
		}
	}
	if err := r.library.Recovered(ctx, r.cfg.Zone); err != nil {
		return fmt.Errorf("cannot open it: %w", err)
	}
	return nil
}

// requireMarker returns [ErrState] if no primary has a marker: the cluster was emptied.
func (r *primaryReader) requireMarker(ctx context.Context) error {
	for _, p := range r.known.Primaries() {
		m, err := primaries.ReadMarker(ctx, r.cluster.At(p.Address), primaries.SlotsOf(r.known, p.Address), r.cfg.Zone)
		if err != nil || !m.IsZero() {
			return err
		}
	}
	return fmt.Errorf("%w: it is empty, and the topic has effects of this zone: fill it from another zone by sonic -bootstrap ZONE", ErrState)
}

// errLost says that the topic does not have all that a primary has lost.
var errLost = fmt.Errorf("%w: it is older than the topic, and has lost effects that the topic no longer has:"+
	" restore a newer copy of this Redis, and give the namespace a longer retention", ErrState)

// restore applies the groups of the topic from a position on that are of slots of the primary.
func (r *primaryReader) restore(ctx context.Context, from messaging.Position) error {
	last, err := r.library.Last(ctx, r.slots)
	if err != nil {
		return fmt.Errorf("cannot read its outbox: %w", err)
	}
	var parts wire.PartJoiner
	restored, effects := map[int]wire.ID{}, int64(0)
	err = topic.Read(ctx, r.client, r.writer.Topic(), from, r.cfg.Zone, func(ctx context.Context, h *wire.Header, d *messaging.Delivery, err error) error {
		if err != nil || !h.Slots {
			return err
		}
		payload, whole, err := parts.Add(h, d.Payload)
		if errors.Is(err, wire.ErrPartsMissing) || err == nil && !whole {
			return nil // if its beginning is gone, or its end was not stored, its entries are in later messages
		}
		var groups []wire.PackedGroup
		if err == nil {
			groups, err = wire.Groups(payload)
		}
		if err != nil {
			return fmt.Errorf("message %s of %s: %w", d.ID, d.Topic, err)
		}
		for i := range groups {
			g := &groups[i]
			_, own := slices.BinarySearch(r.slots, g.Slot)
			switch {
			case !own || g.Last.Compare(last[g.Slot]) <= 0:
				continue
			case g.Prev.Compare(last[g.Slot]) > 0:
				return errLost
			}
			result, err := r.library.Restore(ctx, h.Epoch, g)
			if err != nil {
				return fmt.Errorf("cannot apply the effects of this zone: %w", err)
			}
			effects += result.Applied
			last[g.Slot], restored[g.Slot] = g.Last, g.Last
		}
		return nil
	})
	if err != nil {
		return err
	}
	left, err := reportSlots(ctx, r.library.Conn(), restored)
	if err == nil && len(left) > 0 {
		err = errors.New("slots moved during the recovery")
	}
	if err != nil {
		return fmt.Errorf("cannot trim its outbox: %w", err)
	}
	if len(restored) > 0 {
		r.log.Warn("a primary was older than the topic: restored its lost effects", zap.String("primary", r.primary.Address), zap.Int64("effects", effects), zap.Int("slots", len(restored)))
	}
	return nil
}

// errRecovers says that a primary that was ready has begun to recover.
var errRecovers = errors.New("a slot came from a primary that had not recovered")

// markMissing marks all slots of the primary, which has to recover, and those of before, which may have
// moved since the primary lost effects. The mark names the messages behind which effects of each zone
// may be missing. If a slot moves before the primary has recovered, its new primary finds the mark.
func (r *primaryReader) markMissing(ctx context.Context, before []int) error {
	markers := map[string]string{}
	for _, zone := range append([]string{r.cfg.Zone}, r.cfg.Library.Others...) {
		m, err := primaries.ReadRecovery(ctx, r.library.Conn(), r.slots, zone)
		if err != nil {
			return err
		}
		markers[zone] = m.Text()
	}
	all := slices.Concat(r.slots, before)
	slices.Sort(all)
	moved, err := r.library.MarkRecovery(ctx, slices.Compact(all), markers)
	if err != nil {
		return err
	}
	for _, slot := range moved {
		if err := r.markAtNewPrimary(ctx, slot, markers); err != nil {
			return fmt.Errorf("slot %d: %w", slot, err)
		}
	}
	return nil
}

// markAtNewPrimary marks a slot that moves, or has moved, at the primary that it moves to.
func (r *primaryReader) markAtNewPrimary(ctx context.Context, slot int, markers map[string]string) error {
	keys := script.SlotKeys(slot)
	fields := []any{"HSET", keys.Recovery, "", "moved"}
	for zone, marker := range markers {
		fields = append(fields, zone, marker)
	}
	err := r.library.Conn().Do(ctx, fields...).Err()
	words := strings.Fields(fmt.Sprint(err))
	if err == nil || len(words) != 3 || words[0] != "ASK" && words[0] != "MOVED" {
		return err
	}
	to := r.cluster.At(words[2])
	if words[0] == "ASK" { // when the slot has moved, Hold finds the mark
		_, err := to.Pipelined(ctx, func(p redis.Pipeliner) error {
			p.Do(ctx, "ASKING")
			p.Do(ctx, fields...)
			return nil
		})
		return err
	}
	if err := to.Do(ctx, fields...).Err(); err != nil {
		return err
	}
	_, err = redislib.Hold(ctx, to, []int{slot})
	return err
}
