package apply

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/sonic/primaries"
	"github.com/aviaryhq/aviary/internal/sonic/redislib"
	"github.com/aviaryhq/aviary/internal/sonic/script"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// recover has each primary that is opened and not ready recover. It tries again when it is called
// again.
func (a *ClusterApplier) recover(ctx context.Context) {
	m := a.primaries.Map()
	if m == nil {
		return
	}
	var running sync.WaitGroup
	for _, p := range m.Primaries() {
		running.Go(func() {
			if err := a.recoverPrimary(ctx, p.Address, primaries.SlotsOf(m, p.Address)); err != nil && ctx.Err() == nil {
				a.log.Warn("cannot restore the effects that a primary may have lost", zap.String("address", p.Address), zap.Error(err))
			}
		})
	}
	running.Wait()
}

// recoverPrimary applies to a primary, if it is not ready, all that the topic has behind the marker
// of the primary: the zone's appliers have applied it before, and the primary may have lost it. Its
// own effects come first, see outbox. Any process of the zone may do this, and several at once:
// what is there is passed over.
//
// It uses no other primary, so that one which cannot be reached does no harm.
func (a *ClusterApplier) recoverPrimary(ctx context.Context, address string, slots []int) error {
	db := a.primaries.At(address)
	looking, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	state, err := redislib.LookPrimary(looking, db)
	if err != nil {
		a.primaries.Refresh()
		return nil // who opens it reports that it cannot be reached
	}
	if !slices.Contains(state.Recovering, a.cfg.Origin) || slices.Contains(state.Recovering, a.cfg.Zone) {
		return nil
	}
	marker, err := primaries.ReadRecovery(ctx, db, slots, a.cfg.Origin)
	if err != nil {
		return err
	}
	began, n := time.Now(), 0
	c, elsewhere := chainFrom(marker), map[int]bool{}
	if err := a.readAgain(ctx, string(marker.Message.Bytes()), nil, a.inOrder(func(ctx context.Context, d *messaging.Delivery, h *wire.Header) error {
		n++
		return a.applyTo(ctx, db, d, h, &c, elsewhere)
	})); err != nil {
		return err
	}
	ready, err := redislib.Recovered(ctx, db, a.cfg.Origin, state.Opening)
	if err != nil {
		return err
	}
	a.log.Info("restored the effects that a primary may have lost", zap.String("address", address), zap.Int("messages", n),
		zap.Duration("after", time.Since(began)), zap.Bool("ready", ready))
	return nil
}

// applyTo applies to one primary those effects of a message that are of its slots. elsewhere are
// slots of which the primary has said that another one has them; applyTo adds to it.
func (a *ClusterApplier) applyTo(ctx context.Context, db *redis.Client, d *messaging.Delivery, h *wire.Header, c *chain, elsewhere map[int]bool) error {
	payload, whole, err := c.next(d, h)
	if err != nil || !whole {
		return err
	}
	calls, _, err := slotCalls(h, payload, string(d.ID.Bytes()), true)
	if err != nil {
		return cannotApply(d, h, err)
	}
	pipe := db.Pipeline()
	var sent []*redis.Cmd
	var slots []int
	for _, call := range calls {
		if elsewhere[call.Slot] {
			continue
		}
		slots = append(slots, call.Slot)
		sent = append(sent, pipe.Do(ctx, call.Command()...))
	}
	script.SetErrors(pipe.Exec(ctx))
	for i, cmd := range sent {
		result, err := redislib.ApplyResult(cmd.Result())
		if redislib.Moved(err) {
			elsewhere[slots[i]] = true
			continue
		}
		if err != nil {
			return fmt.Errorf("message %s of %s: %w", d.ID, d.Topic, err)
		}
		if result.Status == redislib.Gap {
			return &gapError{result.Cursor}
		}
	}
	c.add(h)
	return nil
}
