// Package zones compares the Redis servers of two zones, repairs keys that differ, and fills an
// empty zone from another one. Clients may write meanwhile.
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

	"github.com/aviaryhq/aviary/internal/sonic/primaries"
	"github.com/aviaryhq/aviary/internal/sonic/script"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
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
	walk(ctx context.Context, z *Zone, count int, visit func(db int, names []string) error) error
	// reached returns the progress for zones. All effects up to it are applied.
	reached(ctx context.Context, z *Zone) (Reached, error)
	// progress returns the progress from which a copy goes on, and the cursors that a zone once told:
	// "<zone> <other>", id, .. For one Redis, sonic_source tells both.
	progress(ctx context.Context, z *Zone, asker string) (at Reached, told []string, err error)
	// addSlots adds cursors of slots that sonic_source does not tell.
	addSlots(ctx context.Context, s *source) error
	// holds returns, of each zone, an id that is not before any effect that the values of keys have.
	holds(ctx context.Context, z *Zone, keys []Key, zones []string) (Reached, error)
}

// New returns the zone of that name and shard, which has one Redis. It sends no request. The client
// must use RESP2 and database 0.
func New(name string, db *redis.Client, shard int) *Zone {
	return &Zone{name, &single{db, script.KeysOf(shard)}}
}

// NewCluster returns the zone of that name, which has a Redis Cluster. It sends no request. Clients
// of p must use RESP2.
func NewCluster(name string, p *primaries.Primaries) *Zone { return &Zone{name, &clustered{p}} }

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

// list calls a function whose reply is a list of n values.
func (z *Zone) list(ctx context.Context, shard, n int, function string, args ...any) ([]any, error) {
	reply, err := z.call(ctx, shard, function, args...)
	if err != nil {
		return nil, err
	}
	return listOf(reply, n)
}

func listOf(reply any, n int) ([]any, error) {
	list, ok := reply.([]any)
	if !ok || len(list) != n {
		return nil, errReply
	}
	return list, nil
}

// errReply says that a reply does not have the expected form.
var errReply = errors.New("an unexpected reply of the library")

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
	at, err := z.progressOf(ctx, 0)
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
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for ; ; accepted = true {
		reply, err := z.call(ctx, 0, "sonic_accept")
		if err != nil || reply != int64(1) {
			return accepted, err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return false, fmt.Errorf("the Sonic of zone %s has not opened this Redis within %s: see its log", z.name, acceptTimeout)
		}
	}
}

// digests returns the values of keys. For many or large values it makes several calls, also for one
// large key, so that Redis can serve clients in between.
func (z *Zone) digests(ctx context.Context, db int, names []string) ([]entry, error) {
	all := make([]entry, len(names))
	left := map[int][]int{} // by shard, the indexes of the names that are not read yet
	for i, name := range names {
		shard := z.shardOf(name)
		left[shard] = append(left[shard], i)
	}
	for len(left) > 0 {
		var calls []primaries.Call
		for shard, indexes := range left {
			args := []any{db}
			for _, i := range indexes {
				args = append(args, names[i])
			}
			calls = append(calls, primaries.Call{Slot: shard, Function: "sonic_digests", Args: args})
		}
		replies, err := z.calls(ctx, calls)
		if err != nil {
			return nil, err
		}
		for n, reply := range replies {
			shard := calls[n].Slot
			_, some, err := digestsOf(reply, len(left[shard]))
			if err != nil {
				return nil, err
			}
			for k, e := range some {
				all[left[shard][k]] = e
			}
			if left[shard] = left[shard][len(some):]; len(left[shard]) == 0 {
				delete(left, shard)
			}
		}
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
		reply, err := z.list(ctx, z.shardOf(name), 2, "sonic_digest_piece", db, name, kind, at, digest)
		if err != nil {
			return "", err
		}
		next, err := texts(reply)
		if err != nil {
			return "", err
		}
		if at, digest = next[0], next[1]; at == "" {
			return digest, nil
		}
	}
}

// progressOf returns the progress of a shard.
func (z *Zone) progressOf(ctx context.Context, shard int) (Reached, error) {
	reply, err := z.call(ctx, shard, "sonic_digests", 0)
	if err != nil {
		return nil, err
	}
	at, _, err := digestsOf(reply, 0)
	return at, err
}

// digestsOf reads the reply to a call of sonic_digests with n names.
func digestsOf(reply any, n int) (Reached, []entry, error) {
	list, err := listOf(reply, 2)
	if err != nil {
		return nil, nil, err
	}
	at, err := reachedOf(list[0])
	if err != nil {
		return nil, nil, err
	}
	found, err := entriesOf(list[1])
	if err == nil && (len(found) > n || len(found) == 0 && n > 0) {
		err = errReply
	}
	return at, found, err
}

// keyCount returns how many keys the zone has, with the library's own.
func (z *Zone) keyCount(ctx context.Context) (n int64, err error) {
	err = z.each(func(db *redis.Client) error {
		found, err := databases(ctx, db)
		for _, keys := range found {
			n += keys
		}
		return z.wrapError(err)
	})
	return n, err
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

func texts(reply any) ([]string, error) {
	list, ok := reply.([]any)
	if !ok {
		return nil, errReply
	}
	words := make([]string, len(list))
	for i, v := range list {
		if words[i], ok = v.(string); !ok {
			return nil, errReply
		}
	}
	return words, nil
}

func reachedOf(reply any) (Reached, error) {
	words, err := texts(reply)
	if err != nil || len(words)%2 != 0 {
		return nil, errReply
	}
	at := Reached{}
	for i := 0; i < len(words); i += 2 {
		if at[words[i]], err = wire.ParseID(words[i+1]); err != nil {
			return nil, err
		}
	}
	return at, nil
}

func entriesOf(reply any) ([]entry, error) {
	words, err := texts(reply)
	if err != nil || len(words)%5 != 0 {
		return nil, errReply
	}
	var found []entry
	for w := range slices.Chunk(words, 5) {
		v := Value{Type: w[1], Digest: w[2], Expires: -1, Policy: w[4]}
		if w[3] != "" {
			if v.Expires, err = strconv.ParseInt(w[3], 10, 64); err != nil {
				return nil, errReply
			}
		}
		found = append(found, entry{w[0], v})
	}
	return found, nil
}
