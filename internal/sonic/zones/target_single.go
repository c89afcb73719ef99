package zones

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/aviaryhq/aviary/internal/sonic/script"
)

// singleTarget fills one Redis.
type singleTarget struct {
	*single
	from *Zone
}

func (t *singleTarget) keysOf(int) script.Keys { return t.keys }

func (t *singleTarget) clear(ctx context.Context) error {
	db, fault := t.redis, t.zone.wrapError
	held, err := db.HMGet(ctx, t.keys.Meta, "zone", bootstrapField).Result()
	if err != nil {
		return fault(err)
	}
	databases, err := databases(ctx, db)
	switch {
	case err != nil:
		return fault(err)
	case held[0] != nil:
		return fmt.Errorf("the Redis of zone %s holds the state of zone %v: stop its Sonic and empty it by FLUSHALL if another zone's is to take its place", t.zone.name, held[0])
	case held[1] == nil && len(databases) > 0:
		return fmt.Errorf("the Redis of zone %s holds keys: only an empty one is filled", t.zone.name)
	case held[1] != nil:
		if err := db.FlushAll(ctx).Err(); err != nil {
			return fault(err)
		}
	}
	if err := script.Load(ctx, db); err != nil {
		return err
	}
	return fault(db.HSet(ctx, t.keys.Meta, bootstrapField, t.from.name).Err())
}

func (t *singleTarget) send(ctx context.Context, commands []command) error {
	for some := range slices.Chunk(commands, commandsAtOnce) {
		_, err := t.redis.Pipelined(ctx, func(p redis.Pipeliner) error {
			db := 0
			for _, c := range some {
				if c.db != db {
					p.Select(ctx, c.db)
				}
				db = c.db
				p.Do(ctx, c.args...)
			}
			if db != 0 {
				p.Select(ctx, 0)
			}
			return nil
		})
		if err != nil {
			return t.zone.wrapError(err)
		}
	}
	return nil
}

// finish also writes cursors of slots. The target does without those of zones that have one Redis.
func (t *singleTarget) finish(ctx context.Context, _ *Bootstrap, begin, end source) error {
	var fields []string
	for _, c := range begin.slots {
		if c.zone != t.zone.name {
			name := c.zone + "/" + strconv.Itoa(c.slot)
			fields = append(fields, name, c.id.String(), "m "+name, "", "e "+name, "0")
		}
	}
	var commands []command
	for some := range slices.Chunk(fields, hashSlice) {
		commands = append(commands, hashSet(0, t.keys.Slots, some...))
	}
	if err := t.send(ctx, commands); err != nil {
		return err
	}
	cursors := maps.Clone(begin.reached)
	delete(cursors, t.zone.name)
	args := []any{t.zone.name, begin.reached[t.zone.name].String(), end.floor().String(), begin.pruned.String(), "0"}
	args = append(args, cursors.list()...)
	args = append(args, len(begin.reportedCursors)/2)
	for _, word := range begin.reportedCursors {
		args = append(args, word)
	}
	args = append(args, end.most.list()...)
	reply, err := t.zone.call(ctx, 0, "sonic_filled", args...)
	if err == nil && reply != t.from.name {
		err = errors.New("the Redis was being filled by another process, too: empty it and run the command again")
	}
	return err
}
