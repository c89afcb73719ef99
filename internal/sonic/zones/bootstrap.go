package zones

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/aviaryhq/aviary/internal/sonic/message"
	"github.com/aviaryhq/aviary/internal/sonic/script"
)

// Bootstrap fills the Redis of an empty zone from that of another one, while all other zones write. Afterwards the zone's Sonic can be started: it applies
// what the zones did since the copy began. When it ends half-way, no Sonic opens the Redis, and the next Run begins anew.
type Bootstrap struct {
	// Source has a Sonic that runs and names Target among its zones. It is only read.
	Source *Zone
	// Target holds nothing, or what is left of a Bootstrap that did not end. No Sonic runs there.
	Target *Zone
	// Subscribe makes sure that what zones do from now on waits for Target, and returns how far their topics are: Source must be as far before the copy
	// begins, for what is before may not come to Target any more. Nil: nothing is made sure.
	Subscribe func(ctx context.Context) (Reached, error)
	// Progress is told, about once a second, how far the copy is. Nil: nobody.
	Progress func(Progress)
	// Patience is how long the source may wait for answers of other zones, and for their effects. Default 30s.
	Patience time.Duration

	said  time.Time
	least Reached // of Subscribe
}

// bootstrapField of the hash meta is there while a copy is not whole. It holds the source's name.
const bootstrapField = "bootstrap"

// source is what the source knows at a moment.
type source struct {
	at            Reached
	run           string // of the server: another one, or one that was restarted, may be older
	epoch, pruned string
	wants         string
	told          []string // field, id, ..
}

// Run fills the zone.
func (b *Bootstrap) Run(ctx context.Context) error {
	if err := b.Source.check(ctx); err != nil {
		return err
	}
	if _, err := b.look(ctx); err != nil {
		return err
	}
	if err := b.clear(ctx); err != nil {
		return err
	}
	if b.Subscribe != nil {
		var err error
		if b.least, err = b.Subscribe(ctx); err != nil {
			return err
		}
	}
	begin, err := b.begin(ctx)
	if err != nil {
		return err
	}
	if err := b.copyVersions(ctx); err != nil {
		return err
	}
	if err := b.copyKeys(ctx); err != nil {
		return err
	}
	end, err := b.look(ctx)
	if err != nil {
		return err
	}
	if end.epoch != begin.epoch || end.run != begin.run {
		return fmt.Errorf("the Redis of zone %s was restarted or exchanged while it was copied, and may be older than it was: run the command again", b.Source.name)
	}
	return b.finish(ctx, begin, end)
}

// clear makes sure that the target is empty, and marks it as one that is being filled.
func (b *Bootstrap) clear(ctx context.Context) error {
	db, fault := b.Target.redis, b.Target.fault
	held, err := db.HMGet(ctx, b.Target.keys.Meta, "zone", bootstrapField).Result()
	if err != nil {
		return fault(err)
	}
	databases, err := b.Target.databases(ctx)
	switch {
	case err != nil:
		return err
	case held[0] != nil:
		return fmt.Errorf("the Redis of zone %s holds the state of zone %v: stop its Sonic and empty it by FLUSHALL if another zone's is to take its place", b.Target.name, held[0])
	case held[1] == nil && len(databases) > 0:
		return fmt.Errorf("the Redis of zone %s holds keys: only an empty one is filled", b.Target.name)
	case held[1] != nil:
		if err := db.FlushAll(ctx).Err(); err != nil {
			return fault(err)
		}
	}
	if err := script.Load(ctx, db); err != nil {
		return err
	}
	return fault(db.HSet(ctx, b.Target.keys.Meta, bootstrapField, b.Source.name).Err())
}

func (z *Zone) fault(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("the Redis of zone %s: %w", z.name, err)
}

// look asks the source how far it is.
func (b *Bootstrap) look(ctx context.Context) (s source, err error) {
	if s.run, err = b.Source.run(ctx); err != nil {
		return s, err
	}
	reply, err := b.Source.list(ctx, 5, "sonic_source", b.Target.name)
	if err != nil {
		return s, err
	}
	var ok [3]bool
	s.epoch, ok[0] = reply[1].(string)
	s.pruned, ok[1] = reply[2].(string)
	s.wants, ok[2] = reply[3].(string)
	if slices.Contains(ok[:], false) {
		return s, errReply
	}
	if s.at, err = reachedOf(reply[0]); err != nil {
		return s, err
	}
	s.told, err = texts(reply[4])
	return s, err
}

// begin waits for a moment at which the source knows the state of all of its keys, and has what it must have at least.
func (b *Bootstrap) begin(ctx context.Context) (source, error) {
	patience := b.Patience
	if patience == 0 {
		patience = 30 * time.Second
	}
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for began := time.Now(); ; {
		s, err := b.look(ctx)
		lacks := b.lacks(s)
		if err != nil || s.wants == "0" && lacks == "" {
			return s, err
		}
		if time.Since(began) > patience && lacks != "" {
			return s, fmt.Errorf("zone %s has the effects of zone %s up to %s, and this zone's cluster has them up to %s: see /zones of its Sonic",
				b.Source.name, lacks, s.at[lacks], b.least[lacks])
		}
		if time.Since(began) > patience {
			return s, fmt.Errorf("zone %s waits for the state of %s keys from other zones, or has to ship it after its outbox was full: see /zones of its Sonic", b.Source.name, s.wants)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return s, ctx.Err()
		}
	}
}

// lacks returns the zone whose effects the source has not got as far as it must, empty when there is none.
func (b *Bootstrap) lacks(s source) string {
	for _, zone := range slices.Sorted(maps.Keys(b.least)) {
		if s.at[zone].Compare(b.least[zone]) < 0 {
			return zone
		}
	}
	return ""
}

// copyVersions copies the hash of versions. It comes before the keys, whose own versions replace these.
func (b *Bootstrap) copyVersions(ctx context.Context) error {
	for cursor := ""; cursor != "0"; {
		if cursor == "" {
			cursor = "0"
		}
		step, err := b.Source.list(ctx, 2, "sonic_copy_versions", b.Target.name, cursor, 1000)
		if err != nil {
			return err
		}
		list, err := texts(step[1])
		if err != nil {
			return err
		}
		if err := b.note(ctx, list, b.Target.redis); err != nil {
			return b.Target.fault(err)
		}
		cursor, _ = step[0].(string)
	}
	return nil
}

// hashSlice is how many values go into one HSET.
const hashSlice = 2000

// note adds versions: field, version, ..
func (b *Bootstrap) note(ctx context.Context, list []string, to redis.Cmdable) error {
	for some := range slices.Chunk(list, hashSlice) {
		if err := to.HSet(ctx, b.Target.keys.Versions, some).Err(); err != nil {
			return err
		}
	}
	return nil
}

func (b *Bootstrap) copyKeys(ctx context.Context) error {
	databases, err := b.Source.databases(ctx)
	if err != nil {
		return err
	}
	p := Progress{Zone: b.Source.name}
	for _, n := range databases {
		p.Keys += n
	}
	for _, db := range slices.Sorted(maps.Keys(databases)) {
		for cursor := ""; cursor != "0"; {
			if cursor == "" {
				cursor = "0"
			}
			var names []string
			if cursor, names, err = b.Source.walk(ctx, db, cursor, copyBatch); err != nil {
				return err
			}
			for len(names) > 0 {
				n, err := b.copySome(ctx, db, names)
				if err != nil {
					return err
				}
				names, p.Done = names[n:], p.Done+int64(n)
			}
			if b.Progress != nil && time.Since(b.said) >= sayEvery {
				b.Progress(p)
				b.said = time.Now()
			}
		}
	}
	if b.Progress != nil {
		b.Progress(p)
	}
	return nil
}

// copyBatch is how many keys are asked for at once. When they are large, fewer come.
const copyBatch = 64

// copySome copies the first of the keys, at least one, and returns how many.
func (b *Bootstrap) copySome(ctx context.Context, db int, names []string) (int, error) {
	args := []any{b.Target.name, db}
	for _, name := range names {
		args = append(args, name)
	}
	step, err := b.Source.list(ctx, 3, "sonic_copy_keys", args...)
	if err != nil {
		return 0, err
	}
	text, _ := step[0].(string)
	read, err := strconv.Atoi(text)
	if err != nil || read < 1 || read > len(names) {
		return 0, errReply
	}
	return read, b.restore(ctx, db, step)
}

// restore writes the keys of one step.
func (b *Bootstrap) restore(ctx context.Context, db int, step []any) error {
	at, err := reachedOf(step[1])
	if err != nil {
		return err
	}
	list, ok := step[2].([]any)
	if !ok || len(list)%5 != 0 {
		return errReply
	}
	pipe := b.Target.redis.TxPipeline()
	pipe.Select(ctx, db)
	var restored []*redis.StatusCmd
	var versions []string
	for f := range slices.Chunk(list, 5) {
		facts, err := texts(f[4])
		if err != nil {
			return err
		}
		versions = append(versions, facts...)
		expires := f[2]
		if expires == "" {
			expires = "0"
		}
		cmd := redis.NewStatusCmd(ctx, "RESTORE", f[0], expires, f[1], "REPLACE", "ABSTTL")
		restored = append(restored, cmd)
		_ = pipe.Process(ctx, cmd) // it is queued
	}
	pipe.Select(ctx, 0)
	for f := range slices.Chunk(list, 5) {
		if f[3] == policyCounter || f[3] == policyNone { // they have no versions
			name, _ := f[0].(string)
			pipe.HSet(ctx, b.Target.keys.Boot, strconv.Itoa(db)+":"+name, at.text())
		}
	}
	if err := b.note(ctx, versions, pipe); err != nil {
		return err
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return b.Target.fault(err)
	}
	for _, cmd := range restored {
		if err := cmd.Err(); err != nil {
			return b.Target.fault(err)
		}
	}
	return nil
}

// text is zone, id, .. with spaces between.
func (r Reached) text() string {
	var words []string
	for _, zone := range slices.Sorted(maps.Keys(r)) {
		words = append(words, zone, r[zone].String())
	}
	return strings.Join(words, " ")
}

// list is the number of zones, then zone, id, ..
func (r Reached) list() []any {
	list := []any{len(r)}
	for zone, id := range r {
		list = append(list, zone, id.String())
	}
	return list
}

// finish says that the copy is whole. The target is then as it would be had it applied the effects up to begin.
func (b *Bootstrap) finish(ctx context.Context, begin, end source) error {
	floor := message.ID{}
	for _, id := range end.at {
		floor = message.Max(floor, id)
	}
	cursors := maps.Clone(begin.at)
	delete(cursors, b.Target.name)
	args := []any{b.Target.name, begin.at[b.Target.name].String(), floor.String(), begin.pruned, "0"}
	args = append(args, cursors.list()...)
	args = append(args, len(begin.told)/2)
	for _, word := range begin.told {
		args = append(args, word)
	}
	args = append(args, end.at.list()...)
	reply, err := b.Target.call(ctx, "sonic_filled", args...)
	if err == nil && reply != b.Source.name {
		err = errors.New("the Redis was being filled by another process, too: empty it and run the command again")
	}
	return err
}
