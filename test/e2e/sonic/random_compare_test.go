package sonic

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/stack"
)

// expiryTolerance is how much the expiries of a key may differ between zones, in ms. A slot that moves
// has its keys expire later by as long as Redis takes for that, for it sends how long they have left.
const (
	expiryTolerance        = 50
	clusterExpiryTolerance = 10_000
)

// soonest is how far the expiry of a key may be ahead that is not compared: zones expire it at
// almost the same time. Writers give expiries of at most three seconds, or of years, so nothing is
// left of the former once this much has passed.
const soonest = 4 * time.Second

// A held is what a Redis holds under a key, in a form that does not depend on how it keeps it.
type held struct {
	kind, content string
	expires       int64 // ms since 1970; -1: never
}

func (h held) String() string {
	if h.kind == "" {
		return "no key"
	}
	return fmt.Sprintf("%s %.600q, expires %d", h.kind, h.content, h.expires)
}

func (h held) equal(o held, tolerance int64) bool {
	return h.kind == o.kind && h.content == o.content && max(h.expires-o.expires, o.expires-h.expires) <= tolerance
}

// holdings reads all keys of a database but Sonic's own.
func holdings(t testing.TB, s *stack.RedisServer, db int) map[string]held {
	t.Helper()
	all := map[string]held{}
	readHoldings(t, s, db, all)
	return all
}

// readHoldings adds what a Redis, or a primary of a Redis Cluster, holds.
func readHoldings(t testing.TB, s *stack.RedisServer, db int, all map[string]held) {
	t.Helper()
	ctx := context.Background()
	c := redis.NewClient(&redis.Options{Addr: s.Addr(), DB: db, MaxRetries: -1})
	defer c.Close()
	for cursor := uint64(0); ; {
		keys, next, err := c.Scan(ctx, cursor, "*", 1000).Result()
		require.NoError(t, err)
		for _, key := range keys {
			if strings.HasPrefix(key, "{sonic:") {
				continue
			}
			if h := holding(ctx, t, c, key); h.kind != "" {
				all[key] = h
			}
		}
		if cursor = next; cursor == 0 {
			return
		}
	}
}

// holding reads one key in one step.
func holding(ctx context.Context, t testing.TB, c *redis.Client, key string) held {
	t.Helper()
	kind, err := c.Type(ctx, key).Result()
	require.NoError(t, err)
	read, ok := map[string][]any{
		"string": {"GET", key}, "list": {"LRANGE", key, 0, -1}, "set": {"SMEMBERS", key}, "hash": {"HGETALL", key},
		"zset": {"ZRANGE", key, 0, -1, "WITHSCORES"}, "stream": {"XRANGE", key, "-", "+"},
	}[kind]
	if !ok {
		return held{} // it has expired
	}
	pipe := c.TxPipeline()
	expires, content := pipe.Do(ctx, "PEXPIRETIME", key), pipe.Do(ctx, read...)
	var info *redis.XInfoStreamCmd
	if kind == "stream" {
		info = pipe.XInfoStream(ctx, key)
	}
	if _, err = pipe.Exec(ctx); err != nil {
		return held{}
	}
	h := held{kind: kind}
	h.expires, err = expires.Int64()
	require.NoError(t, err)
	h.content = canonical(kind, content.Val())
	if info != nil {
		h.content += " last " + info.Val().LastGeneratedID
	}
	return h
}

// canonical writes a reply in an order of its own where Redis has none.
func canonical(kind string, reply any) string {
	switch v := reply.(type) {
	case string:
		if len(v) >= 16 && strings.HasPrefix(v, "HYLL") { // bytes 8 to 15 are the last count, which PFCOUNT changes
			return v[:8] + v[16:]
		}
		return v
	case []any:
		parts := make([]string, 0, len(v))
		for _, part := range v {
			parts = append(parts, canonical("", part))
		}
		if kind == "set" || kind == "zset" {
			slices.Sort(parts)
		}
		return fmt.Sprintf("%q", parts)
	case map[any]any:
		parts := make([]string, 0, len(v))
		for name, value := range v {
			parts = append(parts, fmt.Sprintf("%q: %q", name, value))
		}
		slices.Sort(parts)
		return strings.Join(parts, ", ")
	default:
		return fmt.Sprint(v)
	}
}

// differences are the keys that not all hold the same under.
func differences(all []map[string]held) (found []string) {
	return differencesBut(all, expiryTolerance)
}

// differencesBut is differences with another tolerance of expiries.
func differencesBut(all []map[string]held, tolerance int64) (found []string) {
	keys := map[string]bool{}
	for _, data := range all {
		for key := range data {
			keys[key] = true
		}
	}
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		for _, data := range all[1:] {
			if !all[0][key].equal(data[key], tolerance) {
				found = append(found, key)
				break
			}
		}
	}
	return found
}

// shown is how many differences are shown.
const shown = 4

// compare compares what all zones hold. Nobody writes.
func (w *randomRun) compare() {
	w.t.Helper()
	w.run(soonest) // what expires soon has
	w.awaitAll()
	w.compareNow()
}

// expiring reports whether the key expires soon, or has just expired, in a zone.
func expiring(key string, all []map[string]held) bool {
	until := time.Now().Add(soonest).UnixMilli()
	return slices.ContainsFunc(all, func(data map[string]held) bool { return data[key].expires > 0 && data[key].expires < until })
}

// compareNow is compare without the wait. It leaves out keys that expire soon.
func (w *randomRun) compareNow() {
	w.t.Helper()
	differ, tolerance := 0, int64(expiryTolerance)
	if w.clusters() {
		tolerance = clusterExpiryTolerance
	}
	for db := range w.databases() {
		var all []map[string]held
		keys := 0
		for _, s := range w.sites {
			all = append(all, s.holdings(w.t, db))
			keys = max(keys, len(all[len(all)-1]))
		}
		for _, key := range differencesBut(all, tolerance) {
			if expiring(key, all) {
				continue
			}
			if differ++; differ <= shown {
				w.explain(db, key, all)
			}
		}
		w.event("compared %d keys of db %d", keys, db)
	}
	assert.Zero(w.t, differ, "keys that differ")
}

// explain tells all about a key that differs.
func (w *randomRun) explain(db int, key string, all []map[string]held) {
	w.t.Helper()
	var text strings.Builder
	fmt.Fprintf(&text, "db %d key %q differs\n", db, key)
	for i, s := range w.sites {
		fmt.Fprintf(&text, "  zone %s: %s\n", s.name, all[i][key])
		c := s.client()
		known, err := c.HGetAll(context.Background(), s.keys(key).Versions).Result()
		_ = c.Close()
		fmt.Fprintf(&text, "    knows (%v):", err)
		for _, field := range slices.Sorted(maps.Keys(known)) {
			if strings.HasSuffix(field, strconv.Itoa(db)+":"+key) || strings.HasPrefix(field, fmt.Sprintf("e%d:%d:%s", db, len(key), key)) {
				fmt.Fprintf(&text, " %q=%q", field, known[field])
			}
		}
		text.WriteByte('\n')
	}
	fmt.Fprintf(&text, "  last commands:\n    %s\n", w.ledger.lastOf(key))
	fmt.Fprintf(&text, "  last effects, by their ids:\n    %s\n", strings.Join(w.effectsOf(db, key), "\n    "))
	w.t.Error(text.String())
}

// acknowledged compares what zones hold with what writers were told. Zones are equal.
func (w *randomRun) acknowledged() {
	w.t.Helper()
	ctx := context.Background()
	c := w.sites[0].client()
	defer c.Close()
	value := func(counter string) int64 {
		key, element, in := strings.Cut(counter, "/")
		var text string
		switch {
		case !in:
			text = c.Get(ctx, key).Val()
		case strings.HasPrefix(key, "count:h"):
			text = c.HGet(ctx, key, element).Val()
		default:
			text = strconv.FormatFloat(c.ZScore(ctx, key, element).Val(), 'f', -1, 64)
		}
		if text == "" {
			return 0
		}
		n, err := strconv.ParseInt(text, 10, 64)
		require.NoError(w.t, err, counter)
		return n
	}
	for _, counter := range slices.Sorted(maps.Keys(w.ledger.counters)) {
		t := w.ledger.counters[counter]
		n := value(counter)
		if !w.clusters() { // else there are many
			w.event("counter %s: %d, acknowledged %d, between %d and %d more in doubt", counter, n, t.acknowledged, t.low, t.high)
		}
		assert.GreaterOrEqual(w.t, n, t.acknowledged+t.low, "%s: an acknowledged increment is missing", counter)
		assert.LessOrEqual(w.t, n, t.acknowledged+t.high, "%s: an increment counts twice", counter)
	}
	missing := 0
	for what, o := range w.ledger.own {
		if o != acknowledged {
			continue
		}
		words := strings.Fields(what)
		var there bool
		switch words[0] {
		case "HSET":
			there = c.HExists(ctx, words[1], words[2]).Val()
		case "SADD":
			there = c.SIsMember(ctx, words[1], words[2]).Val()
		default:
			there = c.Exists(ctx, words[1]).Val() == 1
		}
		if !there {
			if missing++; missing <= shown {
				w.t.Errorf("%s was acknowledged and is missing", what)
			}
		}
	}
	assert.Zero(w.t, missing, "acknowledged writes that are missing")
	older := 0
	for key, want := range w.ledger.state {
		if got := c.Get(ctx, key).Val(); got != want {
			if older++; older <= shown {
				w.t.Errorf("%s is %q, and the last write that was acknowledged is of %q", key, got, want)
			}
		}
	}
	assert.Zero(w.t, older, "keys that do not hold what was written last")
	assert.NotEmpty(w.t, w.ledger.own)
}
