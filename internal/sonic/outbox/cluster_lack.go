package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/aviaryhq/aviary/internal/sonic/primaries"
	"github.com/aviaryhq/aviary/internal/sonic/redislib"
	"github.com/aviaryhq/aviary/internal/sonic/script"
)

// errLacks says that a primary that was ready has begun to recover.
var errLacks = errors.New("a slot came from a primary that had not recovered")

// markLacks marks all slots of the primary, which is to recover: the mark names the messages behind
// which effects of each zone may be missing. A slot may move before the primary has recovered: its
// new primary finds the mark. Slots of before may have moved since the primary lost effects.
func (r *primaryReader) markLacks(ctx context.Context, before []int) error {
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
	missing, err := r.library.MarkRecovery(ctx, slices.Compact(all), markers)
	if err != nil {
		return err
	}
	for _, slot := range missing {
		if err := r.markLacksElsewhere(ctx, slot, markers); err != nil {
			return fmt.Errorf("slot %d: %w", slot, err)
		}
	}
	return nil
}

// markLacksElsewhere marks a slot that moves, or has moved, at the primary that it moves to.
func (r *primaryReader) markLacksElsewhere(ctx context.Context, slot int, markers map[string]string) error {
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
