package outbox

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/sonic/primaries"
	"github.com/aviaryhq/aviary/internal/sonic/redislib"
	"github.com/aviaryhq/aviary/pkg/backoff"
)

// Once per pruneEvery, pruneSteps steps of pruneSlotCount versions are made at each primary,
// pruneAtOnce at a time with a pause of pruneStep, so that Redis can serve clients in between. Most
// slots take one step.
const (
	pruneEvery     = time.Second
	pruneSteps     = 200
	pruneAtOnce    = 20
	pruneSlotCount = 100
)

// prune removes versions that no zone needs any more, slot by slot.
func (o *clusterOwner) prune(ctx context.Context) error {
	begun := map[string]int{}   // by address: the slot to go on with
	cursors := map[int]string{} // by slot, of those that took more than one step
	for backoff.Sleep(ctx, pruneEvery) {
		m := o.cluster.Map()
		if m == nil || o.cfg.Horizon().IsZero() {
			continue
		}
		for _, p := range m.Primaries() {
			if err := o.pruneSome(ctx, p.Address, primaries.SlotsOf(m, p.Address), begun, cursors); err != nil && ctx.Err() == nil {
				o.log.Debug("cannot prune versions", zap.String("primary", p.Address), zap.Error(err)) // its reader warns
			}
		}
	}
	return nil
}

// pruneSome makes pruneSteps steps through the slots of a primary.
func (o *clusterOwner) pruneSome(ctx context.Context, address string, slots []int, begun map[string]int, cursors map[int]string) error {
	at := 0
	for at < len(slots) && slots[at] < begun[address] {
		at++
	}
	horizon := o.cfg.Horizon()
	for range pruneSteps / pruneAtOnce {
		if at >= len(slots) {
			begun[address] = 0
			return nil // the next round begins a second later
		}
		window := slots[at:min(at+pruneAtOnce, len(slots))]
		step := slices.DeleteFunc(slices.Clone(window), func(slot int) bool { return cursors[slot] == "" })
		if len(step) == 0 {
			step = window
		}
		var replies []*redis.Cmd
		_, err := o.cluster.At(address).Pipelined(ctx, func(p redis.Pipeliner) error {
			for _, slot := range step {
				replies = append(replies, p.Do(ctx, redislib.PruneSlot(slot, cmp.Or(cursors[slot], "0"), pruneSlotCount, horizon)...))
			}
			return nil
		})
		var refused redis.Error
		if err != nil && !errors.As(err, &refused) {
			return err
		}
		more := false
		for i, slot := range step {
			next, err := redislib.PrunedSlot(replies[i])
			if err != nil && !primaries.Moving(err) {
				return err
			}
			delete(cursors, slot)
			if err == nil && next != "0" {
				cursors[slot], more = next, true
			}
		}
		if !more {
			at += len(window)
		}
		if at < len(slots) {
			begun[address] = slots[at]
		}
		if !backoff.Sleep(ctx, pruneStep) {
			return nil
		}
	}
	return nil
}
