package redislib

import (
	"context"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/aviaryhq/aviary/internal/sonic/script"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
)

// ApplyGroups applies the groups of a message of a zone with a Redis Cluster to a zone with one
// Redis, where each slot of the other zone has a cursor. The results are in the order of groups.
// After an error, any of them may be applied.
func (l *Library) ApplyGroups(ctx context.Context, h *wire.Header, groups []wire.PackedGroup, id string) ([]Result, error) {
	if len(groups) == 0 {
		return nil, nil
	}
	pipe := l.redis.Pipeline()
	cmds := make([]*redis.Cmd, len(groups))
	for i, g := range groups {
		origin := h.Origin + "/" + strconv.Itoa(g.Slot)
		cmds[i] = pipe.Do(ctx, append([]any{"FCALL", ApplyFunction, 1, l.outbox}, ApplyArgs(origin, h.Epoch, false, g, id)...)...)
	}
	script.SetErrors(pipe.Exec(ctx))
	results := make([]Result, len(groups))
	for i, cmd := range cmds {
		var err error
		if results[i], err = ApplyResult(cmd.Result()); err != nil {
			return nil, err
		}
	}
	return results, nil
}

// ApplyFunction is the function that applies effects.
const ApplyFunction = "sonic_apply"

// ApplyArgs returns the arguments of ApplyFunction, behind the stream, for the effects of a slot.
// recovers says that a primary that is not ready may have lost them.
func ApplyArgs(origin string, epoch int64, recovers bool, g wire.PackedGroup, id string) []any {
	text := strconv.FormatInt(epoch, 10)
	if recovers {
		text = "r" + text
	}
	return []any{origin, text, g.Prev.String(), g.Last.String(), "", id, g.Entries}
}

// ApplyResult reads the reply of ApplyFunction.
func ApplyResult(reply any, err error) (Result, error) {
	v := ValuesOf(reply, err)
	r := Result{Status: v.Text(), Cursor: v.ID(), CursorMessage: v.Text()}
	for _, n := range []*int64{&r.Entries, &r.Applied, &r.Lost, &r.Dead, &r.Diverged, &r.Wanted, &r.ClockAhead} {
		*n = v.Number()
	}
	return r, v.Err()
}

// Reached sets the cursor of an origin with a Redis Cluster: everything before it is applied, up to
// the message of that id. others are the origin's own cursors of other zones. Reached fails with
// [Older] if this Redis does not have this epoch any more.
func (l *Library) Reached(ctx context.Context, origin string, epoch int64, cursor wire.ID, id string, others map[string]wire.ID) error {
	args := []any{origin, epoch, cursor.String(), id}
	for zone, at := range others {
		args = append(args, zone, at.String())
	}
	return l.call(ctx, "sonic_reached", args...).Err()
}

// Recovered says that all that the topic of a zone has is applied to a primary. It fails with
// [NotReady] if the recovery has begun again meanwhile. ready says that the primary takes writes
// now.
func Recovered(ctx context.Context, db script.Doer, zone, opening string) (ready bool, err error) {
	n, err := db.Do(ctx, "FCALL", "sonic_recovered", 0, zone, opening).Int()
	return n == 1, err
}

// Moved reports whether a primary refused a call because another one has the slot.
func Moved(err error) bool { return script.IsReply(err, "MOVED ") }
