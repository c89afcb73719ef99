package zones_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/script"
	"github.com/aviaryhq/aviary/internal/sonic/zones"
	"github.com/aviaryhq/aviary/test/await"
)

// fill writes keys of every type in both zones.
func (w *zoneGroup) fill() {
	w.t.Helper()
	for i := range 40 {
		z := w.zones[w.names[i%len(w.names)]]
		z.write(0, "set", fmt.Sprint("str", i), fmt.Sprint("v", i))
		z.write(0, "hset", fmt.Sprint("hash", i), "a", i, "b", "x", "c", "y")
		z.write(0, "sadd", fmt.Sprint("set", i), "a", "b", i)
		z.write(0, "zadd", fmt.Sprint("zset", i), 1.5, "a", i, "b")
		z.write(0, "rpush", fmt.Sprint("list", i), "a", "b", "a")
		z.write(0, "xadd", fmt.Sprint("stream", i), "*", "f", i)
		z.write(w.db(3), "set", fmt.Sprint("far", i), "of db 3", "EX", 1000)
		z.write(0, "incrby", fmt.Sprint("c:", i), i)
		z.write(0, "hset", fmt.Sprint("n:", z.Name(), ":f", i), "a", i)
	}
	w.zones["a"].write(0, "pfadd", "pf", "x", "y", "z")
	w.zones["a"].write(0, "hset", "a\xff key \"of\" any\nbytes", "a\xfe", "\x00")
}

func TestZonesThatDidNotDrift(t *testing.T) {
	t.Parallel()
	w := newZones(t, "a", "b")
	w.fill()
	stop := w.writing("a", "b")
	defer stop()
	assert.Empty(t, w.differences("a", "b"))
	assert.Empty(t, w.differences("b", "a"))
}

// drift changes keys of zone b in ways that no Sonic sees, and returns what a check is to find.
func (w *zoneGroup) drift() []string {
	w.t.Helper()
	w.fill()
	require.Empty(w.t, w.differences("a", "b"))
	a, b := w.zones["a"], w.zones["b"]
	// What is no drift.
	b.behind(0, "PFCOUNT", "pf")
	b.behind(0, "XGROUP", "CREATE", "stream0", "group", "0")
	a.behind(0, "SET", "short", "v", "PX", 5000)
	b.behind(0, "SREM", "set0", "b")
	b.behind(0, "SADD", "set0", "b") // in another order, perhaps
	// What is.
	b.behind(0, "DEL", "str1")
	b.behind(0, "SET", "str2", "other")
	b.behind(0, "HSET", "hash3", "d", "more")
	b.behind(0, "HDEL", "hash4", "a")
	b.behind(0, "SREM", "set5", "a")
	b.behind(0, "ZADD", "zset6", 1.25, "a")
	b.behind(0, "LPOP", "list7")
	b.behind(0, "XADD", "stream8", "*", "f", "v")
	b.behind(0, "PEXPIRE", "str9", 1_000_000)
	b.behind(w.db(3), "PERSIST", "far10")
	b.behind(0, "DEL", "set11")
	b.behind(0, "SET", "set11", "a string now")
	b.behind(w.db(3), "SET", "only in b", "v")
	a.behind(w.db(5), "RPUSH", "only in a", "v")
	want := []string{
		"0 hash3", "0 hash4", "0 list7", "0 set11", "0 set5", "0 str1", "0 str2", "0 str9", "0 stream8", "0 zset6",
		fmt.Sprint(w.db(3), " only in b"), fmt.Sprint(w.db(3), " far10"), fmt.Sprint(w.db(5), " only in a"),
	}
	slices.Sort(want)
	return want
}

// pairs are two zones, of which none, one or both have a Redis Cluster.
func pairs() map[string][]string {
	return map[string][]string{
		"two Redis": {"a", "b"}, "a Redis and a cluster": {"a", "b*"}, "two clusters": {"a*", "b*"},
	}
}

func TestDriftIsFoundFromBothSides(t *testing.T) {
	t.Parallel()
	for name, names := range pairs() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newZones(t, names...)
			want := w.drift()
			stop := w.writing("a", "b")
			defer stop()
			assert.Equal(t, want, w.differences("a", "b"))
			assert.Equal(t, want, w.differences("b", "a"))
		})
	}
}

func TestManyKeysOfManyDatabases(t *testing.T) {
	t.Parallel()
	w := newZones(t, "a", "b")
	a, b := w.zones["a"], w.zones["b"]
	pipe := a.client.Pipeline()
	for i := range 3000 {
		pipe.Do(t.Context(), "FCALL", "sonic_set", 1, a.out, fmt.Sprint(i%3), fmt.Sprint("k", i), i)
	}
	_, err := pipe.Exec(t.Context())
	require.NoError(t, err)
	require.Empty(t, w.differences("a", "b"))
	b.behind(1, "FLUSHDB")
	c := w.check("a", "b")
	told := 0
	c.Progress = func(p zones.Progress) { told++; assert.NotEmpty(t, p.String()) }
	found, err := c.Run(t.Context())
	require.NoError(t, err)
	assert.Len(t, found, 1000)
	assert.Positive(t, told)
	for _, d := range found {
		require.Equal(t, 1, d.DB)
		require.Equal(t, "none", d.Values["b"].Type)
		require.Equal(t, "string", d.Values["a"].Type)
	}
}

func TestAZoneThatStandsStill(t *testing.T) {
	t.Parallel()
	w := newZones(t, "a", "b")
	w.fill()
	require.Empty(t, w.differences("a", "b"))
	b := w.zones["b"]
	b.mu.Lock()
	b.open = false
	b.mu.Unlock()
	w.zones["a"].write(0, "set", "str0", "not in b yet")
	c := w.check("a", "b")
	c.ProgressTimeout = 300 * time.Millisecond
	require.EventuallyWithT(t, func(r *assert.CollectT) { // on a busy machine, a may need longer for what b wrote before
		_, err := c.Run(t.Context())
		require.ErrorContains(r, err, "zones a and b still have different effects: a waits for effects of zones [], b for effects of [\"a\"]")
	}, await.Patience, time.Millisecond)
}

// A zone lacks effects of a third one, and beats go on between the two that are compared.
func TestAThirdZoneIsNotHeard(t *testing.T) {
	t.Parallel()
	w := newZones(t, "a", "b", "c")
	w.zones["b"].mu.Lock()
	w.zones["b"].at["c"] = 1 << 30
	w.zones["b"].mu.Unlock()
	w.zones["c"].write(0, "set", "k", "not in b")
	require.Eventually(t, func() bool { return w.zones["a"].client.Exists(t.Context(), "k").Val() == 1 }, await.Patience, 5*time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	c := w.check("a", "b")
	c.ProgressTimeout = 300 * time.Millisecond
	_, err := c.Run(ctx)
	require.ErrorContains(t, err, `b for effects of ["c"]`)
}

// Large keys do not come in one call: Redis serves clients in between.
func TestLargeKeysComeOneByOne(t *testing.T) {
	t.Parallel()
	w := newZones(t, "a", "b")
	a, b := w.zones["a"], w.zones["b"]
	members := []any{"large"}
	for i := range 6000 {
		members = append(members, i)
	}
	for i := range 3 {
		members[0] = fmt.Sprint("large", i)
		a.write(0, "sadd", members...)
	}
	require.Empty(t, w.differences("a", "b"))
	args := []any{"FCALL", "sonic_digests", 1, a.out, 0}
	for i := range 3 {
		args = append(args, fmt.Sprint("large", i))
	}
	reply, err := a.client.Do(t.Context(), args...).Slice()
	require.NoError(t, err)
	require.Len(t, reply[1], 2*5, "two of them are enough for one call")
	b.behind(0, "SREM", "large2", 17)
	require.Equal(t, []string{"0 large2"}, w.differences("a", "b"))
	b.lose()
	require.NoError(t, w.bootstrap("a", "b"))
	b.recover()
	w.awaitEqual()
}

// Redis keeps equal sorted sets as listpacks or as skiplists. ZSCAN of Redis 7.2 and newer writes the
// scores of these in different ways. With Redis 7.0 this test cannot fail.
func TestEqualScoresInDifferentEncodings(t *testing.T) {
	t.Parallel()
	w := newZones(t, "a", "b")
	a, b := w.zones["a"], w.zones["b"]
	for _, z := range []*zone{a, b} {
		z.behind(0, "ZADD", "zset", "0.1", "a", "-3.3", "b", "1e17", "c", "inf", "d", "-inf", "e")
	}
	b.behind(0, "EVAL", `
for i = 1, 1000 do redis.call('ZADD', 'zset', i, 'member' .. i) end
for i = 1, 1000 do redis.call('ZREM', 'zset', 'member' .. i) end
return 1`, 0)
	require.Equal(t, "listpack", a.client.ObjectEncoding(t.Context(), "zset").Val())
	require.Equal(t, "skiplist", b.client.ObjectEncoding(t.Context(), "zset").Val())
	require.Empty(t, w.differences("a", "b"))
	b.behind(0, "ZADD", "zset", "0.2", "a")
	require.Equal(t, []string{"0 zset"}, w.differences("a", "b"))
}

// A large key of any type is compared in pieces, and each difference in one is found.
func TestLargeKeysAreReadInPieces(t *testing.T) {
	t.Parallel()
	w := newZones(t, "a", "b")
	a, b := w.zones["a"], w.zones["b"]
	const n = 12000
	for _, z := range []*zone{a, b} {
		z.behind(1, "EVAL", `
for i = 1, tonumber(ARGV[1]) do
	redis.call('HSET', 'hash', 'field' .. i, i)
	redis.call('SADD', 'set', 'member' .. i)
	redis.call('ZADD', 'zset', i, 'member' .. i)
	redis.call('RPUSH', 'list', i)
	redis.call('XADD', 'stream', i .. '-1', 'field', i)
end
return redis.call('SET', 'string', string.rep('0123456789', 500000))`, 0, n)
	}
	require.Empty(t, w.differences("a", "b"))
	a.behind(1, "SET", "empty", "")
	small, err := a.client.Do(t.Context(), "FCALL", "sonic_digests", 1, a.out, 1, "empty").Slice()
	require.NoError(t, err)
	require.NotEmpty(t, small[1].([]any)[2], "an empty string is not large")
	require.Equal(t, []string{"1 empty"}, w.differences("a", "b"))
	a.behind(1, "DEL", "empty")
	for _, kind := range []string{"hash", "set", "zset", "list", "stream", "string"} {
		reply, err := a.client.Do(t.Context(), "FCALL", "sonic_digests", 1, a.out, 1, kind).Slice()
		require.NoError(t, err)
		require.Empty(t, reply[1].([]any)[2], "the %s is large", kind)
		calls := 0
		for at, digest := "", ""; calls == 0 || at != ""; calls++ {
			piece, err := a.client.Do(t.Context(), "FCALL", "sonic_digest_piece", 1, a.out, 1, kind, kind, at, digest).StringSlice()
			require.NoError(t, err)
			at, digest = piece[0], piece[1]
		}
		require.Greater(t, calls, 1, kind)
	}
	b.behind(1, "HSET", "hash", "field17", "x")
	b.behind(1, "SREM", "set", "member17")
	b.behind(1, "ZADD", "zset", "17.5", "member17")
	b.behind(1, "LSET", "list", "-1", "x")
	b.behind(1, "XDEL", "stream", "17-1")
	b.behind(1, "SETRANGE", "string", 4999999, "x")
	require.Equal(t, []string{"1 hash", "1 list", "1 set", "1 stream", "1 string", "1 zset"}, w.differences("a", "b"))
	repaired, left := w.repair("a", "b", "a")
	require.Equal(t, 6, repaired)
	require.Empty(t, left)
}

// A hash of many fields is compared, repaired and copied.
func TestAHashOfManyFields(t *testing.T) {
	t.Parallel()
	const n = 30_000 // a million is the same, and takes minutes
	w := newZones(t, "a", "b")
	a, b := w.zones["a"], w.zones["b"]
	for _, z := range []*zone{a, b} {
		z.behind(0, "EVAL", `
for i = 0, ARGV[1] - 1, 1000 do
	local list = {}
	for j = i, i + 999 do list[#list + 1], list[#list + 2] = 'field-' .. j, 'value-' .. j end
	redis.call('HSET', 'hash', unpack(list))
end
return 1`, 0, n)
	}
	require.Empty(t, w.differences("a", "b"))
	b.behind(0, "HSET", "hash", "field-15000", "x")
	require.Equal(t, []string{"0 hash"}, w.differences("a", "b"))
	repaired, left := w.repair("a", "b", "a")
	require.Equal(t, 1, repaired)
	require.Empty(t, left)
	require.Equal(t, "value-15000", b.client.HGet(t.Context(), "hash", "field-15000").Val())
	b.lose()
	require.NoError(t, w.bootstrap("a", "b"))
	b.recover()
	w.awaitEqual()
	require.EqualValues(t, n, b.client.HLen(t.Context(), "hash").Val())
}

func TestAZoneOfAnotherVersion(t *testing.T) {
	t.Parallel()
	w := newZones(t, "a", "b")
	text, version, err := script.Library()
	require.NoError(t, err)
	b := w.zones["b"]
	b.mu.Lock()
	b.open = false
	b.mu.Unlock()
	require.NoError(t, b.client.Do(t.Context(), "FUNCTION", "LOAD", "REPLACE", strings.Replace(text, "'"+version+"'", "'another'", 1)).Err())
	c := w.check("a", "b")
	_, err = c.Run(t.Context())
	require.ErrorContains(t, err, "zone b runs functions of another version")
}

func TestTheRedisOfAnotherZone(t *testing.T) {
	t.Parallel()
	w := newZones(t, "a", "b")
	c := w.check("a", "b")
	c.Peer = zones.New("c", w.zones["b"].server.Client(t))
	_, err := c.Run(t.Context())
	require.ErrorContains(t, err, "the Redis of zone c holds the state of")
	require.NoError(t, w.zones["b"].client.Do(context.WithoutCancel(t.Context()), "SELECT", 0).Err())
}
