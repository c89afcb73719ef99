package script_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/script"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
)

func (z *zone) skip(skips bool) {
	z.fixture.t.Helper()
	flag := "0"
	if skips {
		flag = "1"
	}
	_, err := z.call("sonic_drop", flag)
	require.NoError(z.fixture.t, err)
}

// resend has what was dropped be shipped.
func (z *zone) resend() {
	z.fixture.t.Helper()
	for {
		cmd, err := z.call("sonic_resend", 7)
		require.NoError(z.fixture.t, err)
		reply, err := cmd.Slice()
		require.NoError(z.fixture.t, err)
		if reply[1].(int64) == 0 {
			return
		}
	}
}

func (z *zone) length() int64 {
	return z.client.XLen(context.Background(), z.out).Val()
}

// Zones drop effects for a while, as when their outboxes are full, and take writes all the while.
// Afterwards they hold the same, and no increment is missing.
func TestWhatWasDroppedIsShipped(t *testing.T) {
	for _, names := range [][]string{{"a", "b"}, {"a", "b", "c"}} {
		t.Run(strconv.Itoa(len(names)), func(t *testing.T) { dropping(t, names, false, false) })
	}
}

// The same with Redis that come back older than they were: writes that were dropped are lost with
// them, and zones hold the same all the same.
func TestWhatWasDroppedIsShippedByAnOlderRedis(t *testing.T) {
	dropping(t, []string{"a", "b"}, true, false)
}

// The same with databases that are flushed meanwhile.
func TestWhatWasDroppedAroundFlushesIsShipped(t *testing.T) {
	dropping(t, []string{"a", "b", "c"}, false, true)
}

func dropping(t *testing.T, names []string, older, flushes bool) {
	t.Helper()
	t.Parallel()
	p := fromEnvironment(t, 600)
	r := rand.New(rand.NewPCG(p.seed, 0))
	c := &chaos{acked: make(map[string]int64), flushes: flushes}
	w := c.newFixture(t, r, names...)
	c.fixture = w
	skips := make(map[*zone]bool)
	for range p.steps {
		z := w.zones[r.IntN(len(names))]
		others := z.others()
		switch n := r.IntN(100); {
		case n < 56:
			c.write(z, 1+r.IntN(12))
		case n < 70 && !skips[z]:
			z.ship(1 + r.IntN(40))
		case n < 86:
			z.deliver(others[r.IntN(len(others))])
		case n < 88:
			z.beat()
		case n < 90:
			z.prune(r.IntN(4))
		case n < 94:
			skips[z] = !skips[z]
			z.skip(skips[z])
		case n < 95: // what is noted outlasts it; who opens Redis has effects not be dropped
			z.restart(older && r.IntN(2) == 0)
			skips[z] = false
		case n < 96 && older:
			z.keepCopy()
		case !skips[z] && z.ready:
			z.resend()
		}
	}
	for _, z := range w.zones {
		z.skip(false)
	}
	w.drain() // then those that came back older are ready
	for _, z := range w.zones {
		z.resend()
	}
	w.drain()
	w.awaitExpiries()
	w.drain()
	for db := range 2 {
		var held []map[string]value
		for _, z := range w.zones {
			held = append(held, z.data(db))
		}
		first := held[0]
		for i, z := range w.zones {
			for _, data := range held { // of policy none: each is one zone's
				for key := range data {
					if !strings.HasPrefix(key, "n:") && first[key] != held[i][key] {
						t.Fatalf("%d %s: zone a holds %v and knows %v, zone %s %v, %v", db, key, first[key], w.zones[0].known(db, key), z.name, held[i][key], z.known(db, key))
					}
				}
			}
			assert.Equal(t, first, held[i])
		}
		for counter, sum := range c.acked {
			if at, key, _ := strings.Cut(counter, ":"); at == strconv.Itoa(db) && sum != 0 && !older {
				require.Equal(t, strconv.FormatInt(sum, 10), first[key].content, counter)
			}
		}
	}
	for _, z := range w.zones {
		require.Zero(t, z.client.Exists(context.Background(), script.KeysOf(0).Dropped).Val())
		require.Zero(t, z.wants())
	}
}

// While effects are dropped the outbox does not grow, and what is noted grows with what is written
// to, not with how often.
func TestWhatIsNotedIsBounded(t *testing.T) {
	t.Parallel()
	_, a, b := twoZones(t)
	ctx := context.Background()
	a.skip(true)
	before := a.length()
	for i := range 300 {
		a.write("set", strconv.Itoa(i%10), strings.Repeat("x", i%100))
		a.write("hset", "h", i%10, i)
		a.write("zincrby", "c:z", "0.5", i%5)
		a.write("hincrby", "c:h", i%5, -3)
		a.write("rpush", "l", i)
	}
	a.write("del", "5")
	a.write("sadd", "gone", "x")
	a.write("del", "gone")
	a.write("publish", "channel", "message")
	assert.Equal(t, before, a.length())
	assert.EqualValues(t, 10+10+5+5+1+2, a.client.HLen(ctx, script.KeysOf(0).Dropped).Val(), a.client.HGetAll(ctx, script.KeysOf(0).Dropped).Val())
	cmd, err := a.call("sonic_unsent")
	require.NoError(t, err)
	assert.Equal(t, []any{"1", "33", "1"}, cmd.Val().([]any)[:3], "the message is lost, and counted")
	a.resend0(t)
	a.skip(false)
	a.write("hset", "h", "3", "newer")
	a.resend()
	a.fixture.drain()
	assert.Equal(t, a.data(0), b.data(0))
	assert.Equal(t, "newer", b.client.HGet(ctx, "h", "3").Val())
}

// resend0: nothing is shipped while effects are dropped.
func (z *zone) resend0(t *testing.T) {
	t.Helper()
	length := z.length()
	_, err := z.call("sonic_resend", 100)
	require.NoError(t, err)
	require.Equal(t, length, z.length())
}

// A field that another zone wrote meanwhile stays: what was written here is shipped by field.
func TestFieldsOfOtherZonesStay(t *testing.T) {
	t.Parallel()
	w, a, b := twoZones(t)
	a.write("hset", "h", "f", "1")
	w.drain()
	a.skip(true)
	a.write("hset", "h", "mine", "1")
	a.write("hdel", "h", "f")
	b.write("hset", "h", "theirs", "1")
	a.skip(false)
	a.resend()
	w.drain()
	want := map[string]string{"mine": "1", "theirs": "1"}
	for _, z := range w.zones {
		assert.Equal(t, want, z.client.HGetAll(context.Background(), "h").Val(), z.name)
	}
}

// A Redis that comes back as it was before a sum was shipped has what the sum counts, and notes it
// still. Neither is counted twice.
func TestSumsAreCountedOnce(t *testing.T) {
	t.Parallel()
	w, a, b := twoZones(t)
	ctx := context.Background()
	a.write("hincrby", "c:h", "f", "1")
	w.drain()
	a.skip(true)
	a.write("incrby", "c:n", "5")
	a.write("hincrby", "c:h", "f", "5")
	a.write("zincrby", "c:z", "0.5", "m")
	a.keepCopy()
	a.write("incrby", "c:n", "2") // what the copy lacks is in the sum
	a.write("zincrby", "c:z", "1", "m")
	a.skip(false)
	a.resend()
	a.write("incrby", "c:n", "10")
	a.skip(true)
	a.write("incrby", "c:n", "20")
	a.skip(false)
	a.resend() // a second sum of the same counter is all new to the copy
	for a.ship(100) {
	}
	a.restart(true)
	for _, z := range w.zones {
		z.beat()
	}
	a.resend()
	w.drain()
	for _, z := range []*zone{a, b} {
		assert.Equal(t, "37", z.client.Get(ctx, "c:n").Val(), z.name)
		assert.Equal(t, "6", z.client.HGet(ctx, "c:h", "f").Val(), z.name)
		assert.InDelta(t, 1.5, z.client.ZScore(ctx, "c:z", "m").Val(), 0, z.name)
	}
	require.Zero(t, a.client.Exists(ctx, script.KeysOf(0).Dropped).Val())
}

// The copy of a bootstrap has what a dropped change made of a counter: its sum must not come behind
// it.
func TestSumsAreShippedBeforeCountersAreCopied(t *testing.T) {
	t.Parallel()
	_, a, _ := twoZones(t)
	a.skip(true)
	a.write("incrby", "c:n", "5")
	a.write("set", "k", "v")
	a.skip(false)
	_, err := a.call("sonic_copy_keys", "b", "0", 0, "c:n")
	require.ErrorContains(t, err, "SONICDROPPED")
	_, err = a.call("sonic_copy_keys", "b", "0", 0, "k")
	require.NoError(t, err, "its state is shipped again, which changes nothing")
	source, err := a.call("sonic_source", "b")
	require.NoError(t, err)
	reply, err := source.Slice()
	require.NoError(t, err)
	assert.Equal(t, "2", reply[3], "a bootstrap waits for it")
	a.resend()
	_, err = a.call("sonic_copy_keys", "b", "0", 0, "c:n")
	require.NoError(t, err)
}

// What another zone has overwritten here is not shipped: a newer write of that zone may be on its
// way.
func TestWhatOthersHaveOverwrittenIsNotShipped(t *testing.T) {
	t.Parallel()
	w, a, b := twoZones(t)
	ctx := context.Background()
	a.skip(true)
	for _, z := range []*zone{a, b} {
		tick() // the other zone's write is newer
		z.write("hset", "h", "f", z.name)
		z.write("set", "s", z.name)
		z.write("rpush", "l", z.name)
	}
	for b.ship(100) {
	}
	for a.deliver(b) {
	}
	b.write("hset", "h", "f", "newer")
	b.write("set", "s", "newer")
	b.write("rpush", "l", "newer")
	tick()
	a.skip(false)
	length := a.length()
	a.resend()
	assert.Equal(t, length, a.length())
	w.drain()
	for _, z := range w.zones {
		assert.Equal(t, "newer", z.client.HGet(ctx, "h", "f").Val(), z.name)
		assert.Equal(t, "newer", z.client.Get(ctx, "s").Val(), z.name)
		assert.Equal(t, []string{"b", "newer"}, z.client.LRange(ctx, "l", 0, -1).Val(), z.name)
	}
}

// Under none an element that is gone may have been of another type than the key has elsewhere.
func TestAKeyThatChangedItsTypeAndIsGone(t *testing.T) {
	t.Parallel()
	w, a, b := twoZones(t)
	ctx := context.Background()
	a.write("hset", "n:k", "f", "1", "g", "1")
	w.drain()
	a.skip(true)
	a.write("hdel", "n:k", "f", "g")
	a.write("sadd", "n:k", "f")
	a.write("srem", "n:k", "f")
	a.write("hset", "n:k", "g", "2")
	a.write("hdel", "n:k", "g")
	a.skip(false)
	a.resend()
	w.drain()
	assert.Zero(t, b.client.Exists(ctx, "n:k").Val())
}

// A dropped addition made the key be of its type, and so wiped what another zone had written to it
// before, and is told of later. The other zone gets to know of the type, also when the element is
// gone by then, and when the key is of another type again.
func TestADroppedAdditionHadAType(t *testing.T) {
	t.Parallel()
	w, a, b := twoZones(t)
	n := 0
	for _, theirs := range [][]any{{"set", "k", "x"}, {"sadd", "k", "m"}, {"zadd", "k", 1, "m"}, {"rpush", "k", "m"}} {
		for name, then := range map[string][][]any{
			"it is gone":                          {{"hdel", "k", "f"}},
			"one is gone":                         {{"hset", "k", "g", 1}, {"hdel", "k", "f"}},
			"it is of another type now":           {{"hdel", "k", "f"}, {"sadd", "k", "f"}},
			"another one is of another type":      {{"hdel", "k", "f"}, {"zadd", "k", 1, "z"}},
			"another type is gone, too":           {{"hdel", "k", "f"}, {"sadd", "k", "f"}, {"srem", "k", "f"}},
			"another type of another one is gone": {{"hdel", "k", "f"}, {"sadd", "k", "z"}, {"srem", "k", "z"}},
		} {
			n++
			on := func(write []any) []any { // each case has a key of its own
				write = slices.Clone(write)
				write[1] = fmt.Sprint("k", n)
				return write
			}
			b.write(on(theirs)...)
			tick() // what is dropped is newer
			a.skip(true)
			a.write(on([]any{"hset", "k", "f", 1})...)
			a.all(b)
			for _, write := range then {
				a.write(on(write)...)
			}
			a.skip(false)
			a.resend()
			w.drain()
			assert.Equal(t, a.data(0), b.data(0), "%v, then %s", theirs, name)
		}
	}
}

// A dropped addition to a key that another zone has deleted or replaced since, also by one of
// another type, is not shipped: all zones get that write, and what follows it may be on its way.
func TestADroppedAdditionToAKeyThatWasReplacedIsNotShipped(t *testing.T) {
	t.Parallel()
	w, a, b := twoZones(t)
	b.write("hset", "k", "f", 0)
	w.drain()
	a.skip(true)
	for i := range 300 {
		a.write("hset", "k", i, 1)
	}
	tick()
	b.write("del", "k")
	b.write("sadd", "k", "m")
	a.all(b)
	b.write("sadd", "k", "newer")
	tick()
	a.skip(false)
	length := a.length()
	a.resend()
	assert.Equal(t, length, a.length())
	w.drain()
	w.everywhere("k")
	assert.ElementsMatch(t, []string{"m", "newer"}, a.client.SMembers(context.Background(), "k").Val())
}

// The same when the zone has forgotten by then what it knew of both: it cannot tell, and ships the
// key as it is, once, not for each addition.
func TestAKeyThatWasReplacedIsNotShippedForEachDroppedAddition(t *testing.T) {
	t.Parallel()
	w, a, b := twoZones(t)
	a.skip(true)
	for i := range 300 {
		a.write("hset", "k", i, 1)
	}
	tick()
	b.write("del", "k")
	b.write("hset", "k", "f", 0)
	b.write("del", "k")
	b.write("sadd", "k", "m", "n")
	a.all(b)
	a.skip(false)
	w.forgetAll()
	require.Zero(t, a.client.HLen(context.Background(), script.KeysOf(0).Versions).Val())
	length := a.length()
	a.resend()
	assert.Equal(t, length+1, a.length())
	last, err := a.client.XRevRangeN(context.Background(), a.out, "+", "-", 1).Result()
	require.NoError(t, err)
	effects, err := wire.Effects(last[0].Values["e"].(string))
	require.NoError(t, err)
	assert.Len(t, effects, 2, "D and A")
	w.drain()
	assert.Equal(t, "m n", w.everywhere("k"))
}

// A removal that was dropped is not told when the key is of another type since: it would remove a
// member of the same name.
func TestADroppedElementIsNoMemberOfTheSameName(t *testing.T) {
	t.Parallel()
	for _, dropped := range [][]any{{"hset", "k", "f", 1}, {"hdel", "k", "f"}} {
		w, a, b := twoZones(t)
		b.write("hset", "k", "f", 0, "g", 0)
		w.drain()
		a.skip(true)
		a.write(dropped...)
		tick()
		b.write("del", "k")
		a.all(b)
		a.skip(false)
		a.write("sadd", "k", "f")
		a.resend()
		w.drain()
		assert.Equal(t, "f", w.everywhere("k"), "%v", dropped)
	}
}

// What a dropped write has said of a list's expiry is shipped, also when the zone has forgotten
// that by then, and knows still that another zone made the list.
func TestADroppedExpiryOfAListIsShipped(t *testing.T) {
	t.Parallel()
	w, a, b := twoZones(t)
	b.write("rpush", "l", "1")
	b.write("pexpireat", "l", far)
	w.drain()
	a.skip(true)
	a.write("persist", "l")
	a.skip(false)
	w.forgetAll()
	a.resend()
	w.drain()
	w.everywhere("l")
	assert.Equal(t, int64(-1), b.data(0)["l"].expires)
}

// Answers are not dropped: what is shipped later in their place may be nothing, when another zone
// has replaced the key by then.
func TestAnswersAreNotDropped(t *testing.T) {
	t.Parallel()
	w, a, b := twoZones(t)
	a.write("rpush", "l", "1")
	w.drain()
	b.forget("l")
	a.write("rpush", "l", "2")
	b.all(a)
	require.Equal(t, 1, b.wants())
	a.skip(true)
	a.all(b) // it is asked
	tick()
	b.write("set", "l", "x")
	a.all(b)
	a.skip(false)
	a.resend()
	w.drain()
	assert.Equal(t, "x", w.everywhere("l"))
	assert.Zero(t, b.wants())
}
