package script_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/script"
	"github.com/aviaryhq/aviary/test/stack"
)

// flushing makes zones in which databases may be flushed: without counters.
func flushing(t *testing.T, names ...string) (w *fixture, zones []*zone) {
	t.Helper()
	w = newFixtureOf(t, rand.New(rand.NewPCG(1, 1)), []any{"lww", "n:", "none"}, nil, names...)
	return w, w.zones
}

// in is like write, in a database.
func (z *zone) in(db int, args ...any) {
	z.fixture.t.Helper()
	_, err := z.call("sonic_"+args[0].(string), append([]any{db}, args[1:]...)...)
	require.NoError(z.fixture.t, err)
}

// equal requires that all zones hold the same, and returns what.
func (w *fixture) equal(db int) map[string]value {
	w.t.Helper()
	for _, z := range w.zones[1:] {
		require.Equal(w.t, w.zones[0].data(db), z.data(db), "zone %s", z.name)
	}
	return w.zones[0].data(db)
}

// A flush deletes what is older in all zones, also what arrives later, and nothing that is newer:
// of hashes, sets and sorted sets each element by its own version.
func TestFlushDeletesWhatIsOlder(t *testing.T) {
	t.Parallel()
	w, z := flushing(t, "a", "b", "c")
	a, b, c := z[0], z[1], z[2]
	for _, zone := range []*zone{a, b} {
		zone.write("set", "str:"+zone.name, "old")
		zone.write("hset", "h:"+zone.name, "f", "old")
		zone.write("sadd", "s", zone.name)
		zone.write("zadd", "z", 1, zone.name)
		zone.write("rpush", "l:"+zone.name, "old")
		zone.write("xadd", "x:"+zone.name, "1-1", "f", "old")
		zone.write("set", "e:"+zone.name, "old", "PXAT", far)
	}
	w.drain()
	c.write("set", "late", "old")
	c.write("hset", "h:a", "late", "old")
	c.write("rpush", "l:b", "late")
	b.write("rpush", "l:a", "late") // on a list that the flush takes away
	tick()
	a.write("flushdb")
	require.Empty(t, a.data(0))
	tick()
	b.write("set", "str:a", "new")
	b.write("hset", "h:b", "g", "new")
	b.write("sadd", "s", "new")
	b.write("zadd", "z", 2, "new")
	b.write("rpush", "l:b", "new")
	b.write("xadd", "x:a", "2-1", "f", "new")
	b.write("pexpireat", "h:b", far)
	b.all(a)
	c.all(a)
	w.drain()
	data := w.equal(0)
	assert.Equal(t, "new", data["str:a"].content)
	assert.Equal(t, value{"hash", "g=new", 32503680000000}, data["h:b"])
	assert.Equal(t, "new", data["s"].content)
	assert.Equal(t, "new=2", data["z"].content)
	assert.Equal(t, "old new", data["l:b"].content, "a write of a list is one of the whole list")
	assert.Contains(t, data["x:a"].content, "new")
	assert.Len(t, data, 6)
	w.forgetAll()
	assert.Equal(t, data, w.equal(0))
	a.write("rpush", "l:a", "1")
	a.write("rpush", "l:a", "2")
	w.drain()
	assert.Equal(t, "1 2", w.everywhere("l:a"))
	assert.Zero(t, a.wants()+b.wants()+c.wants())
}

// What a flush has taken away has no expiry any more, also once both are forgotten at different
// times.
func TestFlushTakesExpiriesAway(t *testing.T) {
	t.Parallel()
	w, z := flushing(t, "a", "b")
	z[0].write("hset", "h", "f", "1")
	z[0].write("pexpireat", "h", far)
	w.drain()
	z[1].write("flushall")
	z[1].write("hset", "h", "f", "2")
	w.drain()
	w.forgetAll()
	z[0].write("hset", "h", "g", "2")
	w.drain()
	assert.Equal(t, value{"hash", "f=2 g=2", -1}, w.equal(0)["h"])
	assert.Equal(t, map[string]string{"f0": z[0].client.HGet(t.Context(), script.KeysOf(0).Versions, "f0").Val()}, z[0].known0("f0", "x0:h"))
}

// known0 returns those of some fields of the hash of versions that there are.
func (z *zone) known0(fields ...string) map[string]string {
	z.fixture.t.Helper()
	all := z.client.HGetAll(context.Background(), script.KeysOf(0).Versions).Val()
	found := make(map[string]string)
	for _, field := range fields {
		if text, ok := all[field]; ok {
			found[field] = text
		}
	}
	return found
}

// FLUSHDB is of one database, FLUSHALL of all, and both keep keys of Sonic and keys of other
// databases that have the same names.
func TestFlushIsOfItsDatabases(t *testing.T) {
	t.Parallel()
	w, z := flushing(t, "a", "b")
	fill := func() {
		for _, db := range []int{0, 1, 5} {
			for _, zone := range z {
				zone.in(db, "set", zone.name, "1")
				zone.in(db, "rpush", "n:"+zone.name, "1")
			}
		}
		w.drain()
	}
	fill()
	z[0].in(5, "flushdb", "async")
	w.drain()
	assert.Empty(t, w.equal(5))
	assert.Len(t, w.equal(0), 4)
	assert.Len(t, w.equal(1), 4)
	z[1].write("flushdb", "SYNC")
	w.drain()
	assert.Empty(t, w.equal(0))
	assert.Len(t, w.equal(1), 4)
	fill()
	tick()
	z[0].in(5, "flushall")
	tick()
	z[1].in(1, "set", "a", "new")
	w.drain()
	assert.Empty(t, w.equal(0))
	assert.Empty(t, w.equal(5))
	assert.Equal(t, map[string]value{"a": {"string", "new", -1}}, w.equal(1))
	for i, zone := range z {
		cursor := zone.client.HGet(t.Context(), script.KeysOf(0).Cursors, z[1-i].name).Val()
		assert.Equal(t, z[1-i].last(), cursor)
	}
	for _, words := range [][]any{{"x"}, {"sync", "sync"}} {
		for _, function := range []string{"sonic_flushdb", "sonic_flushall", "sonic_flushall_zone"} {
			_, err := z[0].call(function, append([]any{0}, words...)...)
			require.EqualError(t, err, "ERR syntax error")
		}
	}
	require.Error(t, z[0].client.Do(t.Context(), "FCALL", "sonic_flushdb", 1, z[0].out, 99).Err())
}

// A flush of this zone only changes nothing elsewhere, also not what is shipped later of keys whose
// effects were dropped.
func TestFlushOfOneZone(t *testing.T) {
	t.Parallel()
	w, z := flushing(t, "a", "b")
	a, b := z[0], z[1]
	a.write("set", "k", "1")
	a.in(3, "set", "k", "1")
	a.write("hset", "h", "f", "1")
	a.write("rpush", "l", "1")
	w.drain()
	before := b.data(0)
	a.skip(true)
	a.write("set", "k", "2")
	a.write("hdel", "h", "f")
	length := a.length()
	a.write("flushall_zone")
	a.skip(false)
	a.resend()
	assert.Equal(t, length, a.length())
	cmd, err := a.call("sonic_unsent")
	require.NoError(t, err)
	assert.Equal(t, []any{"0", "0", "2"}, cmd.Val().([]any)[:3], "what was dropped is lost, and counted")
	w.drain()
	assert.Empty(t, a.data(0))
	assert.Empty(t, a.data(3))
	assert.Equal(t, before, b.data(0))
	assert.Len(t, b.data(3), 1)
	a.write("rpush", "l", "2")
	a.write("set", "k", "3")
	w.drain()
	assert.Equal(t, "2", w.everywhere("l"))
	assert.Equal(t, "3", w.everywhere("k"))
}

// A flush is shipped although effects are dropped: what was dropped before it is gone, and what is
// dropped behind it is shipped later.
func TestFlushIsNotDropped(t *testing.T) {
	t.Parallel()
	w, z := flushing(t, "a", "b")
	a, b := z[0], z[1]
	a.write("set", "k", "1")
	w.drain()
	a.skip(true)
	a.write("set", "before", "1")
	a.write("hset", "h", "f", "1")
	_, err := a.client.TxPipelined(t.Context(), func(p redis.Pipeliner) error {
		for _, call := range [][]any{{"sonic_set", "0t1", "x", "1"}, {"sonic_flushdb", "0t1"}, {"sonic_set", "0t1", "after", "1"}, {"sonic_tx", "0t1"}} {
			p.Do(t.Context(), append([]any{"FCALL", call[0], 1, a.out}, call[1:]...)...)
		}
		return nil
	})
	require.ErrorIs(t, err, redis.Nil, "nothing of a transaction is shipped")
	w.drain()
	assert.Empty(t, b.data(0))
	a.skip(false)
	a.resend()
	w.drain()
	assert.Equal(t, map[string]value{"after": {"string", "1", -1}}, w.equal(0))
}

// A flush in a transaction is one effect of it.
func TestFlushInATransaction(t *testing.T) {
	t.Parallel()
	w, z := flushing(t, "a", "b")
	a, b := z[0], z[1]
	a.write("set", "k", "1")
	w.drain()
	_, err := a.client.TxPipelined(t.Context(), func(p redis.Pipeliner) error {
		for _, call := range [][]any{{"sonic_set", "0t1", "x", "1"}, {"sonic_flushdb", "0t1"}, {"sonic_set", "0t1", "after", "1"}} {
			p.Do(t.Context(), append([]any{"FCALL", call[0], 1, a.out}, call[1:]...)...)
		}
		return nil
	})
	require.NoError(t, err)
	assert.False(t, a.ship(100), "its end is missing")
	_, err = a.call("sonic_tx", "0t1")
	require.NoError(t, err)
	require.True(t, a.ship(100))
	b.deliver(a)
	assert.Equal(t, map[string]value{"after": {"string", "1", -1}}, w.equal(0))
}

// Counters cannot be deleted, so nothing is flushed where there may be some.
func TestFlushIsRefusedWithCounters(t *testing.T) {
	t.Parallel()
	_, a, _ := twoZones(t)
	a.write("set", "k", "1")
	for _, function := range []string{"sonic_flushdb", "sonic_flushall", "sonic_flushdb_zone", "sonic_flushall_zone"} {
		_, err := a.call(function, 0)
		require.ErrorContains(t, err, "SONICREFUSED FLUSH")
		require.ErrorContains(t, err, "counter")
	}
	assert.Len(t, a.data(0), 1)
}

// A zone that is alone flushes, and keeps its state.
func TestFlushOfAZoneThatIsAlone(t *testing.T) {
	t.Parallel()
	_, z := flushing(t, "a")
	for _, function := range []string{"flushdb", "flushall", "flushdb_zone", "flushall_zone"} {
		z[0].write("set", "k", "1")
		z[0].write(function)
		assert.Empty(t, z[0].data(0), function)
	}
	assert.Equal(t, "a", z[0].table("sonic_state")["zone"])
}

// All state keys that the library names stay, of any database that is flushed, also where Redis has
// one database only.
func TestFlushKeepsStateKeys(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("lua/*.lua")
	require.NoError(t, err)
	names := make(map[string]bool)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, found := range regexp.MustCompile(`\bstate\([\w.]+(?:\[1\])?, '([a-z]+)'`).FindAllStringSubmatch(string(text), -1) {
			names[found[1]] = true
		}
	}
	delete(names, "live")      // a channel
	delete(names, "published") // exists within a MULTI only
	delete(names, "none")      // never exists, or within a function only
	require.GreaterOrEqual(t, len(names), 8)
	for _, databases := range []string{"1", "16"} {
		t.Run(databases, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			c := redis.NewClient(&redis.Options{Addr: stack.PrivateRedis(t, stack.Conf(map[string]string{"databases": databases})).Addr(), MaxRetries: -1})
			defer c.Close()
			open(ctx, t, c, []string{"b"}, "lww")
			keys := script.KeysOf(0)
			want := map[string]string{keys.Outbox: "stream"}
			for name := range names {
				key := "{sonic:0}" + name
				if c.Exists(ctx, key).Val() == 0 {
					require.NoError(t, c.HSet(ctx, key, "field", "value").Err())
				}
				want[key] = c.Type(ctx, key).Val()
			}
			require.NoError(t, c.HSet(ctx, keys.Cursors, "p b", "1-1 1").Err())
			require.NoError(t, c.RPush(ctx, stateKey(keys, "part:b"), "part").Err())
			want[stateKey(keys, "part:b")] = "list"
			for _, function := range []string{"sonic_flushdb", "sonic_flushall", "sonic_flushdb_zone"} {
				for i := range 3000 {
					c.Set(ctx, fmt.Sprint("k", i), i, 0)
				}
				require.NoError(t, c.Do(ctx, "FCALL", function, 1, keys.Outbox, "0").Err())
				got := make(map[string]string)
				for _, key := range c.Keys(ctx, "*").Val() {
					got[key] = c.Type(ctx, key).Val()
				}
				assert.Equal(t, want, got)
				assert.Equal(t, "value", c.HGet(ctx, keys.Boot, "field").Val())
				for _, line := range strings.Split(c.Info(ctx, "keyspace").Val(), "\r\n") {
					assert.False(t, strings.HasPrefix(line, "db") && !strings.HasPrefix(line, "db0:"), line)
				}
			}
			assert.EqualValues(t, 2, c.XLen(ctx, keys.Outbox).Val(), "those of all zones")
		})
	}
}

// Clients that watch a key that is flushed run no transaction.
func TestFlushTouchesWatchedKeys(t *testing.T) {
	t.Parallel()
	w, z := flushing(t, "a", "b")
	for i, flush := range []string{"flushdb", "flushall", "flushdb_zone"} {
		z[0].write("set", "k", "1")
		w.drain()
		for _, zone := range z[:2-i/2] { // of the other zone, too, unless it is of one zone
			c := redis.NewClient(&redis.Options{Addr: zone.server.Addr(), MaxRetries: -1})
			err := c.Watch(t.Context(), func(tx *redis.Tx) error {
				if zone == z[0] {
					z[0].write(flush)
				} else {
					w.drain()
				}
				_, err := tx.TxPipelined(t.Context(), func(p redis.Pipeliner) error { return p.Set(t.Context(), "k", "2", 0).Err() })
				return err
			}, "k")
			require.ErrorIs(t, err, redis.TxFailedErr, "%s in zone %s", flush, zone.name)
			require.NoError(t, c.Close())
		}
	}
}

// Flushes survive a Redis that comes back older: it applies its own again, and what others have
// written since stays.
func TestFlushByAnOlderRedis(t *testing.T) {
	t.Parallel()
	w, z := flushing(t, "a", "b")
	a, b := z[0], z[1]
	a.write("set", "k", "1")
	a.write("hset", "h", "f", "1")
	w.drain()
	a.keepCopy()
	a.write("flushdb")
	tick()
	b.write("hset", "h", "g", "2")
	w.drain()
	a.restart(true)
	w.drain()
	assert.Equal(t, map[string]value{"h": {"hash", "g=2", -1}}, w.equal(0))
}

// The copy of a bootstrap may have keys that were read before a flush, and keys that were written
// behind it, also such that have no versions.
func TestFlushAndTheCopyOfABootstrap(t *testing.T) {
	t.Parallel()
	for _, brought := range []bool{false, true} { // the flush came with the versions: then all keys were read behind it
		w, z := flushing(t, "a", "b")
		a, b := z[0], z[1]
		ctx, keys := t.Context(), script.KeysOf(0)
		for _, key := range []string{"n:before", "n:behind", "gone"} {
			a.write("set", key, 1)
		}
		w.forgetAll()
		a.write("flushdb")
		flush := a.client.XRevRangeN(ctx, a.out, "+", "-", 1).Val()[0].ID
		require.NoError(t, b.client.HSet(ctx, keys.Boot, "0:n:before", "a 1-1", "0:n:behind", "a "+flush, "end", "a "+flush).Err())
		want := map[string]value{"n:behind": {"string", "1", -1}}
		if brought {
			require.NoError(t, b.client.HSet(ctx, keys.Versions, "f0", flush+"@a").Err())
			require.NoError(t, b.client.Del(ctx, "n:before", "gone").Err())
		}
		b.restart(false)
		w.drain()
		assert.Equal(t, want, b.data(0))
	}
}

// A zone that knows of a flush ships no state of what it dropped before: newer writes may be on
// their way.
func TestFlushTakesDroppedWritesAway(t *testing.T) {
	t.Parallel()
	w, z := flushing(t, "a", "b")
	a, b := z[0], z[1]
	a.skip(true)
	a.write("set", "k", "old")
	a.write("hset", "h", "f", "old")
	a.write("set", "other", "old")
	a.write("incr", "n")
	tick()
	b.write("flushdb")
	tick()
	a.write("set", "other", "new")
	a.all(b)
	b.write("set", "k", "new")
	b.write("hset", "h", "f", "new")
	tick()
	a.skip(false)
	a.resend()
	w.drain()
	data := w.equal(0)
	assert.Len(t, data, 3)
	assert.Equal(t, "new", data["k"].content)
	assert.Equal(t, "f=new", data["h"].content)
	assert.Equal(t, "new", data["other"].content)
}

// What a zone answers to a question that stands before a flush in one message is newer than the
// flush.
func TestFlushBehindAQuestion(t *testing.T) {
	t.Parallel()
	w, z := flushing(t, "a", "b")
	a, b := z[0], z[1]
	a.write("rpush", "l", "1")
	w.drain()
	b.forget("l")
	a.write("rpush", "l", "2")
	b.all(a)
	require.Equal(t, 1, b.wants())
	b.write("flushdb")
	a.all(b)
	w.drain()
	assert.Equal(t, "1 2", w.everywhere("l"))
	assert.Zero(t, b.wants())
}

// An expiry that a flush has taken away wipes nothing that was written behind the flush.
func TestFlushTakesAnExpiryAwayThatIsToCome(t *testing.T) {
	t.Parallel()
	w, z := flushing(t, "a", "b")
	soon := time.Now().Add(200 * time.Millisecond)
	z[0].write("hset", "h", "f", "1")
	z[0].write("pexpireat", "h", soon.UnixMilli())
	z[0].write("flushdb")
	z[0].write("hset", "h", "g", "2")
	sleepPast(soon)
	z[0].write("hset", "h", "i", "3")
	z[0].write("pexpireat", "h", far)
	w.drain()
	assert.Equal(t, "g=2 i=3", w.everywhere("h"))
}

// Of several flushes the newest counts, in whatever order they arrive.
func TestFlushesMeet(t *testing.T) {
	t.Parallel()
	w, z := flushing(t, "a", "b", "c")
	z[0].write("set", "k", "1")
	w.drain()
	for i := range 3 {
		for _, zone := range z {
			tick()
			zone.write("flushdb")
			tick()
			zone.write("set", "k", i)
			zone.write("hset", "h", zone.name, i)
			zone.write("pexpireat", "h", time.Now().Add(time.Hour).UnixMilli())
		}
	}
	z[1].all(z[2])
	w.drain()
	assert.Equal(t, "2", w.everywhere("k"))
	assert.Equal(t, "c=2", w.everywhere("h"))
}

// The Redis of the other zone refuses FLUSHDB.
func TestAFlushArrivesWhereFLUSHDBMayNotRun(t *testing.T) {
	t.Parallel()
	_, z := flushing(t, "a", "b")
	a, b := z[0], z[1]
	require.NoError(t, b.client.Do(t.Context(), "ACL", "SETUSER", "default", "-flushdb").Err())
	b.write("set", "k", "v")
	a.write("flushdb")
	for a.ship(1 << 20) {
	}
	b.all(a)
	assert.NotZero(t, b.client.Exists(t.Context(), "{sonic:0}meta").Val())
	assert.NotZero(t, b.length(), "the outbox is there")
}

// The operator has renamed FLUSHDB.
func TestFlushOfARedisWithoutFLUSHDB(t *testing.T) {
	t.Parallel()
	srv := stack.PrivateRedis(t, stack.Conf(map[string]string{"rename-command": `FLUSHDB ""`}))
	c := srv.Client(t)
	require.NoError(t, script.Load(t.Context(), c))
	require.NoError(t, c.Do(t.Context(), "FCALL", "sonic_open", "1", "{sonic:0}out", "a", "1", "0-0", "", "1", "b", "lww").Err())
	require.NoError(t, c.Do(t.Context(), "FCALL", "sonic_set", "1", "{sonic:0}out", "0", "k", "v").Err())
	require.NoError(t, c.Do(t.Context(), "FCALL", "sonic_flushdb", "1", "{sonic:0}out", "0").Err())
	assert.Zero(t, c.Exists(t.Context(), "k").Val())
	assert.NotZero(t, c.Exists(t.Context(), "{sonic:0}out").Val(), "the outbox is there")
}
