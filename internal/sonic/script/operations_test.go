package script_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/script"
)

// ops returns the ops of the effects of key that the zones have shipped, in the order of their
// versions.
func (w *fixture) ops(key string) string {
	w.t.Helper()
	var ops []string
	for _, v := range w.history() {
		if v.effect[3] == key && v.effect[0] != "N" {
			ops = append(ops, v.effect[0])
		}
	}
	return strings.Join(ops, "")
}

func (z *zone) list(key string) string {
	z.fixture.t.Helper()
	list, err := z.client.LRange(context.Background(), key, 0, -1).Result()
	require.NoError(z.fixture.t, err)
	return strings.Join(list, " ")
}

// stored returns the wholesale write that is stored of key.
func (z *zone) stored(key string) string {
	return z.client.HGet(context.Background(), script.KeysOf(0).Versions, "k0:"+key).Val()
}

// forget removes what is stored of key.
func (z *zone) forget(key string) {
	z.fixture.t.Helper()
	require.NoError(z.fixture.t, z.client.HDel(context.Background(), script.KeysOf(0).Versions, "k0:"+key).Err())
}

func (z *zone) wants() int {
	return int(z.client.HLen(context.Background(), "{sonic:0}requests").Val())
}

// everywhere requires that all zones hold the same of key, and returns its content.
func (w *fixture) everywhere(key string) string {
	w.t.Helper()
	want, ok := w.zones[0].data(0)[key]
	for _, z := range w.zones[1:] {
		got, there := z.data(0)[key]
		require.Equal(w.t, ok, there, "zone %s", z.name)
		require.Equal(w.t, want, got, "zone %s", z.name)
	}
	return want.content
}

// forgetAll makes all zones forget what they can.
func (w *fixture) forgetAll() {
	w.t.Helper()
	for range 4 {
		for _, z := range w.zones {
			z.beat()
		}
		w.drain()
	}
	for _, z := range w.zones {
		z.prune(0)
	}
}

// 1,000 values for a list of 10,000 cost what they are.
func TestAWriteToALongListIsSmall(t *testing.T) {
	t.Parallel()
	w, a, b := twoZones(t)
	long := []any{"rpush", "l"}
	for i := range 10_000 {
		long = append(long, fmt.Sprintf("value number %d", i))
	}
	a.write(long...)
	w.drain()
	before := len(a.topic)
	for i := range 1000 {
		a.write("rpush", "l", "value number "+strconv.Itoa(i))
	}
	w.drain()
	size := 0
	for _, m := range a.topic[before:] {
		size += len(slices.Concat(m.parts...))
	}
	t.Logf("%d bytes; once as a whole: %d", size, len(slices.Concat(a.topic[0].parts...)))
	assert.Less(t, size, 200<<10)
	assert.Len(t, strings.Split(w.everywhere("l"), " value "), 11_000)
	assert.Zero(t, w.counts["wanted"])
	assert.Equal(t, a.stored("l"), strings.Replace(b.stored("l"), "@a", "", 1))
}

// Values that are more than unpack takes are pushed in steps.
func TestAPushOfManyValues(t *testing.T) {
	t.Parallel()
	w, a, _ := twoZones(t)
	a.write("rpush", "l", "first")
	for _, command := range []string{"rpush", "lpush"} {
		many := []any{command, "l"}
		for i := range 9001 {
			many = append(many, i)
		}
		a.write(many...)
	}
	w.drain()
	assert.Len(t, strings.Fields(w.everywhere("l")), 18_003)
	assert.Equal(t, "RLL", w.ops("l"))
	assert.Zero(t, w.counts["wanted"])
}

// Zones write in turns: each goes on from what the other one has made.
func TestOperationsOfZonesInTurns(t *testing.T) {
	t.Parallel()
	w, a, b := twoZones(t)
	a.write("rpush", "l", "1", "2")
	w.drain()
	b.write("rpush", "l", "3")
	w.drain()
	a.write("lpop", "l")
	a.write("lset", "l", 0, "two")
	w.drain()
	b.write("linsert", "l", "AFTER", "two", "and")
	w.drain()
	assert.Equal(t, "two and 3", w.everywhere("l"))
	assert.Equal(t, "RLLLL", w.ops("l"))
	b.write("ltrim", "l", 5, 6)
	w.drain()
	assert.Empty(t, w.everywhere("l"))
	assert.Equal(t, "RLLLLD", w.ops("l"))
	assert.Zero(t, w.counts["wanted"])
	w.forgetAll()
	assert.Empty(t, a.stored("l"), "of a list that is gone nothing is kept")
}

// Two zones write one list at the same time: the later write stays, with the list that it was made
// on, in all zones.
func TestOperationsAtTheSameTime(t *testing.T) {
	t.Parallel()
	for _, names := range [][]string{{"a", "b"}, {"a", "b", "c"}, {"c", "a", "b"}} {
		w := newFixture(t, rand.New(rand.NewPCG(1, 1)), names...)
		a, b := w.zones[0], w.zones[1]
		a.write("rpush", "l", "0")
		w.drain()
		b.open("4102444800000-0") // its writes are newer
		a.write("rpush", "l", "of a")
		b.write("rpush", "l", "of b")
		b.write("rpush", "l", "again")
		w.drain()
		assert.Equal(t, "0 of b again", w.everywhere("l"))
		assert.Equal(t, len(names)-1, w.counts["wanted"], "all but the one that wrote it ask once, unless they heard of it first")
		for _, z := range w.zones {
			assert.Zero(t, z.wants())
			before := len(w.ops("l"))
			z.write("lpop", "l")
			w.drain()
			assert.Contains(t, "LD", w.ops("l")[before:], "the next write is an operation")
		}
		assert.Len(t, strings.Fields(w.everywhere("l")), 3-len(names))
	}
}

// The number of values does not tell the two lists apart: the version does.
func TestOperationsOfTheSameLength(t *testing.T) {
	t.Parallel()
	w, a, b := twoZones(t)
	a.write("rpush", "l", "0", "1")
	w.drain()
	b.open("4102444800000-0") // its writes are newer
	a.write("lset", "l", 0, "of a")
	b.write("lset", "l", 1, "of b")
	w.drain()
	assert.Equal(t, "0 of b", w.everywhere("l"))
	assert.Equal(t, 1, w.counts["wanted"])
}

// A zone that cannot execute an operation asks once, and says that it does not know what it holds.
func TestAnOperationOnWhatIsNotHeld(t *testing.T) {
	t.Parallel()
	w, a, b := twoZones(t)
	a.write("rpush", "l", "1")
	w.drain()
	b.forget("l")
	a.write("rpush", "l", "2")
	a.write("rpush", "l", "3")
	require.True(t, a.ship(100))
	require.True(t, b.deliver(a))
	assert.Equal(t, 1, b.wants())
	assert.Equal(t, "1", b.list("l"), "what was there stays until the answer")
	assert.Equal(t, strings.TrimSuffix(a.stored("l"), " L")+"@a", b.stored("l"))
	assert.Equal(t, 1, w.counts["wanted"])
	w.drain()
	assert.Equal(t, "1 2 3", w.everywhere("l"))
	assert.Equal(t, "RLLR", w.ops("l"))
	assert.Zero(t, b.wants())

	b.forget("l")
	a.write("rpush", "l", "4")
	require.True(t, a.ship(100))
	require.True(t, b.deliver(a))
	b.write("rpush", "l", "own") // on what it holds
	b.write("rpush", "l", "more")
	w.drain()
	assert.Contains(t, w.ops("l")[4:], "LRL", "the write has nothing to go on from")
	assert.Zero(t, b.wants())
	w.everywhere("l")
}

// Both zones forget what every zone knows, but not what operations name.
func TestOperationsAfterAPause(t *testing.T) {
	t.Parallel()
	w, a, b := twoZones(t)
	a.write("rpush", "l", "1")
	a.write("xadd", "x", "1-1", "f", "v")
	a.write("set", "k", "v")
	w.drain()
	w.forgetAll()
	assert.NotEmpty(t, a.stored("l"))
	assert.NotEmpty(t, b.stored("x"))
	assert.Empty(t, a.stored("k"))
	b.write("rpush", "l", "2")
	b.write("xadd", "x", "2-1", "f", "v")
	w.drain()
	assert.Equal(t, "RL", w.ops("l"))
	assert.Equal(t, "RL", w.ops("x"))
	assert.Zero(t, w.counts["wanted"])
	assert.Equal(t, "1 2", w.everywhere("l"))

	a.forget("l") // the two know differently much: what is not stored is not the same as what is not stored
	b.forget("l")
	a.write("rpush", "l", "3")
	w.drain()
	assert.Equal(t, "RLR", w.ops("l"))
	a.write("del", "l", "x")
	w.drain()
	w.forgetAll()
	assert.Empty(t, a.stored("l")+a.stored("x")+b.stored("l")+b.stored("x"))
}

// An older expiry of a list goes when all zones know the list's newer write, which is kept.
func TestTheKeptWriteOfAListTakesAnOlderExpiryWithIt(t *testing.T) {
	t.Parallel()
	w, a, b := twoZones(t)
	a.write("rpush", "l", "1")
	a.write("pexpireat", "l", far)
	a.write("rpush", "l", "2")
	w.drain()
	w.forgetAll()
	for _, z := range []*zone{a, b} {
		assert.Equal(t, int64(1), z.client.HLen(context.Background(), script.KeysOf(0).Versions).Val())
	}
}

// Operations keep the expiry that the key has.
func TestOperationsOnWhatExpires(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w, a, b := twoZones(t)
	a.write("rpush", "l", "1")
	a.write("pexpireat", "l", far)
	a.write("rpush", "l", "2")
	w.drain()
	assert.Equal(t, "REL", w.ops("l"))
	assert.Equal(t, "1 2", w.everywhere("l"))
	assert.Equal(t, far, strconv.FormatInt(a.data(0)["l"].expires, 10))
	b.write("persist", "l")
	b.write("rpush", "l", "3")
	w.drain()
	assert.Equal(t, "1 2 3", w.everywhere("l"))
	assert.Equal(t, int64(-1), a.data(0)["l"].expires)

	// Two zones at once: the newer statement counts, and the list goes on.
	b.open("4102444800000-0")
	a.write("rpush", "l", "4")
	b.write("pexpireat", "l", far)
	w.drain()
	assert.Equal(t, "1 2 3 4", w.everywhere("l"))
	assert.Equal(t, far, strconv.FormatInt(a.data(0)["l"].expires, 10))
	assert.Zero(t, w.counts["wanted"])

	// It expired here before the origin told it to stay.
	require.NoError(t, b.client.Del(ctx, "l").Err())
	a.write("rpush", "l", "5")
	w.drain()
	assert.Equal(t, "1 2 3 4 5", w.everywhere("l"))
	assert.Equal(t, 1, w.counts["wanted"])
	assert.Zero(t, w.counts["diverged"])
}

// An operation that comes when its key has expired is over, and nothing is asked.
func TestAnOperationOnWhatHasExpired(t *testing.T) {
	t.Parallel()
	w, a, b := twoZones(t)
	at := "4102444800500"
	a.write("rpush", "l", "1")
	a.write("pexpireat", "l", at)
	w.drain()
	a.write("rpush", "l", "2")
	b.open("4102444801000-0") // a clock that is ahead
	require.True(t, a.ship(100))
	require.True(t, b.deliver(a))
	assert.Equal(t, 1, w.counts["dead"])
	assert.Zero(t, w.counts["wanted"])
	assert.Empty(t, b.list("l"))
	assert.NotContains(t, b.stored("l"), "L")
}

// Elements of another type that are newer are not wiped by an operation, and nothing is asked;
// older ones are.
func TestOperationsAndOtherTypes(t *testing.T) {
	t.Parallel()
	w, a, b := twoZones(t)
	a.write("rpush", "k", "1")
	w.drain()
	b.open("4102444800000-0")
	a.write("rpush", "k", "2")
	b.write("del", "k")
	b.write("hset", "k", "f", "v")
	w.drain()
	assert.Equal(t, "f=v", w.everywhere("k"))
	assert.Zero(t, w.counts["wanted"])

	w, a, b = twoZones(t)
	b.write("rpush", "k", "1")
	w.drain()
	a.write("del", "k")
	a.write("hset", "k", "f", "v")
	b.open("4102444800000-0")
	b.write("rpush", "k", "2")
	w.drain()
	assert.Equal(t, "1 2", w.everywhere("k"))
	assert.Equal(t, 1, w.counts["wanted"])
}

// What one list loses and another one gets are two effects.
func TestOperationsOnTwoLists(t *testing.T) {
	t.Parallel()
	w, a, b := twoZones(t)
	a.write("rpush", "from", "1", "2", "3")
	a.write("rpush", "to", "0")
	w.drain()
	b.write("lmove", "from", "to", "LEFT", "RIGHT")
	w.drain()
	a.write("rpoplpush", "from", "to")
	w.drain()
	b.write("lmove", "to", "to", "LEFT", "RIGHT")
	b.write("lmpop", 2, "none", "to", "LEFT", "COUNT", 2)
	w.drain()
	assert.Equal(t, "2", w.everywhere("from"))
	assert.Equal(t, "3", w.everywhere("to"))
	assert.Equal(t, "RLL", w.ops("from"))
	assert.Equal(t, "RLLLL", w.ops("to"))

	b.forget("to") // one of the two is not what b can go on from
	a.write("lmove", "from", "to", "LEFT", "LEFT")
	w.drain()
	assert.Empty(t, w.everywhere("from"))
	assert.Equal(t, "2 3", w.everywhere("to"))
	assert.Equal(t, 1, w.counts["wanted"])
}

// Who changed a list past Sonic sees it set right by the next write, when the number of its values
// tells.
func TestOperationsOnWhatWasChangedPastSonic(t *testing.T) {
	t.Parallel()
	w, a, b := twoZones(t)
	a.write("rpush", "l", "1")
	a.write("rpush", "n:l", "1")
	w.drain()
	require.NoError(t, b.client.RPush(context.Background(), "l", "x").Err())
	require.NoError(t, b.client.LPush(context.Background(), "n:l", "x").Err())
	a.write("rpush", "l", "2")
	a.write("rpush", "n:l", "2")
	w.drain()
	assert.Equal(t, "1 2", w.everywhere("l"))
	assert.Equal(t, "1 2", w.everywhere("n:l"))
	assert.Equal(t, 2, w.counts["diverged"])
	assert.Equal(t, 2, w.counts["wanted"])
	assert.Zero(t, b.wants())
}

// An operation that cannot be one, of a list that is of another type here, or that nobody knows,
// changes nothing.
func TestOperationsThatFail(t *testing.T) {
	t.Parallel()
	w, a, b := twoZones(t)
	a.write("rpush", "n:l", "1")
	a.write("rpush", "n:e", "1")
	w.drain()
	require.NoError(t, b.client.Del(context.Background(), "n:l", "n:e").Err())
	require.NoError(t, b.client.Set(context.Background(), "n:l", "x", 0).Err())
	a.write("rpush", "n:l", "2")
	a.write("rpush", "n:e", "2")
	w.drain()
	assert.Equal(t, "1 2", w.everywhere("n:l"))
	assert.Equal(t, "1 2", w.everywhere("n:e"))
	assert.Equal(t, 1, w.counts["diverged"])
	assert.Equal(t, 2, w.counts["wanted"])

	flush := "\x99\xa1L\xa1n\xa10\xa3n:l\xa0\xa0\xa10\xa8FLUSHALL\xa1x"
	id := "4102444800000-0"
	payload := "\x92" + string([]byte{0xa0 + byte(len(id))}) + id + string([]byte{0xa0 + byte(len(flush))}) + flush
	b.apply(a, stored{prev: a.last(), last: id, parts: [][]byte{[]byte(payload)}}, len(a.topic))
	assert.Equal(t, 2, w.counts["diverged"])
	assert.Equal(t, "1 2", b.list("n:l"))
}

// groupsOf tells the groups of a stream: name, last id, entries read, pending ids with consumer and
// deliveries.
func (z *zone) groupsOf(key string) string {
	z.fixture.t.Helper()
	ctx := context.Background()
	groups, err := z.client.XInfoGroups(ctx, key).Result()
	require.NoError(z.fixture.t, err)
	var lines []string
	for _, g := range groups {
		line := fmt.Sprint(g.Name, " ", g.LastDeliveredID, " ", g.EntriesRead)
		pending, err := z.client.XPendingExt(ctx, &redis.XPendingExtArgs{Stream: key, Group: g.Name, Start: "-", End: "+", Count: 10}).Result()
		require.NoError(z.fixture.t, err)
		for _, p := range pending {
			line += fmt.Sprint(" ", p.ID, " ", p.Consumer, " ", p.RetryCount)
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "; ")
}

// Consumer groups are of their zone: an entry of another zone leaves them alone, and so does the
// whole stream.
func TestGroupsStayInTheirZone(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w, a, b := twoZones(t)
	for _, id := range []string{"1-1", "2-1", "3-1"} {
		a.write("xadd", "x", id, "f", "v")
	}
	require.NoError(t, a.client.XGroupCreate(ctx, "x", "of a", "0").Err())
	w.drain()
	require.NoError(t, b.client.XGroupCreate(ctx, "x", "of b", "0").Err())
	require.NoError(t, b.client.XGroupCreate(ctx, "x", "another", "2-1").Err())
	require.NoError(t, b.client.XReadGroup(ctx, &redis.XReadGroupArgs{Group: "of b", Consumer: "c", Streams: []string{"x", ">"}, Count: 2}).Err())
	want := "another 2-1 0; of b 2-1 2 1-1 c 1 2-1 c 1"
	require.Equal(t, want, b.groupsOf("x"))
	a.write("xadd", "x", "MAXLEN", "2", "4-1", "f", "v")
	a.write("xdel", "x", "3-1")
	w.drain()
	assert.Equal(t, "RLLLL", w.ops("x"))
	assert.Equal(t, want, b.groupsOf("x"), "pending is also what was trimmed")
	assert.Equal(t, "of a 0-0 0", a.groupsOf("x"))

	b.forget("x")
	a.write("xadd", "x", "5-1", "f", "v")
	w.drain()
	assert.Equal(t, 1, w.counts["wanted"])
	assert.Equal(t, "another 2-1 0; of b 2-1 2", b.groupsOf("x"), "what is pending and was trimmed is gone")
	assert.Equal(t, "of a 0-0 0", a.groupsOf("x"))
	list, err := b.client.XReadGroup(ctx, &redis.XReadGroupArgs{Group: "of b", Consumer: "c", Streams: []string{"x", ">"}, Count: 9}).Result()
	require.NoError(t, err)
	assert.Len(t, list[0].Messages, 2, "it goes on where it was")
	b.forget("x")
	a.write("xadd", "x", "6-1", "f", "v")
	w.drain()
	assert.Equal(t, "another 2-1 0; of b 5-1 4 4-1 c 1 5-1 c 1", b.groupsOf("x"))
	w.everywhere("x")
}

// Keys of policy none are written by one zone. Its operations are executed as they come, once each.
func TestOperationsWithoutVersions(t *testing.T) {
	t.Parallel()
	w, a, b := twoZones(t)
	a.write("rpush", "n:l", "1")
	a.write("rpush", "n:l", "2")
	a.write("pexpireat", "n:l", far)
	a.write("lpush", "n:l", "0")
	w.drain()
	assert.Equal(t, "RLEL", w.ops("n:l"))
	assert.Equal(t, "0 1 2", w.everywhere("n:l"))
	assert.Equal(t, far, strconv.FormatInt(b.data(0)["n:l"].expires, 10))
	a.write("persist", "n:l")
	a.write("rpop", "n:l")
	w.drain()
	assert.Equal(t, "0 1", w.everywhere("n:l"))

	// a comes back older: it executes again what it has lost.
	a.keepCopy()
	a.write("rpush", "n:l", "3")
	a.write("lpop", "n:l")
	w.drain()
	a.restart(true)
	assert.True(t, a.ready)
	assert.Equal(t, "1 3", w.everywhere("n:l"))
	a.write("rpush", "n:l", "4")
	w.drain()
	assert.Equal(t, "1 3 4", w.everywhere("n:l"))
	assert.Zero(t, w.counts["wanted"])

	// It is taken for expired here, and told to stay there.
	require.NoError(t, b.client.Del(context.Background(), "n:l").Err())
	a.write("rpush", "n:l", "5")
	a.write("rpush", "n:l", "6")
	w.drain()
	assert.Equal(t, "1 3 4 5 6", w.everywhere("n:l"))
	assert.Equal(t, 1, w.counts["wanted"])
}

// A Redis that comes back older executes its own operations again.
func TestAnOlderRedisExecutesItsOperationsAgain(t *testing.T) {
	t.Parallel()
	w, a, b := twoZones(t)
	a.write("rpush", "l", "1")
	w.drain()
	a.keepCopy()
	a.write("rpush", "l", "2")
	a.write("rpush", "l", "3")
	w.drain()
	a.restart(true)
	assert.True(t, a.ready)
	assert.Equal(t, "1 2 3", w.everywhere("l"))
	assert.Zero(t, w.counts["wanted"])

	// What b wrote in between is not there yet when a looks at its own: it asks, and takes no
	// writes before the answer, for these would ship the list without what was lost.
	a.keepCopy()
	b.write("rpush", "l", "of b")
	w.drain()
	a.write("rpush", "l", "4")
	w.drain()
	a.restart(true)
	assert.False(t, a.ready)
	assert.Equal(t, 1, a.wants())
	w.drain()
	assert.True(t, a.ready)
	assert.Equal(t, "1 2 3 of b 4", w.everywhere("l"))
	assert.Zero(t, a.wants())
}

// An operation that came with a copy of the source's Redis is not executed again.
func TestOperationsThatACopyHas(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w, a, b := twoZones(t)
	a.write("rpush", "l", "1")
	a.write("rpush", "n:l", "1")
	w.drain()
	begin := len(a.topic)
	a.write("rpush", "l", "2")
	a.write("rpush", "n:l", "2")
	a.write("rpush", "l", "3")
	a.write("rpush", "n:l", "3")
	w.drain()
	boot := script.KeysOf(0).Boot
	require.NoError(t, b.client.HSet(ctx, boot, "0:n:l", "a "+a.last(), "end", "a 4102444800000-0").Err())
	_, err := b.call("sonic_cursors", "a", a.topic[begin-1].last, begin-1, "1")
	require.NoError(t, err)
	b.at["a"] = begin
	a.write("rpush", "l", "4")
	a.write("rpush", "n:l", "4")
	w.drain()
	assert.Equal(t, "1 2 3 4", w.everywhere("l"))
	assert.Equal(t, "1 2 3 4", w.everywhere("n:l"))
	assert.Zero(t, w.counts["wanted"])
	assert.NotContains(t, b.stored("n:l"), "L")
}

// Versions that are copied without what the keys hold name nothing to go on from; those that come
// with it do.
func TestWhatACopyGoesOnFrom(t *testing.T) {
	t.Parallel()
	_, a, _ := twoZones(t)
	a.write("rpush", "l", "1")
	id := strings.TrimSuffix(a.stored("l"), " L")
	cmd, err := a.call("sonic_copy_versions", "b", "0", 100)
	require.NoError(t, err)
	reply, err := cmd.Slice()
	require.NoError(t, err)
	assert.Equal(t, []any{"k0:l", id + "@a"}, reply[1])
	cmd, err = a.call("sonic_copy_keys", "b", "0", 0, "l")
	require.NoError(t, err)
	reply, err = cmd.Slice()
	require.NoError(t, err)
	keys := reply[2].([]any)
	at := slices.Index(keys, any("l"))
	require.GreaterOrEqual(t, at, 0)
	assert.Equal(t, []any{"k0:l", id + "@a L"}, keys[at+4])
}

// A zone that is alone notes nothing: what it had noted before says nothing about what it writes
// now.
func TestAZoneThatWasAloneGoesOnFromNothing(t *testing.T) {
	t.Parallel()
	w, a, b := twoZones(t)
	a.write("rpush", "l", "1")
	w.drain()
	_, err := a.call("sonic_open", "a", 9, "0-0", "", 0, "lww")
	require.NoError(t, err)
	a.write("rpush", "l", "2")
	a.epoch = 9
	a.open("0-0")
	a.write("rpush", "l", "3")
	w.drain()
	assert.Equal(t, "1 2 3", w.everywhere("l"))
	assert.Equal(t, "1 2 3", b.list("l"))
}
