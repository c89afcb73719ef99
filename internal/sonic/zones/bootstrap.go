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

	"github.com/aviaryhq/aviary/internal/sonic/cluster"
	"github.com/aviaryhq/aviary/internal/sonic/primaries"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
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

	progressAt time.Time
	subscribed Subscribed // result of Subscribe
	target     target
}

// Subscribed is the ends of the topics when the subscriptions had been made.
type Subscribed struct {
	// Least has the last effects of the topics.
	Least Reached
	// Markers have the last message of each topic that has any. Only a Redis Cluster gets them.
	Markers map[string]primaries.Marker
}

// target is the Redis that is filled. No other method is called before clear.
type target interface {
	// clear makes sure that the target is empty, and marks it as incomplete.
	clear(ctx context.Context) error
	// begin prepares a copy from what the source has at begin.
	begin(ctx context.Context, begin source) error
	// writeVersions writes versions of a shard of the source: field, version, field, version.
	writeVersions(ctx context.Context, shard int, list []string) error
	// restore writes keys.
	restore(ctx context.Context, db int, keys []copied) error
	// finish marks the copy as complete. The target is then in the state of a Redis that has applied
	// the effects up to begin.
	finish(ctx context.Context, begin, end source, subscribed Subscribed) error
}

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
	// slots has the cursors of slots of zones with a Redis Cluster: <zone>/<slot>, id, ..
	slots []string
}

// Run fills the zone.
func (b *Bootstrap) Run(ctx context.Context) error {
	b.target = newTarget(b.Source, b.Target)
	if err := b.Source.check(ctx); err != nil {
		return err
	}
	if _, err := b.readSource(ctx); err != nil {
		return err
	}
	if err := b.target.clear(ctx); err != nil {
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
	if err := b.target.begin(ctx, begin); err != nil {
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
	return b.target.finish(ctx, begin, end, b.subscribed)
}

func newTarget(from, to *Zone) target {
	if store, is := to.store.(*clustered); is {
		return &clusterTarget{from: from, to: to, primaries: store.primaries, boots: map[int]bool{}}
	}
	store, _ := to.store.(*single)
	return &singleTarget{from: from, to: to, redis: store.redis, keys: store.keys}
}

// readSource reads the state of the source.
func (b *Bootstrap) readSource(ctx context.Context) (s source, err error) {
	if s.runIDs, err = b.Source.runIDs(ctx); err != nil {
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
	pruned, err := wire.ParseID(words[1])
	if err != nil {
		return err
	}
	missing, err := strconv.Atoi(words[2])
	if err != nil {
		return errReply
	}
	s.epoch, s.pruned, s.missingKeys = words[0], wire.Max(s.pruned, pruned), s.missingKeys+missing
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
func (s *source) addSlot(zone string, slot int, id wire.ID) {
	if id != (wire.ID{}) {
		s.slots = append(s.slots, zone+"/"+strconv.Itoa(slot), id.String())
		s.most[zone] = wire.Max(s.most[zone], after(id))
	}
}

// runIDs returns the run_id of each Redis of the zone. It changes with a restart or a failover.
func (z *Zone) runIDs(ctx context.Context) (string, error) {
	var ids []string
	err := z.each(func(db *redis.Client) error {
		text, err := db.Info(ctx, "server").Result()
		if err != nil {
			return z.wrapError(err)
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
				b.Source.name, lacks, s.reached[lacks], b.subscribed.Least[lacks])
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
		if err := b.target.writeVersions(ctx, calls[i].Slot, list); err != nil {
			return err
		}
		if cursors[calls[i].Slot], _ = step[0].(string); step[0] == "0" {
			delete(cursors, calls[i].Slot)
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
	var keys []copied
	for f := range slices.Chunk(list, 5) {
		words, err := texts(f[:4])
		if err != nil {
			return err
		}
		key := copied{name: words[0], dump: words[1], expires: cmp.Or(words[2], "0")}
		if policy := words[3]; policy == policyCounter || policy == policyNone { // these have no versions
			slots, err := reachedOf(f[4])
			if err != nil {
				return err
			}
			key.at = maps.Clone(at)
			for zone, id := range slots {
				key.at[zone] = wire.Max(key.at[zone], id)
			}
		} else if key.versions, err = texts(f[4]); err != nil {
			return err
		}
		keys = append(keys, key)
	}
	return b.target.restore(ctx, db, keys)
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

// bootKey returns the field of a key in the hash boot.
func bootKey(db int, name string) string { return strconv.Itoa(db) + ":" + name }
