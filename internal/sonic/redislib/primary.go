package redislib

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/aviaryhq/aviary/internal/sonic/cluster"
	"github.com/aviaryhq/aviary/internal/sonic/script"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
)

// Primary is the library of a primary of a Redis Cluster, in which each slot is a shard. It uses one
// connection: as long as that lasts the primary is not restarted, so what it has been sent still
// holds. It is not safe for concurrent use.
type Primary struct {
	cfg    Config
	conn   *redis.Conn
	reader string // the name under which it takes entries
}

// NewPrimary returns the library that conn leads to. It sends no request. Of cfg it uses the zones,
// the policies and the bytes of the bound, which is that of all streams of the primary together.
func NewPrimary(conn *redis.Conn, cfg Config) *Primary {
	return &Primary{cfg: cfg, conn: conn, reader: rand.Text()}
}

// PrimaryState is the state of the library of a primary. A restart, a failover and another version
// of the library make it not opened.
type PrimaryState struct {
	Opened, Ready bool
	Bytes         int64  // of the streams of the slots of Hold
	Clock         uint64 // of Redis, in milliseconds
	// Recovering has the zones of which a primary that is opened and not ready may lack effects.
	// Opening distinguishes this recovery from a later one.
	Recovering []string
	Opening    string
}

// Look returns the state. It loads the library if the primary does not have this version.
func (p *Primary) Look(ctx context.Context) (PrimaryState, error) {
	if err := script.Load(ctx, p.conn); err != nil && !NoMemory(err) {
		return PrimaryState{}, err
	}
	return primaryState(p.call(ctx, "sonic_primary"))
}

// LookPrimary returns the state of the library of the primary that db leads to. It changes nothing: a
// primary without the library is not opened.
func LookPrimary(ctx context.Context, db script.Doer) (PrimaryState, error) {
	state, err := primaryState(db.Do(ctx, functionCall("sonic_primary", nil)...))
	if NoFunction(err) {
		return PrimaryState{}, nil
	}
	return state, err
}

// Age returns the age of the oldest entry of the streams that s counts, 0 if there is none. It is
// negative if it is not known: db does not answer, or has the library of an older Sonic.
func (s PrimaryState) Age(ctx context.Context, db script.Doer) time.Duration {
	if !s.Opened {
		return 0
	}
	oldest, err := db.Do(ctx, functionCall("sonic_oldest", nil)...).Int64()
	switch {
	case err != nil:
		return -time.Second
	case oldest == 0:
		return 0
	}
	return max(time.Duration(int64(s.Clock)-oldest)*time.Millisecond, 0)
}

func primaryState(c *redis.Cmd) (s PrimaryState, err error) {
	v := ValuesOf(c.Result())
	s.Opened, s.Ready, s.Bytes, s.Clock = v.Text() == "1", v.Text() == "1", v.Number(), uint64(v.Number())
	if v.More() {
		s.Opening = v.Text()
	}
	for v.More() {
		s.Recovering = append(s.Recovering, v.Text())
	}
	return s, v.Err()
}

// Open passes the configuration to the library. A primary that is not ready takes no writes. It
// must stay so until what it may have lost is applied, see Recovered. It gives no entry a time
// before floor, in milliseconds: the zone has reported to others that they have all before it.
//
// Open loads the library anew if the primary is not opened, see [script.Replace].
func (p *Primary) Open(ctx context.Context, before PrimaryState, ready bool, floor uint64) error {
	if !before.Opened {
		if err := script.Replace(ctx, p.conn); err != nil && !NoMemory(err) {
			return err
		}
	}
	flags := ""
	if ready {
		flags = "r"
	}
	if p.cfg.Bound.Bytes > 0 {
		flags += fmt.Sprintf("b%d", p.cfg.Bound.Bytes)
	}
	return p.call(ctx, "sonic_open_primary", append([]any{p.cfg.Zone, flags, wire.ID{Ms: floor}.String()}, p.cfg.settings()...)...).Err()
}

// Recovered says that everything of a zone's topic that the primary had lost is applied to it. It
// is ready once that was said of all zones.
func (p *Primary) Recovered(ctx context.Context, zone string) error {
	return p.call(ctx, "sonic_recovered", zone).Err()
}

// slotsAtOnce is how many slots one request names.
const slotsAtOnce = 512

// Hold informs the primary that it has these slots. It returns those that it does not have, or whose
// stream has already moved: it forgets them.
func (p *Primary) Hold(ctx context.Context, slots []int) (missing []int, err error) {
	return Hold(ctx, p.conn, slots)
}

// Hold is [Primary.Hold] for another connection.
func Hold(ctx context.Context, db script.Doer, slots []int) (missing []int, err error) {
	for some := range slices.Chunk(slots, slotsAtOnce) {
		refused, err := refusedSlots(db.Do(ctx, functionCall("sonic_hold", appendOutboxes(nil, some))...))
		if err != nil {
			return nil, err
		}
		missing = append(missing, refused...)
	}
	return missing, nil
}

// appendOutboxes appends the names of the streams of slots to the arguments of a function.
func appendOutboxes(args []any, slots []int) []any {
	for _, slot := range slots {
		args = append(args, script.SlotOutbox(slot))
	}
	return args
}

// refusedSlots reads a reply that names streams.
func refusedSlots(c *redis.Cmd) (slots []int, err error) {
	reply, err := c.StringSlice()
	for _, out := range reply {
		slots = append(slots, cluster.Slot([]byte(out)))
	}
	return slots, err
}

// Taken is what Take returns of one slot.
type Taken struct {
	Slot int
	// Prev is the entry before the first one: the last that was taken before, or the last that is
	// known to be shipped.
	Prev wire.ID
	// Entries follow Prev.
	Entries []redis.XMessage
}

// Take returns entries that it has not returned yet. With again it also returns those that it has
// returned and that are not shipped: the first call needs it. Once another Primary, of whatever
// process, has done so, Take fails without it, see [Older]. more is true if there are more, or may
// be: of a slot that moves or has moved it cannot read them, until Hold was called again.
func (p *Primary) Take(ctx context.Context, again bool) (list []Taken, state PrimaryState, more bool, err error) {
	args := []any{p.reader}
	if again {
		args = append(args, "again")
	}
	var taken, look *redis.Cmd
	script.SetErrors(p.conn.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		taken = pipe.Do(ctx, functionCall("sonic_take", args)...)
		look = pipe.Do(ctx, functionCall("sonic_primary", nil)...)
		return nil
	}))
	if state, err = primaryState(look); err != nil {
		return nil, state, false, err
	}
	v := ValuesOf(taken.Result())
	for len(v.left) >= 3 && v.More() {
		t := Taken{Slot: cluster.Slot([]byte(v.Text())), Prev: v.ID()}
		for entries := v.List(); entries.More(); {
			e := entries.List()
			m := redis.XMessage{ID: e.Text(), Values: map[string]any{}}
			for fields := e.List(); fields.More(); {
				name := fields.Text()
				m.Values[name] = fields.Text()
			}
			t.Entries = append(t.Entries, m)
		}
		list = append(list, t)
	}
	if more = !v.More(); !more {
		state.Clock = uint64(v.Number()) // when it found nothing left
	}
	return list, state, more, v.Err()
}

// MarkRecovery marks slots: they may lack what the topics of the zones have behind these markers,
// which are in the text form of package primaries. The mark moves with a slot. It is removed when
// the primary is ready. MarkRecovery returns the slots that it cannot mark, because they move or
// have moved.
func (p *Primary) MarkRecovery(ctx context.Context, slots []int, markers map[string]string) (missing []int, err error) {
	args := []any{len(markers)}
	for zone, marker := range markers {
		args = append(args, zone, marker)
	}
	for some := range slices.Chunk(slots, slotsAtOnce) {
		refused, err := refusedSlots(p.call(ctx, "sonic_mark_recovery", appendOutboxes(slices.Clone(args), some)...))
		if err != nil {
			return nil, err
		}
		missing = append(missing, refused...)
	}
	return missing, nil
}

// Last returns the last id of the stream of each of the slots that the primary has and that have a
// stream.
func (p *Primary) Last(ctx context.Context, slots []int) (map[int]wire.ID, error) {
	last := map[int]wire.ID{}
	for some := range slices.Chunk(slots, slotsAtOnce) {
		var commands []*redis.XInfoStreamCmd
		script.SetErrors(p.conn.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for _, slot := range some {
				commands = append(commands, pipe.XInfoStream(ctx, script.SlotOutbox(slot)))
			}
			return nil
		}))
		for i, c := range commands {
			info, err := c.Result()
			switch {
			case script.IsReply(err, "ERR no such key", "MOVED ", "ASK "):
				continue
			case err != nil:
				return nil, err
			}
			if last[some[i]], err = wire.ParseID(info.LastGeneratedID); err != nil {
				return nil, err
			}
		}
	}
	return last, nil
}

// Restore applies a group of the zone's own topic that the primary has lost. epoch is that of the
// message.
func (p *Primary) Restore(ctx context.Context, epoch int64, g *wire.PackedGroup) (Result, error) {
	call := []any{"FCALL", ApplyFunction, 1, script.SlotOutbox(g.Slot)}
	return ApplyResult(p.conn.Do(ctx, append(call, ApplyArgs(p.cfg.Zone, epoch, true, *g, "")...)...).Result())
}

// Conn is the connection.
func (p *Primary) Conn() *redis.Conn { return p.conn }

func (p *Primary) call(ctx context.Context, function string, args ...any) *redis.Cmd {
	return p.conn.Do(ctx, functionCall(function, args)...)
}

// functionCall is a call without keys.
func functionCall(function string, args []any) []any {
	return append([]any{"FCALL", function, 0}, args...)
}

// ShippedSlots informs a primary up to which entry the topic has each of some slots. It returns the
// slots that the primary does not have.
func ShippedSlots(ctx context.Context, db script.Doer, ids map[int]wire.ID) (missing []int, err error) {
	args := make([]any, 0, 2*len(ids))
	for slot, id := range ids {
		args = append(args, script.SlotOutbox(slot), id.String())
	}
	return refusedSlots(db.Do(ctx, functionCall("sonic_shipped_all", args)...))
}

// PruneSlot makes one step of removing versions of a slot, see [Library.Prune]. It is for
// pipelines: PrunedSlot reads the reply.
func PruneSlot(slot int, cursor string, count int, horizon wire.ID) []any {
	return []any{"FCALL", "sonic_prune", 1, script.SlotOutbox(slot), cursor, count, horizon.String()}
}

// PrunedSlot returns the cursor of the next step, "0" at the end of the slot.
func PrunedSlot(c *redis.Cmd) (next string, err error) {
	v := ValuesOf(c.Result())
	return v.Text(), v.Err()
}
