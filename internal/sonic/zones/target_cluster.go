package zones

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/aviaryhq/aviary/internal/sonic/cluster"
	"github.com/aviaryhq/aviary/internal/sonic/primaries"
	"github.com/aviaryhq/aviary/internal/sonic/script"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
)

// clusterTarget fills a Redis Cluster. Each slot gets versions and cursors of its own. While the copy
// is incomplete, each slot has bootstrapField, which moves with it: no primary with such a slot
// becomes ready.
type clusterTarget struct {
	*clustered
	from *Zone

	slots  *cluster.Map // when it was cleared
	runIDs string       // of the primaries, when they were cleared
}

func (t *clusterTarget) keysOf(slot int) script.Keys { return script.SlotKeys(slot) }

// send sends commands, in their order for each primary.
func (t *clusterTarget) send(ctx context.Context, commands []command) error {
	of := map[string][]command{} // by address
	for _, c := range commands {
		owner := t.slots.Owner(c.shard)
		if owner == "" {
			return fmt.Errorf("no primary of the Redis Cluster of zone %s has slot %d", t.zone.name, c.shard)
		}
		of[owner] = append(of[owner], c)
	}
	group, ctx := errgroup.WithContext(ctx)
	for address, list := range of {
		group.Go(func() error {
			for some := range slices.Chunk(list, commandsAtOnce) {
				_, err := t.primaries.At(address).Pipelined(ctx, func(p redis.Pipeliner) error {
					for _, c := range some {
						p.Do(ctx, c.args...)
					}
					return nil
				})
				if primaries.Moving(err) {
					t.primaries.Refresh()
					return t.changed()
				}
				if err != nil {
					return t.zone.wrapError(err)
				}
			}
			return nil
		})
	}
	return group.Wait()
}

// changed is the error for a cluster that may have lost something of the copy.
func (t *clusterTarget) changed() error {
	return fmt.Errorf("slots of the Redis Cluster of zone %s have moved, or a primary was restarted or replaced, while it was filled: run the command again", t.zone.name)
}

func (t *clusterTarget) clear(ctx context.Context) (err error) {
	if err := t.from.each(func(db *redis.Client) error {
		found, err := databases(ctx, db)
		for n := range found {
			if n != 0 {
				return noDatabase(t.from, t.zone, n)
			}
		}
		return t.from.wrapError(err)
	}); err != nil {
		return err
	}
	t.slots = t.primaries.Map()
	marked, filled := false, false
	if err := t.eachPrimary(func(db *redis.Client, slots []int) error {
		found, err := databases(ctx, db)
		if err != nil {
			return t.zone.wrapError(err)
		}
		there, err := db.HExists(ctx, script.SlotKeys(slots[0]).Meta, bootstrapField).Result()
		marked, filled = marked || there, filled || len(found) > 0
		return t.zone.wrapError(err)
	}); err != nil {
		return err
	}
	if filled && !marked {
		return fmt.Errorf("the Redis Cluster of zone %s holds keys: only an empty one is filled: stop its Sonic and empty all primaries by FLUSHALL", t.zone.name)
	}
	if err := t.each(func(db *redis.Client) error {
		if err := db.FlushAll(ctx).Err(); err != nil {
			return t.zone.wrapError(err)
		}
		return t.zone.wrapError(script.Replace(ctx, db)) // no primary is ready any more
	}); err != nil {
		return err
	}
	var marks []command
	for slot := range cluster.Slots {
		marks = append(marks, command{slot, 0, []any{"HSET", script.SlotKeys(slot).Meta, bootstrapField, t.from.name}})
	}
	if err := t.send(ctx, marks); err != nil {
		return err
	}
	t.runIDs, err = t.zone.runIDs(ctx)
	return err
}

// finish writes what each slot has but keys and versions, then the markers, and at last removes the
// marks of clear. If it stops before the end, some primaries stay closed, and the next Run starts
// over.
func (t *clusterTarget) finish(ctx context.Context, b *Bootstrap, begin, end source) error {
	floor := after(end.floor()) // an id without a sequence number: those of a stream are bounded
	commands := make([]command, 0, 3*cluster.Slots)
	for slot, at := range t.cursors(begin) {
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
	for _, p := range t.slots.Primaries() {
		slot := primaries.SlotsOf(t.slots, p.Address)[0]
		for zone, marker := range b.subscribed.Markers {
			commands = append(commands, command{slot, 0, []any{"HSET", script.SlotKeys(slot).Markers, zone, marker.Text()}})
		}
	}
	if err := t.send(ctx, commands); err != nil {
		return err
	}
	runIDs, err := t.zone.runIDs(ctx)
	if err != nil {
		return err
	}
	if runIDs != t.runIDs || t.primaries.Map() != t.slots {
		return t.changed()
	}
	var marks []command
	for slot := range cluster.Slots { // clear looks at the lowest slot of each primary, which comes last
		last := cluster.Slots - 1 - slot
		marks = append(marks, command{last, 0, []any{"HDEL", script.SlotKeys(last).Meta, bootstrapField}})
	}
	return t.send(ctx, marks)
}

// cursors returns the progress of the source for each slot.
func (t *clusterTarget) cursors(begin source) []Reached {
	all := make([]Reached, cluster.Slots)
	for slot := range all {
		all[slot] = maps.Clone(begin.reached)
	}
	for _, c := range begin.slots {
		all[c.slot][c.zone] = wire.Max(all[c.slot][c.zone], c.id)
	}
	for _, at := range all {
		delete(at, t.zone.name)
	}
	return all
}
