package zones

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/aviaryhq/aviary/internal/sonic/cluster"
	"github.com/aviaryhq/aviary/internal/sonic/primaries"
	"github.com/aviaryhq/aviary/internal/sonic/script"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
)

// single is one Redis. Its only shard is 0, whatever the names of its keys say.
type single struct {
	zone  *Zone
	redis *redis.Client
	keys  script.Keys
}

func (s *single) shardOf(string) int { return 0 }

func (s *single) shards() []int { return []int{0} }

func (s *single) do(ctx context.Context, calls []primaries.Call) ([]primaries.Reply, error) {
	replies := make([]primaries.Reply, len(calls))
	for i, c := range calls {
		r := &replies[i]
		r.Value, r.Err = s.redis.Do(ctx, append([]any{"FCALL", c.Function, 1, s.keys.Outbox}, c.Args...)...).Result()
	}
	return replies, nil
}

func (s *single) each(f func(db *redis.Client) error) error { return f(s.redis) }

func (s *single) walk(ctx context.Context, count int, visit func(db int, names []string) error) error {
	found, err := databases(ctx, s.redis)
	if err != nil {
		return s.zone.wrapError(err)
	}
	for _, db := range slices.Sorted(maps.Keys(found)) {
		for cursor := "0"; ; {
			next, names, err := readStep(s.zone.call(ctx, 0, "sonic_walk", db, cursor, count))
			if err != nil {
				return err
			}
			if err := visit(db, names); err != nil {
				return err
			}
			if cursor = next; cursor == "0" {
				break
			}
		}
	}
	return nil
}

func (s *single) reached(ctx context.Context) (Reached, error) { return s.zone.firstProgress(ctx) }

// holds adds the cursors of slots of zones with a Redis Cluster, which may be ahead of the progress
// for the zone.
func (s *single) holds(ctx context.Context, keys []Key, zones []string) (Reached, error) {
	at, err := s.reached(ctx)
	if err != nil {
		return nil, err
	}
	slots := map[int]struct{}{}
	for _, key := range keys {
		slots[cluster.Slot([]byte(key.Name))] = struct{}{}
	}
	for _, zone := range zones {
		for some := range slices.Chunk(slices.Collect(maps.Keys(slots)), batch) {
			fields := make([]string, len(some))
			for i, slot := range some {
				fields[i] = zone + "/" + strconv.Itoa(slot)
			}
			found, err := s.redis.HMGet(ctx, s.keys.Slots, fields...).Result()
			if err != nil {
				return nil, s.zone.wrapError(err)
			}
			for _, cursor := range found {
				text, ok := cursor.(string)
				if !ok {
					continue // none of this slot, or the zone has no cluster
				}
				id, err := wire.ParseID(text)
				if err != nil {
					return nil, s.zone.wrapError(err)
				}
				at[zone] = wire.Max(at[zone], after(id))
			}
		}
	}
	return at, nil
}

// after returns the time of which progress for a zone with a Redis Cluster includes the effect id.
func after(id wire.ID) wire.ID { return wire.ID{Ms: id.Ms + 1} }

func (s *single) source(ctx context.Context, asker string) (src source, err error) {
	if src.reached, src.reportedCursors, err = src.add(s.zone.call(ctx, 0, "sonic_source", asker)); err != nil {
		return src, err
	}
	src.most = maps.Clone(src.reached)
	for cursor := uint64(0); ; {
		fields, next, err := s.redis.HScan(ctx, s.keys.Slots, cursor, "", 1000).Result()
		if err != nil {
			return src, s.zone.wrapError(err)
		}
		for field := range slices.Chunk(fields, 2) {
			zone, number, _ := strings.Cut(field[0], "/")
			if strings.Contains(zone, " ") {
				continue // not the cursor itself
			}
			slot, err := strconv.Atoi(number)
			if err != nil {
				return src, err
			}
			id, err := wire.ParseID(field[1])
			if err != nil {
				return src, err
			}
			src.addSlot(zone, slot, id)
		}
		if cursor = next; cursor == 0 {
			return src, nil
		}
	}
}

func (s *single) keysOf(int) script.Keys { return s.keys }

func (s *single) clientOf(*Bootstrap, int) (*redis.Client, error) { return s.redis, nil }

func (s *single) writeError(err error) error { return s.zone.wrapError(err) }

func (s *single) clear(ctx context.Context, b *Bootstrap) error {
	db, fault := s.redis, s.zone.wrapError
	held, err := db.HMGet(ctx, s.keys.Meta, "zone", bootstrapField).Result()
	if err != nil {
		return fault(err)
	}
	databases, err := databases(ctx, db)
	switch {
	case err != nil:
		return fault(err)
	case held[0] != nil:
		return fmt.Errorf("the Redis of zone %s holds the state of zone %v: to replace it by the state of another zone, stop its Sonic and empty it by FLUSHALL", s.zone.name, held[0])
	case held[1] == nil && len(databases) > 0:
		return fmt.Errorf("the Redis of zone %s holds keys: -bootstrap needs an empty one", s.zone.name)
	case held[1] != nil:
		if err := db.FlushAll(ctx).Err(); err != nil {
			return fault(err)
		}
	}
	if err := script.Load(ctx, db); err != nil {
		return err
	}
	return fault(db.HSet(ctx, s.keys.Meta, bootstrapField, b.Source.name).Err())
}

// finish also writes cursors of slots. The target does without those of zones that have one Redis.
func (s *single) finish(ctx context.Context, b *Bootstrap, begin, end source) error {
	var fields []string
	for _, c := range begin.slots {
		if c.zone != s.zone.name {
			name := c.zone + "/" + strconv.Itoa(c.slot)
			fields = append(fields, name, c.id.String(), "m "+name, "", "e "+name, "0")
		}
	}
	var commands []command
	for some := range slices.Chunk(fields, hashSlice) {
		commands = append(commands, hashSet(0, s.keys.Slots, some...))
	}
	if err := b.send(ctx, commands); err != nil {
		return err
	}
	cursors := maps.Clone(begin.reached)
	delete(cursors, s.zone.name)
	args := []any{s.zone.name, begin.reached[s.zone.name].String(), end.floor().String(), begin.pruned.String(), "0"}
	args = append(args, cursors.list()...)
	args = append(args, len(begin.reportedCursors)/2)
	for _, word := range begin.reportedCursors {
		args = append(args, word)
	}
	args = append(args, end.most.list()...)
	reply, err := s.zone.call(ctx, 0, "sonic_filled", args...)
	if err == nil && reply != b.Source.name {
		err = errors.New("another process was filling this Redis at the same time: empty it and run the command again")
	}
	return err
}
