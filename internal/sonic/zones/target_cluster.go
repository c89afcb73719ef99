package zones

import (
	"context"
	"fmt"
	"maps"

	"github.com/redis/go-redis/v9"

	"github.com/aviaryhq/aviary/internal/sonic/cluster"
	"github.com/aviaryhq/aviary/internal/sonic/primaries"
	"github.com/aviaryhq/aviary/internal/sonic/script"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
)

// Each slot of a Redis Cluster that is filled gets versions and cursors of its own. While the copy is
// incomplete, each slot has bootstrapField, which moves with it: no primary with such a slot becomes
// ready.

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
		return fmt.Errorf("the Redis Cluster of zone %s holds keys: only an empty one is filled: stop its Sonic and empty all primaries by FLUSHALL", c.zone.name)
	}
	if err := c.each(func(db *redis.Client) error {
		if err := db.FlushAll(ctx).Err(); err != nil {
			return c.zone.wrapError(err)
		}
		return c.zone.wrapError(script.Replace(ctx, db)) // no primary is ready any more
	}); err != nil {
		return err
	}
	var marks []command
	for slot := range cluster.Slots {
		marks = append(marks, command{slot, 0, []any{"HSET", script.SlotKeys(slot).Meta, bootstrapField, b.Source.name}})
	}
	if err := b.send(ctx, marks); err != nil {
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
	var marks []command
	for slot := range cluster.Slots { // clear looks at the lowest slot of each primary, which comes last
		last := cluster.Slots - 1 - slot
		marks = append(marks, command{last, 0, []any{"HDEL", script.SlotKeys(last).Meta, bootstrapField}})
	}
	return b.send(ctx, marks)
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
