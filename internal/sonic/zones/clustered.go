package zones

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/aviaryhq/aviary/internal/sonic/cluster"
	"github.com/aviaryhq/aviary/internal/sonic/primaries"
	"github.com/aviaryhq/aviary/internal/sonic/redislib"
	"github.com/aviaryhq/aviary/internal/sonic/script"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
)

// clustered is a Redis Cluster. Each slot is a shard.
type clustered struct {
	zone      *Zone
	primaries *primaries.Primaries
}

func (z *Zone) isCluster() bool {
	_, is := z.store.(*clustered)
	return is
}

func (c *clustered) shardOf(key string) int { return cluster.Slot([]byte(key)) }

// callTimeout bounds calls, with the time that they wait for a slot that is moving, or that has no
// primary.
const callTimeout = 5 * time.Minute

func (c *clustered) do(ctx context.Context, calls []primaries.Call) ([]primaries.Reply, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return c.primaries.Do(ctx, calls)
}

// eachPrimary calls f for each primary with its slots.
func (c *clustered) eachPrimary(f func(db *redis.Client, slots []int) error) error {
	m := c.primaries.Map()
	if m == nil {
		return errors.New("the slots of the Redis Cluster are not known: none of its nodes answers")
	}
	for _, p := range m.Primaries() {
		if slots := primaries.SlotsOf(m, p.Address); len(slots) > 0 {
			if err := f(c.primaries.At(p.Address), slots); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *clustered) each(f func(db *redis.Client) error) error {
	return c.eachPrimary(func(db *redis.Client, _ []int) error { return f(db) })
}

// walk goes from slot to slot: keys that are at other primaries meanwhile are not missed.
func (c *clustered) walk(ctx context.Context, count int, visit func(db int, names []string) error) error {
	return c.eachSlots(ctx, "sonic_slot", nil, func(_ []int, replies []any) error {
		var names []string
		for _, reply := range replies {
			found := redislib.ValuesOf(reply, nil)
			names = append(names, texts(found)...)
			if err := found.Err(); err != nil {
				return err
			}
		}
		for part := range slices.Chunk(names, count) {
			if err := visit(0, part); err != nil {
				return err
			}
		}
		return nil
	})
}

// eachSlots calls a function for all slots, and visit with the replies of some of them at a time.
func (c *clustered) eachSlots(ctx context.Context, function string, args []any, visit func(slots []int, replies []any) error) error {
	for some := range slices.Chunk(c.shards(), slotsAtOnce) {
		var calls []primaries.Call
		for _, slot := range some {
			calls = append(calls, primaries.Call{Slot: slot, Function: function, Args: args})
		}
		replies, err := c.zone.calls(ctx, calls)
		if err != nil {
			return err
		}
		if err := visit(some, replies); err != nil {
			return err
		}
	}
	return nil
}

func (c *clustered) shards() []int {
	slots := make([]int, cluster.Slots)
	for slot := range slots {
		slots[slot] = slot
	}
	return slots
}

// reached takes the markers: the cursors of slots do not say whether there is something for other
// slots. Of its own zone it has everything.
func (c *clustered) reached(ctx context.Context) (Reached, error) {
	at, _, ready, err := c.watermarks(ctx, "")
	if err != nil || !ready {
		return nil, err // a primary that is not ready may lack effects of any zone
	}
	at[c.zone.name] = wire.ID{Ms: math.MaxUint64}
	return at, nil
}

// watermarks returns the watermarks of the markers that appliers and the shipper write, of each zone,
// and what asker once reported: "<asker> <other>", id, .. Each is true of all primaries that are
// ready, and in the lowest slot of each.
func (c *clustered) watermarks(ctx context.Context, asker string) (at Reached, reported []string, ready bool, err error) {
	all := Reached{}
	ready = true
	err = c.eachPrimary(func(db *redis.Client, slots []int) error {
		state, err := redislib.LookPrimary(ctx, db)
		if err != nil {
			return err
		}
		ready = ready && state.Opened && state.Ready
		found, err := primaries.ReadMarkers(ctx, db, slots[0])
		for name, marker := range found {
			all[name] = wire.Max(all[name], wire.ID{Ms: marker.Watermark})
		}
		return err
	})
	at = Reached{}
	for name, id := range all {
		switch zone, _, isReport := primaries.CutReachedMarker(name); {
		case !isReport:
			at[name] = id
		case zone == asker:
			reported = append(reported, name, id.String())
		}
	}
	return at, reported, ready, c.zone.wrapError(err)
}

func (c *clustered) source(ctx context.Context, asker string) (src source, err error) {
	var ready bool
	src.reached, src.reportedCursors, ready, err = c.watermarks(ctx, asker)
	if err == nil && !ready {
		err = c.zone.wrapError(errors.New("a primary was restarted or has taken over, and is not ready yet: run the command again"))
	}
	if err != nil {
		return src, err
	}
	src.most = maps.Clone(src.reached)
	err = c.eachSlots(ctx, "sonic_source", []any{asker}, func(slots []int, replies []any) error {
		for i, reply := range replies {
			at, _, err := src.add(reply, nil)
			if err != nil {
				return err
			}
			for zone, id := range at {
				src.addSlot(zone, slots[i], id)
			}
		}
		return nil
	})
	return src, err
}

// holds takes the progress of the slots of keys.
func (c *clustered) holds(ctx context.Context, keys []Key, _ []string) (Reached, error) {
	asked := map[int]struct{}{}
	var calls []primaries.Call
	for _, key := range keys {
		slot := c.shardOf(key.Name)
		if _, had := asked[slot]; !had {
			asked[slot] = struct{}{}
			calls = append(calls, primaries.Call{Slot: slot, Function: "sonic_digests", Args: []any{0}})
		}
	}
	replies, err := c.zone.calls(ctx, calls)
	if err != nil {
		return nil, err
	}
	at := Reached{}
	for _, reply := range replies {
		of, _, err := readDigests(reply, nil)
		if err != nil {
			return nil, err
		}
		if _, own := of[c.zone.name]; !own {
			return nil, fmt.Errorf("a primary of zone %s was restarted, or has taken over: run the command again", c.zone.name)
		}
		for zone, id := range of {
			at[zone] = wire.Max(at[zone], after(id))
		}
	}
	return at, nil
}

func (c *clustered) keysOf(slot int) script.Keys { return script.SlotKeys(slot) }

func (c *clustered) clientOf(b *Bootstrap, slot int) (*redis.Client, error) {
	owner := b.slots.Owner(slot)
	if owner == "" {
		return nil, fmt.Errorf("no primary of the Redis Cluster of zone %s has slot %d", c.zone.name, slot)
	}
	return c.primaries.At(owner), nil
}

func (c *clustered) writeError(err error) error {
	if primaries.Moving(err) {
		c.primaries.Refresh()
		return c.changed()
	}
	return c.zone.wrapError(err)
}

// changed is the error for a cluster that may have lost something of the copy.
func (c *clustered) changed() error {
	return fmt.Errorf("slots of the Redis Cluster of zone %s have moved, or a primary was restarted or replaced, while it was filled: run the command again", c.zone.name)
}

// clear also gives each slot bootstrapField, which moves with it: no primary with such a slot becomes
// ready.
func (c *clustered) clear(ctx context.Context, b *Bootstrap) (err error) {
	if err := b.Source.each(func(db *redis.Client) error {
		found, err := databases(ctx, db)
		for n := range found {
			if n != 0 {
				return noDatabase(b.Source, c.zone, n)
			}
		}
		return b.Source.wrapError(err)
	}); err != nil {
		return err
	}
	b.slots = c.primaries.Map()
	marked, filled := false, false
	if err := c.eachPrimary(func(db *redis.Client, slots []int) error {
		found, err := databases(ctx, db)
		if err != nil {
			return c.zone.wrapError(err)
		}
		there, err := db.HExists(ctx, script.SlotKeys(slots[0]).Meta, bootstrapField).Result()
		marked, filled = marked || there, filled || len(found) > 0
		return c.zone.wrapError(err)
	}); err != nil {
		return err
	}
	if filled && !marked {
		return fmt.Errorf("the Redis Cluster of zone %s holds keys: -bootstrap needs an empty one: stop its Sonic and empty all primaries by FLUSHALL", c.zone.name)
	}
	if err := c.each(func(db *redis.Client) error {
		if err := db.FlushAll(ctx).Err(); err != nil {
			return c.zone.wrapError(err)
		}
		return c.zone.wrapError(script.Replace(ctx, db)) // no primary is ready any more
	}); err != nil {
		return err
	}
	if err := b.send(ctx, marks("HSET", b.Source.name)); err != nil {
		return err
	}
	b.runIDs, err = c.zone.runIDs(ctx)
	return err
}

// finish writes what each slot has but keys and versions, then the markers, and at last removes the
// marks of clear. If it stops before the end, some primaries stay closed, and the next Run starts
// over.
func (c *clustered) finish(ctx context.Context, b *Bootstrap, begin, end source) error {
	floor := after(end.floor()) // an id without a sequence number: those of a stream are bounded
	commands := make([]command, 0, 3*cluster.Slots)
	for slot, at := range c.cursors(begin) {
		keys := script.SlotKeys(slot)
		add := func(args ...any) { commands = append(commands, command{slot, 0, args}) }
		add("XADD", keys.Outbox, "MAXLEN", 0, floor.String(), "e", "") // only its last id stays
		if begin.pruned != (wire.ID{}) {
			add("HSET", keys.Meta, "pruned", begin.pruned.String())
		}
		if len(at) > 0 {
			fields := []any{"HSET", keys.Cursors}
			for zone, id := range at {
				fields = append(fields, zone, id.String(), "m "+zone, "", "e "+zone, "0")
			}
			add(fields...)
		}
		if b.flush != "" {
			add("HSET", keys.Versions, "f0", b.flush)
		}
		if b.boots[slot] {
			add("HSET", keys.Boot, "end", floor.String())
		}
	}
	for _, p := range b.slots.Primaries() {
		slot := primaries.SlotsOf(b.slots, p.Address)[0]
		for zone, marker := range b.subscribed.Markers {
			commands = append(commands, command{slot, 0, []any{"HSET", script.SlotKeys(slot).Markers, zone, marker.Text()}})
		}
	}
	if err := b.send(ctx, commands); err != nil {
		return err
	}
	runIDs, err := c.zone.runIDs(ctx)
	if err != nil {
		return err
	}
	if runIDs != b.runIDs || c.primaries.Map() != b.slots {
		return c.changed()
	}
	unmark := marks("HDEL")
	slices.Reverse(unmark) // the lowest slot of each primary, which clear looks at, comes last
	return b.send(ctx, unmark)
}

// marks returns the commands that set or delete bootstrapField of all slots.
func marks(name string, value ...any) (commands []command) {
	for slot := range cluster.Slots {
		args := append([]any{name, script.SlotKeys(slot).Meta, bootstrapField}, value...)
		commands = append(commands, command{slot, 0, args})
	}
	return commands
}

// cursors returns the progress of the source for each slot.
func (c *clustered) cursors(begin source) []Reached {
	all := make([]Reached, cluster.Slots)
	for slot := range all {
		all[slot] = maps.Clone(begin.reached)
	}
	for _, s := range begin.slots {
		all[s.slot][s.zone] = wire.Max(all[s.slot][s.zone], s.id)
	}
	for _, at := range all {
		delete(at, c.zone.name)
	}
	return all
}
