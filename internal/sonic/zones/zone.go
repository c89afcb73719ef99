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

	"github.com/aviaryhq/aviary/internal/sonic/message"
	"github.com/aviaryhq/aviary/internal/sonic/script"
)

// Zone is the Redis of a zone. It is safe for concurrent use.
type Zone struct {
	name  string
	redis *redis.Client
	keys  script.Keys
}

// New returns the zone of that name and shard. It sends no request. The client must use RESP2 and
// database 0.
func New(name string, db *redis.Client, shard int) *Zone {
	return &Zone{name: name, redis: db, keys: script.KeysOf(shard)}
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
// that it has applied of each other zone.
type Reached map[string]message.ID

// behind returns those of zones whose effects have been applied further at other than at r.
func (r Reached) behind(other Reached, zones []string) []string {
	return slices.DeleteFunc(slices.Clone(zones), func(zone string) bool { return r[zone].Compare(other[zone]) >= 0 })
}

// changed reports whether the progress for one of these zones differs between r and now.
func (r Reached) changed(now Reached, zones []string) bool {
	return slices.ContainsFunc(zones, func(zone string) bool { return now[zone] != r[zone] })
}

// call calls a function of the library. The reply is nil if Redis replies null.
func (z *Zone) call(ctx context.Context, function string, args ...any) (any, error) {
	reply, err := z.redis.Do(ctx, append([]any{"FCALL", function, 1, z.keys.Outbox}, args...)...).Result()
	switch {
	case err == nil:
		return reply, nil
	case errors.Is(err, redis.Nil):
		return nil, nil
	case strings.Contains(err.Error(), "Function not found"):
		// Loading the library here would close this Redis for writes until its Sonic opens it.
		return nil, fmt.Errorf("the Redis of zone %s does not have this version's functions: start this version of Sonic there", z.name)
	default:
		return nil, fmt.Errorf("the Redis of zone %s: %w", z.name, err)
	}
}

// list calls a function whose reply is a list of n values.
func (z *Zone) list(ctx context.Context, n int, function string, args ...any) ([]any, error) {
	reply, err := z.call(ctx, function, args...)
	if err != nil {
		return nil, err
	}
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
	// If this call fails, reached below reports the error.
	if found, err := z.redis.Do(ctx, "FCALL_RO", "sonic_version", 0).Text(); err == nil && found != version {
		return fmt.Errorf("the Redis of zone %s runs functions of another version: start this version of Sonic there", z.name)
	}
	at, err := z.reached(ctx)
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
// history, and waits until the Sonic has opened it. It returns false if there was nothing to accept.
func (z *Zone) AcceptHistory(ctx context.Context) (accepted bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, acceptTimeout)
	defer cancel()
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for ; ; accepted = true {
		reply, err := z.call(ctx, "sonic_accept")
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

// reached returns the progress of the Redis.
func (z *Zone) reached(ctx context.Context) (Reached, error) {
	at, _, err := z.digestsOnce(ctx, 0, nil)
	return at, err
}

// digests returns the values of keys. For many or large values it makes several calls, also for one
// large key, so that Redis can serve clients in between.
func (z *Zone) digests(ctx context.Context, db int, names []string) ([]entry, error) {
	all := make([]entry, 0, len(names))
	for len(all) < len(names) {
		_, some, err := z.digestsOnce(ctx, db, names[len(all):])
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
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
		reply, err := z.list(ctx, 2, "sonic_digest_piece", db, name, kind, at, digest)
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

// digestsOnce returns the progress of the Redis and, at the same moment, the values of the first
// keys of names, at least one.
func (z *Zone) digestsOnce(ctx context.Context, db int, names []string) (Reached, []entry, error) {
	args := []any{db}
	for _, name := range names {
		args = append(args, name)
	}
	reply, err := z.list(ctx, 2, "sonic_digests", args...)
	if err != nil {
		return nil, nil, err
	}
	at, err := reachedOf(reply[0])
	if err != nil {
		return nil, nil, err
	}
	found, err := entriesOf(reply[1])
	if err == nil && (len(found) > len(names) || len(found) == 0 && len(names) > 0) {
		err = errReply
	}
	return at, found, err
}

// scan makes one step of SCAN through a database, without the library's own keys. The cursor "0"
// marks the end.
func (z *Zone) scan(ctx context.Context, db int, cursor string, count int) (next string, names []string, err error) {
	reply, err := z.list(ctx, 2, "sonic_walk", db, cursor, count)
	if err != nil {
		return "", nil, err
	}
	next, _ = reply[0].(string)
	names, err = texts(reply[1])
	return next, names, err
}

// databases returns the number of keys of each database that has keys.
func (z *Zone) databases(ctx context.Context) (map[int]int64, error) {
	text, err := z.redis.Info(ctx, "keyspace").Result()
	if err != nil {
		return nil, fmt.Errorf("the Redis of zone %s: %w", z.name, err)
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

// runID returns the run_id of the server, which changes with a restart or a failover.
func (z *Zone) runID(ctx context.Context) (string, error) {
	text, err := z.redis.Info(ctx, "server").Result()
	if err != nil {
		return "", fmt.Errorf("the Redis of zone %s: %w", z.name, err)
	}
	for line := range strings.Lines(text) {
		if id, found := strings.CutPrefix(strings.TrimSpace(line), "run_id:"); found {
			return id, nil
		}
	}
	return "", errReply
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
		if at[words[i]], err = message.ParseID(words[i+1]); err != nil {
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
