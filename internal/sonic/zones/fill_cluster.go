package zones

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

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
	from, to  *Zone
	primaries *primaries.Primaries

	slots  *cluster.Map // when it was cleared
	runIDs string       // of the primaries, when they were cleared

	flush string       // version of the last flush of the source; empty: none
	boots map[int]bool // slots with keys without versions
}

// command is a command for keys of a slot.
type command struct {
	slot int
	args []any
}

// commandsAtOnce is how many commands go into one pipeline.
const commandsAtOnce = 500

// send sends commands, in their order for each primary.
func (t *clusterTarget) send(ctx context.Context, commands []command) error {
	of := map[string][]command{} // by address
	for _, c := range commands {
		owner := t.slots.Owner(c.slot)
		if owner == "" {
			return fmt.Errorf("no primary of the Redis Cluster of zone %s has slot %d", t.to.name, c.slot)
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
					return t.to.wrapError(err)
				}
			}
			return nil
		})
	}
	return group.Wait()
}

// changed is the error for a cluster that may have lost something of the copy.
func (t *clusterTarget) changed() error {
	return fmt.Errorf("slots of the Redis Cluster of zone %s have moved, or a primary was restarted or replaced, while it was filled: run the command again", t.to.name)
}

// noDatabase is the error for a database that a Redis Cluster does not have.
func (t *clusterTarget) noDatabase(db int) error {
	return fmt.Errorf("zone %s has keys in database %d, and the Redis Cluster of zone %s has database 0 only: delete or move them", t.from.name, db, t.to.name)
}

func (t *clusterTarget) clear(ctx context.Context) (err error) {
	if err := t.from.each(func(db *redis.Client) error {
		found, err := databases(ctx, db)
		for n := range found {
			if n != 0 {
				return t.noDatabase(n)
			}
		}
		return t.from.wrapError(err)
	}); err != nil {
		return err
	}
	t.slots = t.primaries.Map()
	store := clustered{t.primaries}
	marked, filled := false, false
	if err := store.eachPrimary(func(db *redis.Client, slots []int) error {
		found, err := databases(ctx, db)
		if err != nil {
			return t.to.wrapError(err)
		}
		there, err := db.HExists(ctx, script.SlotKeys(slots[0]).Meta, bootstrapField).Result()
		marked, filled = marked || there, filled || len(found) > 0
		return t.to.wrapError(err)
	}); err != nil {
		return err
	}
	if filled && !marked {
		return fmt.Errorf("the Redis Cluster of zone %s holds keys: only an empty one is filled: stop its Sonic and empty all primaries by FLUSHALL", t.to.name)
	}
	if err := store.each(func(db *redis.Client) error {
		if err := db.FlushAll(ctx).Err(); err != nil {
			return t.to.wrapError(err)
		}
		return t.to.wrapError(script.Replace(ctx, db)) // no primary is ready any more
	}); err != nil {
		return err
	}
	var marks []command
	for slot := range cluster.Slots {
		marks = append(marks, command{slot, []any{"HSET", script.SlotKeys(slot).Meta, bootstrapField, t.from.name}})
	}
	if err := t.send(ctx, marks); err != nil {
		return err
	}
	t.runIDs, err = t.to.runIDs(ctx)
	return err
}

func (t *clusterTarget) begin(context.Context, source) error { return nil }

func (t *clusterTarget) writeVersions(ctx context.Context, shard int, list []string) error {
	of := map[int][]any{} // by slot
	for i := 0; i+1 < len(list); i += 2 {
		field, version, slot := list[i], list[i+1], shard
		if !t.from.isCluster() {
			if field == "f0" {
				t.flush = version
			}
			key, ok := keyOf(field)
			if !ok || key.DB != 0 {
				continue
			}
			slot = cluster.Slot([]byte(key.Name))
		}
		of[slot] = append(of[slot], field, version)
	}
	return t.send(ctx, versionCommands(of))
}

// versionCommands returns the commands that write versions, by slot.
func versionCommands(of map[int][]any) (commands []command) {
	for slot, list := range of {
		for some := range slices.Chunk(list, hashSlice) {
			commands = append(commands, command{slot, append([]any{"HSET", script.SlotKeys(slot).Versions}, some...)})
		}
	}
	return commands
}

func (t *clusterTarget) restore(ctx context.Context, db int, keys []copied) error {
	if db != 0 && len(keys) > 0 {
		return t.noDatabase(db)
	}
	var commands []command
	versions := map[int][]any{}
	for _, k := range keys {
		slot := cluster.Slot([]byte(k.name))
		commands = append(commands, command{slot, k.restore()})
		for _, word := range k.versions {
			versions[slot] = append(versions[slot], word)
		}
		if k.at != nil {
			t.boots[slot] = true
			commands = append(commands, command{slot, []any{"HSET", script.SlotKeys(slot).Boot, bootKey(db, k.name), k.at.text()}})
		}
	}
	return t.send(ctx, append(commands, versionCommands(versions)...))
}

// finish writes what each slot has but keys and versions, then the markers, and at last removes the
// marks of clear. If it stops before the end, some primaries stay closed, and the next Run starts
// over.
func (t *clusterTarget) finish(ctx context.Context, begin, end source, subscribed Subscribed) error {
	cursors, err := t.cursors(begin)
	if err != nil {
		return err
	}
	floor := after(end.floor()) // an id without a sequence number: those of a stream are bounded
	commands := make([]command, 0, 3*cluster.Slots)
	for slot, at := range cursors {
		keys := script.SlotKeys(slot)
		add := func(args ...any) { commands = append(commands, command{slot, args}) }
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
		if t.flush != "" {
			add("HSET", keys.Versions, "f0", t.flush)
		}
		if t.boots[slot] {
			add("HSET", keys.Boot, "end", floor.String())
		}
	}
	for _, p := range t.slots.Primaries() {
		slot := primaries.SlotsOf(t.slots, p.Address)[0]
		for zone, marker := range subscribed.Markers {
			commands = append(commands, command{slot, []any{"HSET", script.SlotKeys(slot).Markers, zone, marker.Text()}})
		}
	}
	if err := t.send(ctx, commands); err != nil {
		return err
	}
	runIDs, err := t.to.runIDs(ctx)
	if err != nil {
		return err
	}
	if runIDs != t.runIDs || t.primaries.Map() != t.slots {
		return t.changed()
	}
	var marks []command
	for slot := range cluster.Slots { // clear looks at the lowest slot of each primary, which comes last
		last := cluster.Slots - 1 - slot
		marks = append(marks, command{last, []any{"HDEL", script.SlotKeys(last).Meta, bootstrapField}})
	}
	return t.send(ctx, marks)
}

// cursors returns the progress of the source for each slot.
func (t *clusterTarget) cursors(begin source) ([]Reached, error) {
	all := make([]Reached, cluster.Slots)
	for slot := range all {
		all[slot] = maps.Clone(begin.reached)
	}
	for one := range slices.Chunk(begin.slots, 2) {
		zone, number, _ := strings.Cut(one[0], "/")
		slot, err := strconv.Atoi(number)
		if err != nil || slot < 0 || slot >= len(all) {
			return nil, errReply
		}
		id, err := wire.ParseID(one[1])
		if err != nil {
			return nil, err
		}
		all[slot][zone] = wire.Max(all[slot][zone], id)
	}
	for _, at := range all {
		delete(at, t.to.name)
	}
	return all, nil
}
