package apply

import (
	"context"
	"errors"
	"time"

	"github.com/aviaryhq/aviary/internal/sonic/redislib"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// reachEvery is how often the cursor of an origin with a Redis Cluster is moved, and how often this
// zone's primaries are marked if it has a Redis Cluster.
const reachEvery = time.Second

// slotState is the state of applying the messages of an origin that has a Redis Cluster.
type slotState struct {
	parts wire.PartJoiner
	// epoch is that of this Redis when the cursor was read. All messages behind the cursor are applied
	// since. 0: some may be missing.
	epoch   int64
	reached time.Time // when the cursor was moved
}

// applySlots applies a message with the effects of slots. Each slot has a chain of its own, so a
// message does not show whether all before it are applied: this Redis may have come back without
// effects of slots that this message does not have. So the cursor is moved only if Redis was not
// opened again since the messages behind the cursor were applied.
func (a *Applier) applySlots(ctx context.Context, d *messaging.Delivery, h *wire.Header) error {
	if a.slots.epoch == 0 {
		if err := a.catchUp(ctx, d); err != nil {
			return err
		}
	}
	err := a.applySlotsAgain(ctx, d, h, &a.slots, false)
	if gap := (*slotGap)(nil); errors.As(err, &gap) || errors.Is(err, wire.ErrPartsMissing) {
		if gap != nil {
			a.logGap(h, gap.at)
		}
		if err := a.catchUp(ctx, d); err != nil {
			return err
		}
		err = a.applySlotsAgain(ctx, d, h, &a.slots, true)
	}
	if redislib.Older(err) {
		a.slots.epoch = 0
	}
	return err
}

// catchUp applies the messages between the cursor and d.
func (a *Applier) catchUp(ctx context.Context, d *messaging.Delivery) error {
	state, err := a.library.ReadState(ctx)
	if err != nil {
		return err
	}
	slots := slotState{epoch: state.Epoch}
	if err := a.readAgain(ctx, d, state.Cursors[a.cfg.Origin].Message, func(ctx context.Context, missing *messaging.Delivery) error {
		h, err := a.readHeader(ctx, missing)
		if h == nil {
			return err
		}
		return a.applySlotsAgain(ctx, missing, h, &slots, true)
	}); err != nil {
		return err
	}
	a.slots = slots
	return nil
}

// slotGap says that effects of a slot are missing.
type slotGap struct{ at wire.ID }

func (g *slotGap) Error() string { return "effects of a slot are missing after " + g.at.String() }

// applySlotsAgain applies a message. Its error is a slotGap if effects are missing before it, or, if
// final, that of reportGap.
func (a *Applier) applySlotsAgain(ctx context.Context, d *messaging.Delivery, h *wire.Header, slots *slotState, final bool) error {
	if !h.Slots {
		return errMixed
	}
	payload, whole, err := slots.parts.Add(h, d.Payload)
	if errors.Is(err, wire.ErrPartsMissing) && !final {
		return err
	}
	if err != nil {
		return cannotApply(d, h, err)
	}
	if !whole {
		return nil
	}
	groups, err := wire.Groups(payload)
	if err != nil {
		return cannotApply(d, h, err)
	}
	results, err := a.library.ApplyGroups(ctx, h, groups, string(d.ID.Bytes()))
	if err == nil {
		err = a.countSlots(results)
	}
	if gap := (*slotGap)(nil); errors.As(err, &gap) && final {
		return a.reportGap(h, gap.at)
	}
	if redislib.Rejected(err) {
		return cannotApply(d, h, err)
	}
	if err != nil {
		return err
	}
	if len(groups) == 0 || time.Since(slots.reached) >= reachEvery {
		if err := a.library.Reached(ctx, a.cfg.Origin, slots.epoch, reachedBy(h), string(d.ID.Bytes()), h.ReachedIDs()); err != nil {
			return err
		}
		slots.reached = time.Now()
	}
	a.recordApplied(d, h)
	return nil
}

// errMixed says that a zone has had one Redis before, and messages of that time are behind the
// cursor.
var errMixed = errors.New("the topic has messages of one Redis and of a Redis Cluster: use a new topic for the Redis Cluster")

// countSlots counts what became of effects. It returns a slotGap if effects are missing.
func (p *progress) countSlots(results []redislib.Result) error {
	var gap *slotGap
	for _, r := range results {
		if r.Status == redislib.Gap {
			if gap == nil || r.Cursor.Compare(gap.at) < 0 {
				gap = &slotGap{r.Cursor}
			}
			continue
		}
		p.metrics.countOutcomes(p.cfg.Origin, r)
	}
	if gap != nil {
		return gap
	}
	return nil
}
