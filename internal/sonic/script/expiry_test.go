package script_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A collection that is shipped as a whole says when it expires. That holds for newer elements that
// another zone has, too, whichever of the two comes first.
func TestAWholeCollectionRestatesItsExpiry(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ add, more []any }{
		{[]any{"hset", "from", "f", "v"}, []any{"hset", "k", "g", "w"}},
		{[]any{"sadd", "from", "f"}, []any{"sadd", "k", "g"}},
		{[]any{"zadd", "from", 1, "f"}, []any{"zadd", "k", 2, "g"}},
	} {
		w, a, b := twoZones(t)
		b.open("4102444800000-0") // its writes are newer
		a.write(c.add...)
		a.write("pexpireat", "from", far)
		a.write("rename", "from", "k")
		b.write(c.more...)
		w.drain()
		w.everywhere("k")
		for _, z := range w.zones {
			assert.Equal(t, far, strconv.FormatInt(z.data(0)["k"].expires, 10), "%v in %s", c.add, z.name)
		}
		assert.Zero(t, w.counts["wanted"])

		// One that has passed by the time at which it comes takes what is older with it, and leaves
		// what is newer.
		w, a, b = twoZones(t)
		a.write(c.add...)
		a.write("pexpireat", "from", "4102444800500")
		a.write("rename", "from", "k")
		b.open("4102444801000-0") // past that time
		b.write(c.more...)
		require.True(t, a.ship(100))
		require.True(t, b.deliver(a))
		assert.Positive(t, w.counts["dead"])
		got := b.data(0)["k"]
		assert.Contains(t, got.content, "g")
		assert.NotContains(t, got.content, "f")
		assert.Equal(t, int64(-1), got.expires)
	}
}

// An expiry whose key a removal of another zone left empty is forgotten by Redis with the key. The
// zone asks the other one for what the key is, so that what is added later expires in all zones or
// in none.
func TestAKeyThatAnotherZoneEmptied(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ add, remove []any }{
		{[]any{"hset", "k", "f", "v"}, []any{"hdel", "k", "f"}},
		{[]any{"sadd", "k", "f"}, []any{"spop", "k"}},
		{[]any{"zadd", "k", 1, "f"}, []any{"zpopmin", "k"}},
	} {
		w, a, b := twoZones(t)
		a.write(c.add...)
		w.drain()
		a.write("pexpireat", "k", far)
		b.write(c.remove...) // it does not know of the expiry
		require.True(t, b.ship(100))
		require.True(t, a.deliver(b))
		assert.Equal(t, 1, w.counts["wanted"])
		assert.Equal(t, 1, a.wants())
		w.drain()
		assert.Zero(t, a.wants()+b.wants())
		b.write(c.add...)
		w.drain()
		w.everywhere("k")
		assert.Equal(t, int64(-1), a.data(0)["k"].expires)
	}
}

// When a local command empties a key that expires, its effect says so, and nobody has to ask.
func TestAKeyThatItsOwnZoneEmptied(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ add, remove []any }{
		{[]any{"sadd", "k", "f"}, []any{"srem", "k", "f"}},
		{[]any{"rpush", "k", "f"}, []any{"lpop", "k"}},
	} {
		w, a, b := twoZones(t)
		a.write(c.add...)
		a.write("pexpireat", "k", far)
		w.drain()
		a.write(c.remove...)
		a.write(c.add...)
		w.drain()
		w.everywhere("k")
		assert.Equal(t, int64(-1), b.data(0)["k"].expires)
		assert.Zero(t, w.counts["wanted"])
	}
}

// An expiry that passed before all that a zone has forgotten wipes nothing there: what it wiped is
// gone, and what was written after it has no versions any more.
func TestAnExpiryThatPassedBeforeWhatIsForgotten(t *testing.T) {
	t.Parallel()
	var w *fixture
	var a, b *zone
	before(t, 50*time.Millisecond, func(at time.Time) (inTime bool) {
		w, a, b = twoZones(t)
		a.write("hset", "h", "old", "1")
		a.write("pexpireat", "h", at.UnixMilli())
		a.awaitNone("h")
		a.write("hset", "h", "new", "1")
		w.drain()
		// An expiry that has passed when its entry is appended is a deletion.
		return w.history()[1].effect[0] == "E"
	})
	for range 4 {
		a.beat()
		b.beat()
		w.drain()
	}
	b.prune(0) // a still knows of the expiry
	a.write("hset", "h", "newest", "1")
	a.write("pexpireat", "h", far)
	w.drain()
	all := w.history()
	last := all[len(all)-1].effect
	require.Equal(t, []string{"E", "h"}, []string{last[0], last[3]})
	require.Len(t, last, 6, "it tells of the expiry that has passed")
	assert.Equal(t, "new=1 newest=1", w.everywhere("h"))
	assert.Equal(t, far, strconv.FormatInt(b.data(0)["h"].expires, 10))
}

// What is added to a key whose expiry has passed by the stream's clock, and not yet by Redis' own,
// goes with it, also when something older comes before Redis has removed it.
func TestWhatIsAddedToAKeyThatIsOver(t *testing.T) {
	t.Parallel()
	w, a, b := twoZones(t)
	a.write("set", "z", "older")
	b.open("4102444800000-0") // a clock that is ahead
	b.write("zadd", "z", 1, "p")
	b.write("pexpireat", "z", "4102444799000")
	b.write("zadd", "z", 2, "q")
	w.drain()
	w.everywhere("z")
	assert.Empty(t, b.data(0))
}

// A wholesale write that makes a zone ask for the key is not taken for the answer: it would not ask
// again after a restart.
func TestAWriteIsNotTheAnswerToWhatItAsks(t *testing.T) {
	t.Parallel()
	var w *fixture
	var a, b *zone
	before(t, 100*time.Millisecond, func(at time.Time) (inTime bool) {
		w, a, b = twoZones(t)
		b.write("hset", "k", "f", "1")
		b.write("pexpireat", "k", at.UnixMilli())
		tick() // a's write is newer
		a.write("set", "k", "v")
		return time.Now().Before(at)
	})
	b.awaitNone("k")
	b.write("hset", "k", "g", "1") // the key had expired
	for a.ship(100) {
	}
	for b.deliver(a) {
	}
	wants := b.client.HGetAll(context.Background(), "{sonic:0}requests").Val()
	assert.Contains(t, wants, "a 0:k")
	w.drain()
	assert.Empty(t, b.client.HGetAll(context.Background(), "{sonic:0}requests").Val(), "it was answered")
	assert.Equal(t, a.data(0), b.data(0))
}
