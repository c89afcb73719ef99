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

	"github.com/aviaryhq/aviary/internal/sonic/cluster"
	"github.com/aviaryhq/aviary/internal/sonic/message"
	"github.com/aviaryhq/aviary/internal/sonic/primaries"
	"github.com/aviaryhq/aviary/internal/sonic/script"
)

// Bootstrap fills the empty Redis of a zone from the Redis of another zone, while all other zones
// accept writes. Afterwards the zone's Sonic can be started: it applies the effects of the zones
// since the copy began. If Bootstrap stops before the end, no Sonic opens the Redis, and the next
// Run starts over.
type Bootstrap struct {
	// Source is the zone to copy from. Its Sonic runs and has Target among its zones. Bootstrap
	// does not write to it.
	Source *Zone
	// Target is the zone to fill. Its Redis is empty, or holds the rest of an unfinished Bootstrap.
	// No Sonic runs there.
	Target *Zone
	// Subscribe creates Target's subscriptions, so that Pulsar keeps all later effects for Target.
	// It returns the last effects of the topics. Source must have applied these before the copy
	// begins, for Target may never receive earlier effects. If nil, Run skips both.
	Subscribe func(ctx context.Context) (Reached, error)
	// Progress is called about once a second with the progress of the copy. It may be nil.
	Progress func(Progress)
	// Timeout is how long Run waits until Source has the answers and the effects of the other
	// zones. Default 30s.
	Timeout time.Duration

	progressAt time.Time
	required   Reached // result of Subscribe
	target     *single
}

// bootstrapField is a field of the hash meta. It holds the name of the source, and exists while the
// copy is incomplete.
const bootstrapField = "bootstrap"

// source is the state of the source at one moment.
type source struct {
	// reached is the progress. All effects up to it are in what is copied later.
	reached Reached
	// most has, of each zone, an id that is not before any of its effects that the source has.
	most            Reached
	runIDs          string // a replaced or restarted server may have older data
	epoch           string
	pruned          message.ID
	missingKeys     int
	reportedCursors []string // field, id, field, id
	// slots has the cursors of slots of zones with a Redis Cluster: <zone>/<slot>, id, ..
	slots []string
}

// Run fills the zone.
func (b *Bootstrap) Run(ctx context.Context) error {
	if b.target, _ = b.Target.store.(*single); b.target == nil {
		return errors.New("a Redis Cluster cannot be filled")
	}
	if err := b.Source.check(ctx); err != nil {
		return err
	}
	if _, err := b.readSource(ctx); err != nil {
		return err
	}
	if err := b.clear(ctx); err != nil {
		return err
	}
	if b.Subscribe != nil {
		var err error
		if b.required, err = b.Subscribe(ctx); err != nil {
			return err
		}
	}
	begin, err := b.awaitSource(ctx)
	if err != nil {
		return err
	}
	if err := b.writeSlots(ctx, begin.slots); err != nil {
		return err
	}
	if err := b.copyVersions(ctx); err != nil {
		return err
	}
	if err := b.copyKeys(ctx); err != nil {
		return err
	}
	end, err := b.readSource(ctx)
	if err != nil {
		return err
	}
	if end.epoch != begin.epoch || end.runIDs != begin.runIDs {
		return fmt.Errorf("the Redis of zone %s was restarted or exchanged while it was copied, and may be older than it was: run the command again", b.Source.name)
	}
	return b.finish(ctx, begin, end)
}

// clear makes sure that the target is empty, and marks it as incomplete.
func (b *Bootstrap) clear(ctx context.Context) error {
	db, fault := b.target.redis, b.Target.wrapError
	held, err := db.HMGet(ctx, b.target.keys.Meta, "zone", bootstrapField).Result()
	if err != nil {
		return fault(err)
	}
	databases, err := databases(ctx, db)
	switch {
	case err != nil:
		return fault(err)
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
	return fault(db.HSet(ctx, b.target.keys.Meta, bootstrapField, b.Source.name).Err())
}

// readSource reads the state of the source.
func (b *Bootstrap) readSource(ctx context.Context) (s source, err error) {
	if s.runIDs, err = b.runIDs(ctx); err != nil {
		return s, err
	}
	if s.reached, s.reportedCursors, err = b.Source.progress(ctx, b.Source, b.Target.name); err != nil {
		return s, err
	}
	s.most = maps.Clone(s.reached)
	for some := range slices.Chunk(b.Source.shards(), slotsAtOnce) {
		var calls []primaries.Call
		for _, shard := range some {
			calls = append(calls, primaries.Call{Slot: shard, Function: "sonic_source", Args: []any{b.Target.name}})
		}
		replies, err := b.Source.calls(ctx, calls)
		if err != nil {
			return s, err
		}
		for i, reply := range replies {
			if err := s.add(reply, some[i], b.Source); err != nil {
				return s, err
			}
		}
	}
	return s, b.Source.wrapError(b.Source.addSlots(ctx, &s))
}

// add adds the reply of a shard.
func (s *source) add(reply any, shard int, z *Zone) error {
	list, err := listOf(reply, 5)
	if err != nil {
		return err
	}
	at, err := reachedOf(list[0])
	if err != nil {
		return err
	}
	words, err := texts(list[1:4])
	if err != nil {
		return err
	}
	pruned, err := message.ParseID(words[1])
	if err != nil {
		return err
	}
	missing, err := strconv.Atoi(words[2])
	if err != nil {
		return errReply
	}
	s.epoch, s.pruned, s.missingKeys = words[0], message.Max(s.pruned, pruned), s.missingKeys+missing
	if !z.isCluster() {
		s.reached, s.most = at, maps.Clone(at)
		s.reportedCursors, err = texts(list[4])
		return err
	}
	for zone, id := range at {
		s.addSlot(zone, shard, id)
	}
	return nil
}

// addSlot adds the cursor of a slot.
func (s *source) addSlot(zone string, slot int, id message.ID) {
	if id != (message.ID{}) {
		s.slots = append(s.slots, zone+"/"+strconv.Itoa(slot), id.String())
		s.most[zone] = message.Max(s.most[zone], after(id))
	}
}

// writeSlots writes cursors of slots. The target does without those of zones that have one Redis.
func (b *Bootstrap) writeSlots(ctx context.Context, slots []string) error {
	var fields []any
	for one := range slices.Chunk(slots, 2) {
		if !strings.HasPrefix(one[0], b.Target.name+"/") {
			fields = append(fields, one[0], one[1], "m "+one[0], "", "e "+one[0], "0")
		}
	}
	for some := range slices.Chunk(fields, hashSlice) {
		if err := b.target.redis.HSet(ctx, b.target.keys.Slots, some...).Err(); err != nil {
			return b.Target.wrapError(err)
		}
	}
	return nil
}

// runIDs returns the run_id of each Redis of the source. It changes with a restart or a failover.
func (b *Bootstrap) runIDs(ctx context.Context) (string, error) {
	var ids []string
	err := b.Source.each(func(db *redis.Client) error {
		text, err := db.Info(ctx, "server").Result()
		if err != nil {
			return b.Source.wrapError(err)
		}
		for line := range strings.Lines(text) {
			if id, found := strings.CutPrefix(strings.TrimSpace(line), "run_id:"); found {
				ids = append(ids, id)
				return nil
			}
		}
		return errReply
	})
	slices.Sort(ids)
	return strings.Join(ids, " "), err
}

// awaitSource waits until the source knows the state of all of its keys, and has applied the
// effects in required.
func (b *Bootstrap) awaitSource(ctx context.Context) (source, error) {
	timeout := b.Timeout
	if timeout == 0 {
		timeout = 30 * time.Second
	}
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for began := time.Now(); ; {
		s, err := b.readSource(ctx)
		lacks := b.laggingZone(s)
		if err != nil || s.missingKeys == 0 && lacks == "" {
			return s, err
		}
		if time.Since(began) > timeout && lacks != "" {
			return s, fmt.Errorf("zone %s has the effects of zone %s up to %s, and this zone's cluster has them up to %s: see /zones of its Sonic",
				b.Source.name, lacks, s.reached[lacks], b.required[lacks])
		}
		if time.Since(began) > timeout {
			return s, fmt.Errorf("zone %s waits for the state of %d keys from other zones, or has to ship it after its outbox was full: see /zones of its Sonic", b.Source.name, s.missingKeys)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return s, ctx.Err()
		}
	}
}

// laggingZone returns a zone whose effects the source has not applied up to required, or "".
func (b *Bootstrap) laggingZone(s source) string {
	for _, zone := range slices.Sorted(maps.Keys(b.required)) {
		if zone == b.Source.name && b.Source.isCluster() {
			continue // it has what it has written, and its progress is that of its topic
		}
		if s.reached[zone].Compare(b.required[zone]) < 0 {
			return zone
		}
	}
	return ""
}

// copyVersions copies the hash of versions. It runs before copyKeys, which replaces the versions of
// the copied keys.
func (b *Bootstrap) copyVersions(ctx context.Context) error {
	for some := range slices.Chunk(b.Source.shards(), slotsAtOnce) {
		cursors := map[int]string{} // by shard
		for _, shard := range some {
			cursors[shard] = "0"
		}
		for len(cursors) > 0 {
			if err := b.copySomeVersions(ctx, cursors); err != nil {
				return err
			}
		}
	}
	return nil
}

// copySomeVersions copies some versions of each shard of cursors. It removes those that are at their
// end.
func (b *Bootstrap) copySomeVersions(ctx context.Context, cursors map[int]string) error {
	var calls []primaries.Call
	for shard, cursor := range cursors {
		calls = append(calls, primaries.Call{Slot: shard, Function: "sonic_copy_versions", Args: []any{b.Target.name, cursor, 1000}})
	}
	replies, err := b.Source.calls(ctx, calls)
	if err != nil {
		return err
	}
	for i, reply := range replies {
		step, err := listOf(reply, 2)
		if err != nil {
			return err
		}
		list, err := texts(step[1])
		if err != nil {
			return err
		}
		if err := b.writeVersions(ctx, list, b.target.redis); err != nil {
			return b.Target.wrapError(err)
		}
		if cursors[calls[i].Slot], _ = step[0].(string); step[0] == "0" {
			delete(cursors, calls[i].Slot)
		}
	}
	return nil
}

// hashSlice is how many fields and values go into one HSET.
const hashSlice = 2000

// writeVersions writes a list of versions: field, version, field, version.
func (b *Bootstrap) writeVersions(ctx context.Context, list []string, to redis.Cmdable) error {
	for some := range slices.Chunk(list, hashSlice) {
		if err := to.HSet(ctx, b.target.keys.Versions, some).Err(); err != nil {
			return err
		}
	}
	return nil
}

func (b *Bootstrap) copyKeys(ctx context.Context) error {
	p := Progress{Zone: b.Source.name}
	var err error
	if p.Keys, err = b.Source.keyCount(ctx); err != nil {
		return err
	}
	if err := b.Source.walk(ctx, b.Source, copyBatch, func(db int, names []string) error {
		if err := b.copyNames(ctx, db, names); err != nil {
			return err
		}
		p.Done += int64(len(names))
		if b.Progress != nil && time.Since(b.progressAt) >= progressInterval {
			b.Progress(p)
			b.progressAt = time.Now()
		}
		return nil
	}); err != nil {
		return err
	}
	if b.Progress != nil {
		b.Progress(p)
	}
	return nil
}

// copyBatch is how many keys copySome asks for at once. Redis returns fewer if they are large.
const copyBatch = 64

// copyNames copies keys.
func (b *Bootstrap) copyNames(ctx context.Context, db int, names []string) error {
	left := map[int][]string{} // by shard
	for _, name := range names {
		shard := b.Source.shardOf(name)
		left[shard] = append(left[shard], name)
	}
	for len(left) > 0 {
		var calls []primaries.Call
		for shard, names := range left {
			args := []any{b.Target.name, db}
			for _, name := range names {
				args = append(args, cluster.Slot([]byte(name)), name)
			}
			calls = append(calls, primaries.Call{Slot: shard, Function: "sonic_copy_keys", Args: args})
		}
		replies, err := b.Source.calls(ctx, calls)
		if err != nil {
			return err
		}
		for i, reply := range replies {
			step, err := listOf(reply, 3)
			if err != nil {
				return err
			}
			shard := calls[i].Slot
			text, _ := step[0].(string)
			read, err := strconv.Atoi(text)
			if err != nil || read < 1 || read > len(left[shard]) {
				return errReply
			}
			if err := b.restore(ctx, db, step); err != nil {
				return err
			}
			if left[shard] = left[shard][read:]; len(left[shard]) == 0 {
				delete(left, shard)
			}
		}
	}
	return nil
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
	pipe := b.target.redis.TxPipeline()
	pipe.Select(ctx, db)
	var restored []*redis.StatusCmd
	var versions []string
	for f := range slices.Chunk(list, 5) {
		facts, err := texts(f[4])
		if err != nil {
			return err
		}
		if f[3] != policyCounter && f[3] != policyNone { // these have no versions
			versions = append(versions, facts...)
		}
		expires := f[2]
		if expires == "" {
			expires = "0"
		}
		cmd := redis.NewStatusCmd(ctx, "RESTORE", f[0], expires, f[1], "REPLACE", "ABSTTL")
		restored = append(restored, cmd)
		_ = pipe.Process(ctx, cmd) // the pipeline only queues it
	}
	pipe.Select(ctx, 0)
	for f := range slices.Chunk(list, 5) {
		if f[3] == policyCounter || f[3] == policyNone {
			name, _ := f[0].(string)
			slots, err := reachedOf(f[4])
			if err != nil {
				return err
			}
			of := maps.Clone(at)
			for zone, id := range slots {
				of[zone] = message.Max(of[zone], id)
			}
			pipe.HSet(ctx, b.target.keys.Boot, strconv.Itoa(db)+":"+name, of.text())
		}
	}
	if err := b.writeVersions(ctx, versions, pipe); err != nil {
		return err
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return b.Target.wrapError(err)
	}
	for _, cmd := range restored {
		if err := cmd.Err(); err != nil {
			return b.Target.wrapError(err)
		}
	}
	return nil
}

// text returns "zone id zone id".
func (r Reached) text() string {
	var words []string
	for _, zone := range slices.Sorted(maps.Keys(r)) {
		words = append(words, zone, r[zone].String())
	}
	return strings.Join(words, " ")
}

// list returns the number of zones, followed by zone, id, zone, id.
func (r Reached) list() []any {
	list := []any{len(r)}
	for zone, id := range r {
		list = append(list, zone, id.String())
	}
	return list
}

// finish marks the copy as complete. The target is then in the state of a Redis that has applied
// the effects up to begin.
func (b *Bootstrap) finish(ctx context.Context, begin, end source) error {
	floor := message.ID{}
	for _, id := range end.most {
		floor = message.Max(floor, id)
	}
	cursors := maps.Clone(begin.reached)
	delete(cursors, b.Target.name)
	args := []any{b.Target.name, begin.reached[b.Target.name].String(), floor.String(), begin.pruned.String(), "0"}
	args = append(args, cursors.list()...)
	args = append(args, len(begin.reportedCursors)/2)
	for _, word := range begin.reportedCursors {
		args = append(args, word)
	}
	args = append(args, end.most.list()...)
	reply, err := b.Target.call(ctx, 0, "sonic_filled", args...)
	if err == nil && reply != b.Source.name {
		err = errors.New("the Redis was being filled by another process, too: empty it and run the command again")
	}
	return err
}
