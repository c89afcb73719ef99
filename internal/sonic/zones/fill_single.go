package zones

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/aviaryhq/aviary/internal/sonic/script"
)

// singleTarget fills one Redis.
type singleTarget struct {
	from, to *Zone
	redis    *redis.Client
	keys     script.Keys
}

func (t *singleTarget) clear(ctx context.Context) error {
	db, fault := t.redis, t.to.wrapError
	held, err := db.HMGet(ctx, t.keys.Meta, "zone", bootstrapField).Result()
	if err != nil {
		return fault(err)
	}
	databases, err := databases(ctx, db)
	switch {
	case err != nil:
		return fault(err)
	case held[0] != nil:
		return fmt.Errorf("the Redis of zone %s holds the state of zone %v: stop its Sonic and empty it by FLUSHALL if another zone's is to take its place", t.to.name, held[0])
	case held[1] == nil && len(databases) > 0:
		return fmt.Errorf("the Redis of zone %s holds keys: only an empty one is filled", t.to.name)
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

// begin writes cursors of slots. The target does without those of zones that have one Redis.
func (t *singleTarget) begin(ctx context.Context, begin source) error {
	var fields []any
	for one := range slices.Chunk(begin.slots, 2) {
		if !strings.HasPrefix(one[0], t.to.name+"/") {
			fields = append(fields, one[0], one[1], "m "+one[0], "", "e "+one[0], "0")
		}
	}
	for some := range slices.Chunk(fields, hashSlice) {
		if err := t.redis.HSet(ctx, t.keys.Slots, some...).Err(); err != nil {
			return t.to.wrapError(err)
		}
	}
	return nil
}

// hashSlice is how many fields and values go into one HSET.
const hashSlice = 2000

func (t *singleTarget) writeVersions(ctx context.Context, _ int, list []string) error {
	return t.to.wrapError(t.setVersions(ctx, list, t.redis))
}

func (t *singleTarget) setVersions(ctx context.Context, list []string, to redis.Cmdable) error {
	for some := range slices.Chunk(list, hashSlice) {
		if err := to.HSet(ctx, t.keys.Versions, some).Err(); err != nil {
			return err
		}
	}
	return nil
}

// restore writes the keys in one step.
func (t *singleTarget) restore(ctx context.Context, db int, keys []copied) error {
	pipe := t.redis.TxPipeline()
	pipe.Select(ctx, db)
	var restored []*redis.Cmd
	var versions []string
	for _, k := range keys {
		restored = append(restored, pipe.Do(ctx, k.restore()...))
		versions = append(versions, k.versions...)
	}
	pipe.Select(ctx, 0)
	for _, k := range keys {
		if k.at != nil {
			pipe.HSet(ctx, t.keys.Boot, bootKey(db, k.name), k.at.text())
		}
	}
	if err := t.setVersions(ctx, versions, pipe); err != nil {
		return err
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return t.to.wrapError(err)
	}
	for _, cmd := range restored {
		if err := cmd.Err(); err != nil {
			return t.to.wrapError(err)
		}
	}
	return nil
}

// restore returns the command that writes the key.
func (k *copied) restore() []any {
	return []any{"RESTORE", k.name, k.expires, k.dump, "REPLACE", "ABSTTL"}
}

func (t *singleTarget) finish(ctx context.Context, begin, end source, _ Subscribed) error {
	cursors := maps.Clone(begin.reached)
	delete(cursors, t.to.name)
	args := []any{t.to.name, begin.reached[t.to.name].String(), end.floor().String(), begin.pruned.String(), "0"}
	args = append(args, cursors.list()...)
	args = append(args, len(begin.reportedCursors)/2)
	for _, word := range begin.reportedCursors {
		args = append(args, word)
	}
	args = append(args, end.most.list()...)
	reply, err := t.to.call(ctx, 0, "sonic_filled", args...)
	if err == nil && reply != t.from.name {
		err = errors.New("the Redis was being filled by another process, too: empty it and run the command again")
	}
	return err
}
