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
		return fmt.Errorf("the Redis of zone %s holds the state of zone %v: stop its Sonic and empty it by FLUSHALL if another zone's is to take its place", s.zone.name, held[0])
	case held[1] == nil && len(databases) > 0:
		return fmt.Errorf("the Redis of zone %s holds keys: only an empty one is filled", s.zone.name)
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
		err = errors.New("the Redis was being filled by another process, too: empty it and run the command again")
	}
	return err
}
