package zones

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/aviaryhq/aviary/internal/sonic/cluster"
	"github.com/aviaryhq/aviary/internal/sonic/primaries"
	"github.com/aviaryhq/aviary/internal/sonic/redislib"
	"github.com/aviaryhq/aviary/internal/sonic/script"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
	"github.com/aviaryhq/aviary/pkg/backoff"
)

// Bootstrap fills the empty Redis of a zone, or its Redis Cluster, from that of another zone, while
// all other zones accept writes. Afterwards the zone's Sonic can be started: it applies the effects
// of the zones since the copy began. If Bootstrap stops before the end, no Sonic opens the Redis,
// and the next Run starts over.
type Bootstrap struct {
	// Source is the zone to copy from. Its Sonic runs and has Target among its zones. Bootstrap
	// does not write to it.
	Source *Zone
	// Target is the zone to fill. Its Redis is empty, or holds the rest of an unfinished Bootstrap.
	// No Sonic runs there.
	Target *Zone
	// Subscribe creates Target's subscriptions, so that Pulsar keeps all later effects for Target.
	// It returns the ends of the topics. Source must have applied the effects up to these before the
	// copy begins, for Target may never receive earlier effects. If nil, Run skips both.
	Subscribe func(ctx context.Context) (Subscribed, error)
	// Progress is called about once a second with the progress of the copy. It may be nil.
	Progress func(Progress)
	// Timeout is how long Run waits until Source has the answers and the effects of the other
	// zones. Default 30s.
	Timeout time.Duration

	subscribed Subscribed   // result of Subscribe
	flush      string       // version of the last flush of a source that has one Redis; empty: none
	boots      map[int]bool // shards of the target with keys without versions

	// Of a target with a Redis Cluster, when it was cleared.
	slots  *cluster.Map
	runIDs string // of the primaries
}

// Subscribed is the ends of the topics when the subscriptions had been made.
type Subscribed struct {
	// Least has the last effects of the topics.
	Least Reached
	// Markers have the last message of each topic that has any. Only a Redis Cluster gets them.
	Markers map[string]primaries.Marker
}

// target is the Redis of a zone that is filled. No other method is called before clear.
type target interface {
	// clear makes sure that the target is empty, and marks it as incomplete.
	clear(ctx context.Context, b *Bootstrap) error
	// keysOf returns the names of the state keys of a shard.
	keysOf(shard int) script.Keys
	// clientOf returns the Redis that has a shard.
	clientOf(b *Bootstrap, shard int) (*redis.Client, error)
	// writeError returns the error for a write that failed.
	writeError(err error) error
	// finish marks the copy as complete. The target is then in the state of a Redis that has applied
	// the effects up to begin.
	finish(ctx context.Context, b *Bootstrap, begin, end source) error
}

// command is a command for keys of a shard, in a database.
type command struct {
	shard, db int
	args      []any
}

// commandsAtOnce is how many commands go into one pipeline.
const commandsAtOnce = 500

// copied is a key of the source.
type copied struct {
	name, dump, expires string
	versions            []string // field, version, field, version
	// at is the progress of the source when it read the key, of a key without versions.
	at Reached
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
	pruned          wire.ID
	missingKeys     int
	reportedCursors []string // field, id, field, id
	slots           []slotCursor
}

// slotCursor is the last effect applied of a slot of a zone with a Redis Cluster.
type slotCursor struct {
	zone string
	slot int
	id   wire.ID
}

// Run fills the zone.
func (b *Bootstrap) Run(ctx context.Context) error {
	b.boots, b.flush = map[int]bool{}, ""
	if err := b.Source.check(ctx); err != nil {
		return err
	}
	if _, err := b.readSource(ctx); err != nil {
		return err
	}
	if err := b.Target.clear(ctx, b); err != nil {
		return err
	}
	if b.Subscribe != nil {
		var err error
		if b.subscribed, err = b.Subscribe(ctx); err != nil {
			return err
		}
	}
	begin, err := b.awaitSource(ctx)
	if err != nil {
		return err
	}
	// The versions come first: copyNames replaces those of the copied keys.
	if err := b.Source.scan(ctx, b.Source.shards(), "sonic_copy_versions", []any{b.Target.name}, func(shard int, list []string) error {
		return b.writeVersions(ctx, shard, list)
	}); err != nil {
		return err
	}
	if err := b.Source.walkAll(ctx, copyBatch, b.Progress, func(db int, names []string) (int, error) {
		return 0, b.copyNames(ctx, db, names)
	}); err != nil {
		return err
	}
	end, err := b.readSource(ctx)
	if err != nil {
		return err
	}
	if end.epoch != begin.epoch || end.runIDs != begin.runIDs {
		return fmt.Errorf("the Redis of zone %s was restarted or replaced during the copy and may have lost data: run the command again", b.Source.name)
	}
	return b.Target.finish(ctx, b, begin, end)
}

// send makes commands at the target, those of one shard in their order.
func (b *Bootstrap) send(ctx context.Context, commands []command) error {
	of := map[*redis.Client][]command{}
	for _, c := range commands {
		db, err := b.Target.clientOf(b, c.shard)
		if err != nil {
			return err
		}
		of[db] = append(of[db], c)
	}
	group, ctx := errgroup.WithContext(ctx)
	for db, list := range of {
		group.Go(func() error {
			for some := range slices.Chunk(list, commandsAtOnce) {
				if err := pipeline(ctx, db, some); err != nil {
					return b.Target.writeError(err)
				}
			}
			return nil
		})
	}
	return group.Wait()
}

// pipeline makes commands in one round trip, and leaves the connection in database 0.
func pipeline(ctx context.Context, db *redis.Client, commands []command) error {
	_, err := db.Pipelined(ctx, func(p redis.Pipeliner) error {
		at := 0
		for _, c := range commands {
			if c.db != at {
				p.Select(ctx, c.db)
			}
			at = c.db
			p.Do(ctx, c.args...)
		}
		if at != 0 {
			p.Select(ctx, 0)
		}
		return nil
	})
	return err
}

// readSource reads the state of the source.
func (b *Bootstrap) readSource(ctx context.Context) (source, error) {
	runIDs, err := b.Source.runIDs(ctx)
	if err != nil {
		return source{}, err
	}
	s, err := b.Source.source(ctx, b.Target.name)
	s.runIDs = runIDs
	return s, err
}

// add adds the reply of a shard to sonic_source. It returns the progress of the shard, and the
// cursors that the target once reported.
func (s *source) add(reply any, err error) (at Reached, reported []string, _ error) {
	v := redislib.ValuesOf(reply, err)
	at = readReached(v.List())
	s.epoch, s.pruned, s.missingKeys = v.Text(), wire.Max(s.pruned, v.ID()), s.missingKeys+int(v.Number())
	return at, texts(v.List()), v.Err()
}

// addSlot adds the cursor of a slot.
func (s *source) addSlot(zone string, slot int, id wire.ID) {
	if id != (wire.ID{}) {
		s.slots = append(s.slots, slotCursor{zone, slot, id})
		s.most[zone] = wire.Max(s.most[zone], after(id))
	}
}

// runIDs returns the run_id of each Redis of the zone. It changes with a restart or a failover.
func (z *Zone) runIDs(ctx context.Context) (string, error) {
	var ids []string
	err := z.each(func(db *redis.Client) error {
		info := db.InfoMap(ctx, "server")
		ids = append(ids, info.Item("Server", "run_id"))
		return z.wrapError(info.Err())
	})
	slices.Sort(ids)
	return strings.Join(ids, " "), err
}

// awaitSource waits until the source knows the state of all of its keys, and has applied the effects
// that the topics had.
func (b *Bootstrap) awaitSource(ctx context.Context) (source, error) {
	timeout := cmp.Or(b.Timeout, 30*time.Second)
	for began := time.Now(); ; {
		s, err := b.readSource(ctx)
		behind := b.laggingZone(s)
		switch late := time.Since(began) > timeout; {
		case err != nil || s.missingKeys == 0 && behind == "":
			return s, err
		case late && behind != "":
			return s, fmt.Errorf("zone %s has the effects of zone %s up to %s, and this zone's cluster has them up to %s: see /zones of its Sonic",
				b.Source.name, behind, s.reached[behind], b.subscribed.Least[behind])
		case late:
			return s, fmt.Errorf("zone %s waits for the state of %d keys from other zones, or has to ship it after its outbox was full: see /zones of its Sonic",
				b.Source.name, s.missingKeys)
		}
		if !backoff.Sleep(ctx, pollInterval) {
			return s, ctx.Err()
		}
	}
}

// laggingZone returns a zone whose effects the source has not applied up to the end of its topic. It
// returns "" if there is none.
func (b *Bootstrap) laggingZone(s source) string {
	for _, zone := range slices.Sorted(maps.Keys(b.subscribed.Least)) {
		if zone == b.Source.name && b.Source.isCluster() {
			continue // it has what it has written, and its progress is that of its topic
		}
		if s.reached[zone].Compare(b.subscribed.Least[zone]) < 0 {
			return zone
		}
	}
	return ""
}

// writeVersions writes versions of a shard of the source: field, version, field, version.
func (b *Bootstrap) writeVersions(ctx context.Context, shard int, list []string) error {
	versions := map[int][]string{}
	switch {
	case !b.Target.isCluster():
		versions[0] = list
	case b.Source.isCluster():
		versions[shard] = list
	default:
		for one := range slices.Chunk(list, 2) {
			if one[0] == "f0" {
				b.flush = one[1]
			}
			if key, ok := keyOf(one[0]); ok && key.DB == 0 {
				slot := cluster.Slot([]byte(key.Name))
				versions[slot] = append(versions[slot], one...)
			}
		}
	}
	return b.send(ctx, b.versionCommands(versions))
}

// hashSlice is how many fields and values go into one HSET.
const hashSlice = 2000

// versionCommands returns the commands that write versions, by shard of the target.
func (b *Bootstrap) versionCommands(versions map[int][]string) (commands []command) {
	for shard, list := range versions {
		for some := range slices.Chunk(list, hashSlice) {
			commands = append(commands, hashSet(shard, b.Target.keysOf(shard).Versions, some...))
		}
	}
	return commands
}

// hashSet returns the command that sets fields of a hash: field, value, field, value.
func hashSet(shard int, key string, fields ...string) command {
	args := []any{"HSET", key}
	for _, word := range fields {
		args = append(args, word)
	}
	return command{shard, 0, args}
}

// copyBatch is how many keys copyNames asks for at once. Redis returns fewer if they are large.
const copyBatch = 64

// copyNames copies keys.
func (b *Bootstrap) copyNames(ctx context.Context, db int, names []string) error {
	call := func(indexes []int) primaries.Call {
		args := []any{b.Target.name, db}
		for _, i := range indexes {
			args = append(args, cluster.Slot([]byte(names[i])), names[i])
		}
		return primaries.Call{Function: "sonic_copy_keys", Args: args}
	}
	return b.Source.read(ctx, names, call, func(_ []int, reply any) (int, error) {
		v := redislib.ValuesOf(reply, nil)
		done := int(v.Number())
		keys := copiedKeys(v)
		if err := v.Err(); err != nil {
			return 0, err
		}
		return done, b.restore(ctx, db, keys)
	})
}

// copiedKeys reads the rest of a reply to sonic_copy_keys.
func copiedKeys(v *redislib.Values) (keys []copied) {
	at := readReached(v.List())
	for list := v.List(); list.More(); {
		key := copied{name: list.Text(), dump: list.Text(), expires: cmp.Or(list.Text(), "0")}
		if policy := list.Text(); policy == policyCounter || policy == policyNone { // these have no versions
			key.at = maps.Clone(at)
			for zone, id := range readReached(list.List()) {
				key.at[zone] = wire.Max(key.at[zone], id)
			}
		} else {
			key.versions = texts(list.List())
		}
		keys = append(keys, key)
	}
	return keys
}

// restore writes keys with their versions.
func (b *Bootstrap) restore(ctx context.Context, db int, keys []copied) error {
	if db != 0 && b.Target.isCluster() && len(keys) > 0 {
		return noDatabase(b.Source, b.Target, db)
	}
	var commands []command
	versions := map[int][]string{}
	for _, k := range keys {
		shard := b.Target.shardOf(k.name)
		commands = append(commands, command{shard, db, []any{"RESTORE", k.name, k.expires, k.dump, "REPLACE", "ABSTTL"}})
		versions[shard] = append(versions[shard], k.versions...)
		if k.at != nil {
			b.boots[shard] = true
			commands = append(commands, hashSet(shard, b.Target.keysOf(shard).Boot, strconv.Itoa(db)+":"+k.name, k.at.text()))
		}
	}
	return b.send(ctx, append(commands, b.versionCommands(versions)...))
}

// noDatabase is the error for a database that a Redis Cluster does not have.
func noDatabase(from, to *Zone, db int) error {
	return fmt.Errorf("zone %s has keys in database %d, and the Redis Cluster of zone %s has database 0 only: delete or move them", from.name, db, to.name)
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

// floor returns an id that is not before any effect that the copy has.
func (s *source) floor() (floor wire.ID) {
	for _, id := range s.most {
		floor = wire.Max(floor, id)
	}
	return floor
}
