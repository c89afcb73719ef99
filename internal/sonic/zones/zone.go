// Package zones compares the Redis servers of two zones, repairs keys that differ, and fills an
// empty zone from another one. Clients may write meanwhile. The package may import primaries,
// redislib and the packages that these import.
package zones

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/aviaryhq/aviary/internal/sonic/primaries"
	"github.com/aviaryhq/aviary/internal/sonic/redislib"
	"github.com/aviaryhq/aviary/internal/sonic/script"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
	"github.com/aviaryhq/aviary/pkg/backoff"
)

// Zone is the Redis of a zone, or its Redis Cluster. It is safe for concurrent use.
type Zone struct {
	name string
	store
}

// store is the Redis of a zone. It consists of shards, which have versions and progress of their
// own: one, or one for each slot of a Redis Cluster. The slot of a call is its shard.
type store interface {
	shardOf(key string) int
	shards() []int
	// do makes calls, and returns the replies in the order of calls. Calls of one shard are executed in
	// their order.
	do(ctx context.Context, calls []primaries.Call) ([]primaries.Reply, error)
	// each calls f for each Redis that can have keys.
	each(f func(db *redis.Client) error) error
	// walk calls visit with the names of all keys, count of a database at a time at most or a few more,
	// without the library's own ones.
	walk(ctx context.Context, count int, visit func(db int, names []string) error) error
	// reached returns the progress for zones. All effects up to it are applied.
	reached(ctx context.Context) (Reached, error)
	// holds returns, of each zone, an id that is not before any effect that the values of keys have.
	holds(ctx context.Context, keys []Key, zones []string) (Reached, error)
	// source returns the state from which another zone is filled.
	source(ctx context.Context, asker string) (source, error)
	target
}

// New returns the zone of that name, which has one Redis. It sends no request. The client must use
// RESP2 and database 0.
func New(name string, db *redis.Client) *Zone {
	z := &Zone{name: name}
	z.store = &single{z, db, script.KeysOf(0)}
	return z
}

// NewCluster returns the zone of that name, which has a Redis Cluster. It sends no request. Clients
// of p must use RESP2.
func NewCluster(name string, p *primaries.Primaries) *Zone {
	z := &Zone{name: name}
	z.store = &clustered{z, p}
	return z
}

// Name returns the zone's name.
func (z *Zone) Name() string { return z.name }

// Key is a key of a database.
type Key struct {
	DB   int
	Name string
}

func (k Key) String() string { return fmt.Sprintf("%q of db %d", k.Name, k.DB) }

// Value is the value of a key in a zone.
type Value struct {
	// Type is the reply of the command TYPE; none: the key does not exist.
	Type string
	// Digest is a digest of the content. It does not depend on the encoding that Redis has chosen.
	Digest string
	// Expires is in ms since 1970; -1: never.
	Expires int64
	// Policy of conflicts about the key: l (lww), n (none) or c (counter).
	Policy string
}

func (v Value) String() string {
	switch {
	case v.Type == none:
		return "no key"
	case v.Expires < 0:
		return fmt.Sprintf("a %s of digest %.12s", v.Type, v.Digest)
	default:
		return fmt.Sprintf("a %s of digest %.12s that expires at %d", v.Type, v.Digest, v.Expires)
	}
}

// none is the type of a key that does not exist.
const none = "none"

// Policies in the notation of the library.
const (
	policyNone    = "n"
	policyCounter = "c"
)

// entry is a key's name with its value.
type entry struct {
	name  string
	value Value
}

// Reached is the progress of a Redis, by zone: the last effect of its own zone, and the last effect
// that it has applied of each other zone. For a zone with a Redis Cluster it is a time instead: an
// id without a sequence number, before which all effects are applied.
type Reached map[string]wire.ID

// behind returns those of zones whose effects have been applied further at other than at r.
func (r Reached) behind(other Reached, zones []string) []string {
	return slices.DeleteFunc(slices.Clone(zones), func(zone string) bool { return r[zone].Compare(other[zone]) >= 0 })
}

// changed reports whether the progress for one of these zones differs between r and now.
func (r Reached) changed(now Reached, zones []string) bool {
	return slices.ContainsFunc(zones, func(zone string) bool { return now[zone] != r[zone] })
}

// call calls a function of the library for a shard. The reply is nil if Redis replies null.
func (z *Zone) call(ctx context.Context, shard int, function string, args ...any) (any, error) {
	replies, err := z.calls(ctx, []primaries.Call{{Slot: shard, Function: function, Args: args}})
	if err != nil {
		return nil, err
	}
	return replies[0], nil
}

// calls is call for several calls. It returns an error if one of them fails.
func (z *Zone) calls(ctx context.Context, calls []primaries.Call) ([]any, error) {
	replies, err := z.do(ctx, calls)
	if err != nil {
		return nil, z.wrapError(err)
	}
	values := make([]any, len(replies))
	for i, r := range replies {
		switch {
		case r.Err == nil:
			values[i] = r.Value
		case errors.Is(r.Err, redis.Nil):
		case strings.Contains(r.Err.Error(), "Function not found"):
			// Loading the library here would close this Redis for writes until its Sonic opens it.
			return nil, fmt.Errorf("the Redis of zone %s does not have this version's functions: start this version of Sonic there", z.name)
		default:
			return nil, z.wrapError(r.Err)
		}
	}
	return values, nil
}

func (z *Zone) wrapError(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("the Redis of zone %s: %w", z.name, err)
}

// slotsAtOnce is of how many shards calls are made at once.
const slotsAtOnce = 64

// scan calls a function that reads a hash in steps, for each shard, and visit with what each step
// has found.
func (z *Zone) scan(ctx context.Context, shards []int, function string, args []any, visit func(shard int, list []string) error) error {
	for some := range slices.Chunk(shards, slotsAtOnce) {
		cursors := map[int]string{} // by shard
		for _, shard := range some {
			cursors[shard] = "0"
		}
		for len(cursors) > 0 {
			var calls []primaries.Call
			for shard, cursor := range cursors {
				calls = append(calls, primaries.Call{Slot: shard, Function: function, Args: append(slices.Clone(args), cursor, 1000)})
			}
			replies, err := z.calls(ctx, calls)
			if err != nil {
				return err
			}
			for i, reply := range replies {
				shard := calls[i].Slot
				next, list, err := readStep(reply, nil)
				if err != nil {
					return err
				}
				if err := visit(shard, list); err != nil {
					return err
				}
				if cursors[shard] = next; next == "0" {
					delete(cursors, shard)
				}
			}
		}
	}
	return nil
}

// read calls a function that reads keys. For many or large keys it makes several calls, so that Redis
// can serve clients in between: take gets the indexes in names that a call had, and the reply, and
// returns how many of the keys the reply has.
func (z *Zone) read(ctx context.Context, names []string, call func(indexes []int) primaries.Call, take func(indexes []int, reply any) (int, error)) error {
	left := map[int][]int{} // by shard
	for i, name := range names {
		shard := z.shardOf(name)
		left[shard] = append(left[shard], i)
	}
	for len(left) > 0 {
		var calls []primaries.Call
		for shard, indexes := range left {
			c := call(indexes)
			c.Slot = shard
			calls = append(calls, c)
		}
		replies, err := z.calls(ctx, calls)
		if err != nil {
			return err
		}
		for i, reply := range replies {
			shard := calls[i].Slot
			done, err := take(left[shard], reply)
			if err != nil {
				return err
			}
			if done < 1 || done > len(left[shard]) {
				return fmt.Errorf("the Redis of zone %s returned %d of %d keys", z.name, done, len(left[shard]))
			}
			if left[shard] = left[shard][done:]; len(left[shard]) == 0 {
				delete(left, shard)
			}
		}
	}
	return nil
}

// check makes sure that this is the zone's Redis, and that it runs this version of the library:
// other versions may use other formats.
func (z *Zone) check(ctx context.Context) error {
	_, version, err := script.Library()
	if err != nil {
		return err
	}
	if err := z.each(func(db *redis.Client) error {
		// If this call fails, reached below reports the error.
		if found, err := db.Do(ctx, "FCALL_RO", "sonic_version", 0).Text(); err == nil && found != version {
			return fmt.Errorf("the Redis of zone %s runs functions of another version: start this version of Sonic there", z.name)
		}
		return nil
	}); err != nil {
		return err
	}
	at, err := z.firstProgress(ctx)
	if err != nil {
		return err
	}
	if _, found := at[z.name]; !found {
		return fmt.Errorf("the Redis of zone %s holds the state of %q: give the right URL", z.name, slices.Collect(maps.Keys(at)))
	}
	return nil
}

// acceptTimeout is how long AcceptHistory waits for the zone's Sonic.
const acceptTimeout = time.Minute

// AcceptHistory makes the zone's Sonic continue with this Redis although the topic has a different
// history, and waits until the Sonic has opened it. It returns false if there was nothing to accept,
// as always with a Redis Cluster.
func (z *Zone) AcceptHistory(ctx context.Context) (accepted bool, err error) {
	if z.isCluster() {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, acceptTimeout)
	defer cancel()
	for ; ; accepted = true {
		reply, err := z.call(ctx, 0, "sonic_accept")
		if err != nil || reply != int64(1) {
			return accepted, err
		}
		if !backoff.Sleep(ctx, pollInterval) {
			return false, fmt.Errorf("the Sonic of zone %s has not opened this Redis within %s: see its log", z.name, acceptTimeout)
		}
	}
}

// digests returns the values of keys. It reads a large key in many calls.
func (z *Zone) digests(ctx context.Context, db int, names []string) ([]entry, error) {
	all := make([]entry, len(names))
	call := func(indexes []int) primaries.Call {
		args := []any{db}
		for _, i := range indexes {
			args = append(args, names[i])
		}
		return primaries.Call{Function: "sonic_digests", Args: args}
	}
	if err := z.read(ctx, names, call, func(indexes []int, reply any) (int, error) {
		_, found, err := readDigests(reply, nil)
		for k, e := range found[:min(len(found), len(indexes))] {
			all[indexes[k]] = e
		}
		return len(found), err
	}); err != nil {
		return nil, err
	}
	for i := range all {
		if v := &all[i].value; v.Type != none && v.Digest == "" {
			var err error
			if v.Digest, err = z.digestInPieces(ctx, db, all[i].name, v.Type); err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}

// digestInPieces returns the digest of a large key of a type, which it reads in many calls. If the
// key changes meanwhile, the digest is that of no content.
func (z *Zone) digestInPieces(ctx context.Context, db int, name, kind string) (digest string, err error) {
	for at := ""; ; {
		next := redislib.ValuesOf(z.call(ctx, z.shardOf(name), "sonic_digest_piece", db, name, kind, at, digest))
		if at, digest = next.Text(), next.Text(); at == "" {
			return digest, next.Err()
		}
	}
}

// firstProgress returns the progress of the first shard.
func (z *Zone) firstProgress(ctx context.Context) (Reached, error) {
	at, _, err := readDigests(z.call(ctx, 0, "sonic_digests", 0))
	return at, err
}

// walkAll walks through the keys, and calls report, which may be nil, about once a second and at the
// end. visit returns how many keys differed so far.
func (z *Zone) walkAll(ctx context.Context, count int, report func(Progress), visit func(db int, names []string) (differed int, err error)) error {
	p := Progress{Zone: z.name}
	if report == nil {
		report = func(Progress) {}
	}
	err := z.each(func(db *redis.Client) error {
		found, err := databases(ctx, db)
		for _, keys := range found {
			p.Keys += keys
		}
		return z.wrapError(err)
	})
	if err != nil {
		return err
	}
	var reported time.Time
	err = z.walk(ctx, count, func(db int, names []string) error {
		differed, err := visit(db, names)
		if err != nil {
			return err
		}
		p.Done, p.Suspects = p.Done+int64(len(names)), int64(differed)
		if time.Since(reported) >= progressInterval {
			report(p)
			reported = time.Now()
		}
		return nil
	})
	if err == nil {
		report(p)
	}
	return err
}

// databases returns the number of keys of each database that has keys.
func databases(ctx context.Context, redis *redis.Client) (map[int]int64, error) {
	text, err := redis.Info(ctx, "keyspace").Result()
	if err != nil {
		return nil, err
	}
	found := map[int]int64{}
	for line := range strings.Lines(text) {
		var db int
		var keys int64
		if n, _ := fmt.Sscanf(line, "db%d:keys=%d,", &db, &keys); n == 2 {
			found[db] = keys
		}
	}
	return found, nil
}
