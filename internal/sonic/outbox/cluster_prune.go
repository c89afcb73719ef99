package outbox

import (
	"cmp"
	"context"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/sonic/primaries"
	"github.com/aviaryhq/aviary/internal/sonic/redislib"
	"github.com/aviaryhq/aviary/internal/sonic/script"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
	"github.com/aviaryhq/aviary/pkg/backoff"
)

// Once per pruneWait, versions of pruneSlots slots of each primary are pruned, in steps of
// pruneSlotCount versions, so that Redis can serve clients in between. Most slots take one step.
const (
	pruneWait      = 100 * time.Millisecond
	pruneSlots     = 20
	pruneSlotCount = 100
)

// pruning are the slots of a primary that are left of a round.
type pruning struct {
	slots   []int
	cursors map[int]string // of slots that have begun
}

// prune removes versions that no zone needs any more, slot by slot.
func (o *clusterOwner) prune(ctx context.Context) error {
	byAddress := map[string]*pruning{}
	for backoff.Sleep(ctx, pruneWait) {
		m := o.cluster.Map()
		if m == nil || o.cfg.Horizon().IsZero() {
			continue
		}
		for _, p := range m.Primaries() {
			left := byAddress[p.Address]
			if left == nil || len(left.slots) == 0 {
				left = &pruning{primaries.SlotsOf(m, p.Address), map[int]string{}}
				byAddress[p.Address] = left
			}
			if err := left.step(ctx, o.cluster.At(p.Address), o.cfg.Horizon()); err != nil && ctx.Err() == nil {
				o.log.Debug("cannot prune versions", zap.String("primary", p.Address), zap.Error(err)) // its reader warns
			}
		}
	}
	return nil
}

// step makes a step in each of the next slots. Those that have more versions stay the next ones.
func (p *pruning) step(ctx context.Context, db *redis.Client, horizon wire.ID) error {
	slots := p.slots[:min(pruneSlots, len(p.slots))]
	replies := make([]*redis.Cmd, len(slots))
	script.SetErrors(db.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for i, slot := range slots {
			replies[i] = pipe.Do(ctx, redislib.PruneSlot(slot, cmp.Or(p.cursors[slot], "0"), pruneSlotCount, horizon)...)
		}
		return nil
	}))
	var more []int
	for i, slot := range slots {
		next, err := redislib.PrunedSlot(replies[i])
		if err != nil && !primaries.Moving(err) {
			return err
		}
		delete(p.cursors, slot)
		if err == nil && next != "0" {
			p.cursors[slot], more = next, append(more, slot)
		}
	}
	p.slots = p.slots[len(slots)-len(more):]
	copy(p.slots, more)
	return nil
}
