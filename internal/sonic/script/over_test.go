package script_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/await"
)

// Tests of expiries when clocks are ahead, and of what zones know of them: see 50_versions.lua. A
// stream is ahead when it was opened with an id of a time to come.
const (
	comes  = "4102444800000" // an expiry that a stream has reached and Redis has not
	passed = "4102444801000-0"
)

func threeZones(t *testing.T) (w *fixture, a, b, c *zone) {
	t.Helper()
	w = newFixture(t, rand.New(rand.NewPCG(1, 1)), "a", "b", "c")
	return w, w.zones[0], w.zones[1], w.zones[2]
}

// awaitNone waits until the key has expired.
func (z *zone) awaitNone(key string) {
	z.fixture.t.Helper()
	require.Eventually(z.fixture.t, func() bool { return z.client.Exists(context.Background(), key).Val() == 0 }, await.Patience, time.Millisecond)
}

// lastOf returns the last effect of a key that is shipped.
func (w *fixture) lastOf(key string) []string {
	w.t.Helper()
	var last []string
	for _, v := range w.history() {
		if v.effect[3] == key {
			last = v.effect
		}
	}
	return last
}

// A key that is over is dead in the other zones. When its own zone has it live on, all of it is
// shipped.
func TestAKeyThatIsOverLivesOn(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ make, more, on []any }{
		{[]any{"hset", "k", "f", "1"}, []any{"hset", "k", "g", "2"}, []any{"persist", "k"}},
		{[]any{"sadd", "k", "f"}, []any{"srem", "k", "none"}, []any{"pexpireat", "k", far}},
		{[]any{"rpush", "k", "f"}, []any{"rpush", "k", "g"}, []any{"persist", "k"}},
		{[]any{"set", "k", "f"}, []any{"append", "k", "g"}, []any{"getex", "k", "PERSIST"}},
	} {
		w, a, b := twoZones(t)
		b.write(c.make...)
		w.drain()
		b.write("pexpireat", "k", comes)
		b.open(passed)
		b.write(c.more...)
		b.write(c.on...)
		w.drain()
		assert.NotEmpty(t, w.everywhere("k"), "%v", c.on)
		assert.Contains(t, a.data(0), "k")
	}
}

// An expiry that is over by its own version is shipped as a deletion: a zone that gets something
// older later has it be gone, too.
func TestAnExpiryThatIsOverIsADeletion(t *testing.T) {
	t.Parallel()
	w, a, b, c := threeZones(t)
	b.write("hset", "h", "f", "1")
	w.drain()
	a.write("hset", "h", "g", "2")
	b.open(passed)
	b.write("pexpireat", "h", comes)
	a.all(b)
	c.all(b)
	assert.Empty(t, a.data(0))
	assert.Equal(t, "D", w.lastOf("h")[0])
	c.all(a) // older
	assert.Empty(t, c.data(0))
	b.all(a) // Redis has kept it until then
	assert.Empty(t, b.data(0))
	b.write("hset", "h", "new", "1")
	w.drain()
	assert.Equal(t, "new=1", w.everywhere("h"))
}

// A removal that empties a key that is over says that all before its expiry is gone.
func TestAKeyThatIsOverIsEmptied(t *testing.T) {
	t.Parallel()
	w, _, b := twoZones(t)
	b.write("sadd", "s", "p")
	b.write("pexpireat", "s", comes)
	w.drain()
	b.open(passed)
	b.write("srem", "s", "p")
	w.drain()
	assert.Equal(t, []string{"E", "l", "0", "s", "", comes}, w.lastOf("s"))
	assert.Zero(t, w.counts["wanted"])
}

// A key expires by the stream's clock, and is made anew. An expiry that it then gets says so, also
// when Redis' own clock has not come so far.
func TestAnExpiryThatPassedByTheStreamsClock(t *testing.T) {
	t.Parallel()
	w, a, b, c := threeZones(t)
	a.write("hset", "h", "old", "1")
	a.write("pexpireat", "h", comes)
	b.all(a)
	c.open(passed)
	c.write("hset", "h", "new", "1")
	b.all(c)
	require.Equal(t, "new=1", b.data(0)["h"].content)
	b.write("pexpireat", "h", far)
	w.drain()
	assert.Equal(t, []string{"E", "l", "0", "h", far, comes}, w.lastOf("h"))
	assert.Equal(t, "new=1", w.everywhere("h"))
	assert.Zero(t, w.counts["wanted"])
}

// The same of an expiry that a wholesale write said.
func TestAnExpiryOfAWholesaleWriteThatPassed(t *testing.T) {
	t.Parallel()
	var w *fixture
	var b *zone
	var at string
	before(t, 30*time.Millisecond, func(soon time.Time) (inTime bool) {
		w, _, b = twoZones(t)
		at = strconv.FormatInt(soon.UnixMilli(), 10)
		b.write("set", "k", "v", "PXAT", at)
		w.drain()
		return time.Now().Before(soon)
	})
	b.awaitNone("k")
	b.write("sadd", "k", "p")
	b.write("pexpireat", "k", far)
	w.drain()
	assert.Equal(t, []string{"E", "l", "0", "k", far, at}, w.lastOf("k"))
	assert.Equal(t, "p", w.everywhere("k"))
	assert.Zero(t, w.counts["wanted"])
}

// An addition says that its key expires, and the statement comes later, from a third zone. What it
// added is not forgotten at that time: the statement may be no longer true.
func TestAnAdditionThatSaysAnUnknownExpiry(t *testing.T) {
	t.Parallel()
	w, a, b, c := threeZones(t)
	c.write("hset", "h", "y", "1")
	w.drain()
	c.write("pexpireat", "h", comes)
	b.all(c)
	b.write("hset", "h", "x", "1")
	b.write("persist", "h")
	a.open(passed) // past that time
	a.all(b)
	a.all(c)
	assert.Equal(t, "x=1 y=1", a.data(0)["h"].content)
	w.drain()
	assert.Equal(t, "x=1 y=1", w.everywhere("h"))
	assert.Equal(t, int64(-1), a.data(0)["h"].expires)
	assert.Zero(t, a.wants())
}

// Expiries pass while a message is being applied, which says that they come, and that they are
// lifted: Redis goes by the time at which it is told of one.
func TestAnExpiryThatPassesWhileItIsApplied(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	var w *fixture
	var a, b *zone
	var soon time.Time
	before(t, 500*time.Millisecond, func(at time.Time) (inTime bool) {
		w, a, b = twoZones(t)
		soon = at
		pipe := a.client.TxPipeline()
		do := func(command string, args ...any) {
			pipe.Do(ctx, append([]any{"FCALL", "sonic_" + command, 1, a.out, "0tf"}, args...)...)
		}
		filler := []any{"filler"}
		for i := range 20_000 { // takes some time
			filler = append(filler, i)
		}
		do("sadd", filler...)
		for i := range 40 {
			key := fmt.Sprint("h", i)
			do("hset", key, "f", "1")
			do("pexpireat", key, soon.Add(time.Duration(i)*time.Millisecond).UnixMilli())
			do("persist", key)
		}
		do("tx")
		_, err := pipe.Exec(ctx)
		require.NoError(t, err)
		require.True(t, a.ship(1000))
		return time.Now().Before(soon)
	})
	time.Sleep(time.Until(soon)) // they pass while the message is applied
	b.all(a)
	w.drain()
	assert.Len(t, b.data(0), 41)
	for i := range 40 {
		assert.Equal(t, "f=1", w.everywhere(fmt.Sprint("h", i)))
	}
}

// A question is of its key's policy, whatever stands behind it in the entry: an answer to one of
// policy none is for the asker alone, and the zone that answers has given the key a version by it.
func TestAQuestionIsOfItsKeysPolicy(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w, a, b := twoZones(t)
	a.write("sadd", "k", "f", "g")
	a.write("pexpireat", "k", far)
	w.drain()
	require.NoError(t, b.client.SRem(ctx, "k", "g").Err()) // it is lost past Sonic
	a.write("smove", "k", "n:k", "f")
	b.all(a)
	require.Equal(t, 1, b.wants())
	for _, want := range b.client.HVals(ctx, "{sonic:0}requests").Val() {
		assert.Equal(t, "l ", want[:2])
	}
	w.drain()
	w.everywhere("k")
	assert.Contains(t, b.data(0), "k")
}

// What a zone wrote before it was asked is no answer.
func TestAnAnswerIsNewerThanItsQuestion(t *testing.T) {
	t.Parallel()
	w, a, b := twoZones(t)
	a.write("hset", "h", "f", "1")
	w.drain()
	require.NoError(t, b.client.Del(context.Background(), "h").Err()) // it is lost past Sonic
	b.open("4102444800000-0")
	a.write("pexpireat", "h", far)
	a.write("hset", "from", "g", "2")
	a.write("rename", "from", "h")
	require.True(t, a.ship(1))
	require.True(t, b.deliver(a))
	require.Equal(t, 1, b.wants())
	b.all(a)
	assert.Equal(t, 1, b.wants())
	w.drain()
	assert.Zero(t, b.wants())
	assert.Equal(t, "g=2", w.everywhere("h"))
}

// A zone asks again when it may have forgotten what is newer than its question.
func TestAQuestionThatIsAskedAgain(t *testing.T) {
	t.Parallel()
	w, a, b := twoZones(t)
	a.write("hset", "h", "f", "1")
	w.drain()
	lose := func() { require.NoError(t, b.client.Del(context.Background(), "h").Err()) }
	lose()
	for range 2 {
		a.write("pexpireat", "h", far)
		b.all(a)
	}
	require.Equal(t, 1, w.counts["wanted"], "nothing came in between")
	b.write("hset", "h", "g", "1")
	lose()
	a.write("persist", "h")
	b.all(a)
	a.write("pexpireat", "h", far)
	b.all(a)
	assert.Equal(t, 2, w.counts["wanted"])
	w.drain()
	w.everywhere("h")
	assert.Zero(t, b.wants())
}

// A zone prunes an expiry that has passed, and sets another one, which so does not say what the
// first one wiped. It comes back as it was before the first one: what that wiped comes again, and
// is not there.
func TestAnOlderRedisGetsAgainWhatAnExpiryWiped(t *testing.T) {
	t.Parallel()
	var w *fixture
	var a, b *zone
	before(t, 100*time.Millisecond, func(at time.Time) (inTime bool) {
		w, a, b = twoZones(t)
		a.write("hset", "h", "first", "1")
		w.drain()
		b.keepCopy()
		a.write("pexpireat", "h", at.UnixMilli())
		a.write("hset", "h", "wiped", "1")
		w.drain()
		return time.Now().Before(at)
	})
	a.awaitNone("h")
	b.awaitNone("h")
	a.write("set", "later", "1")
	b.write("set", "later", "1")
	w.forgetAll()
	b.write("hset", "h", "new", "1")
	b.write("pexpireat", "h", far)
	w.drain()
	require.Equal(t, []string{"E", "l", "0", "h", far}, w.lastOf("h"), "it is pruned")
	b.restart(true)
	w.drain()
	require.True(t, b.ready)
	assert.Equal(t, "new=1", w.everywhere("h"))
	assert.Zero(t, a.wants()+b.wants())
}

// Two zones have a key live on that is over: what the newer of them has is what all have.
func TestTwoZonesHaveAKeyLiveOn(t *testing.T) {
	t.Parallel()
	w, a, b, c := threeZones(t)
	c.write("hset", "h", "f", "1")
	w.drain()
	c.write("pexpireat", "h", comes)
	b.all(c)
	b.open(passed)
	b.write("hset", "h", "g", "2") // dead
	b.write("persist", "h")
	c.open("4102444802000-0")
	c.write("persist", "h")
	a.all(b)
	w.drain()
	assert.Equal(t, "f=1", w.everywhere("h"))
}

// Effects of one call of several writes have one version, and count in their order, whatever else
// the zones write, and also when the call's effects were dropped or were not the first in their
// message.
func TestManyEffectsOfOneVersion(t *testing.T) {
	t.Parallel()
	calls := [][]any{
		{"SET 2", "k", "1", "SET 2", "k", "2", "INCR 1", "k", "INCRBY 2", "c:1", "5", "INCR 1", "c:1"},
		{"SET 4", "k", "4", "PX", "100000", "SET 3", "k", "5", "KEEPTTL", "RPUSH 2", "l", "p", "RPUSH 2", "l", "q", "SET 2", "j", "1"},
		{"SET 2", "j", "2", "HSET 3", "h", "f", "1", "SET 2", "j", "3", "INCRBY 2", "j", "4", "LPUSH 2", "l", "o", "DECR 1", "c:1"},
		{"SET 2", "l", "s", "RPUSH 2", "l", "refused", "SET 2", "h", "s", "SET 4", "j", "8", "PX", "200000"},
	}
	makers := newMakers(t)
	for _, drops := range []bool{false, true} {
		w, a, b := twoZones(t)
		b.write("rpush", "l", "first")
		b.write("set", "k", "b")
		w.drain()
		for i, call := range calls {
			a.skip(drops && i%2 == 1)
			b.write("append", "k", "!")
			_, err := a.call("sonic_many", append([]any{"0"}, call...)...)
			require.NoError(t, err)
			a.skip(false)
			if i == 2 {
				b.all(a)
			}
		}
		a.resend()
		w.drain()
		history := make(map[string][]versioned)
		for _, v := range w.history() {
			history[v.key()] = append(history[v.key()], v)
		}
		for _, key := range []string{"k", "j", "l", "h", "c:1"} {
			w.everywhere(key)
			if drops && key == "l" {
				continue // an operation names what was dropped, and the zones ask
			}
			want, _ := makers.fold(history["0:"+key], time.Now().UnixMilli(), false)
			assert.Equal(t, want, a.data(0)[key], "%s, dropped %v", key, drops)
		}
		assert.Equal(t, "5", a.data(0)["c:1"].content)
		if drops {
			continue
		}
		versions := make(map[int64]int)
		for _, v := range history["0:k"] {
			if v.origin == "a" {
				versions[v.position]++
			}
		}
		several := 0
		for _, n := range versions {
			several = max(several, n)
		}
		assert.Equal(t, 3, several, "effects of k with one version")
	}
}
