package script_test

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/wire"
)

// all ships and delivers from one zone to another.
func (z *zone) all(origin *zone) {
	z.fixture.t.Helper()
	for origin.ship(1000) {
	}
	for z.deliver(origin) {
	}
}

// A zone asks another one for a key's state, gets it, and writes the key. The other one comes back
// older, to before it was asked: it is asked again. It must not answer before it has that write
// again: its answer would take it from both.
func TestOlderRedisAnswersOnceItIsWhole(t *testing.T) {
	t.Parallel()
	var w *fixture
	var a, b *zone
	before(t, 100*time.Millisecond, func(at time.Time) (inTime bool) {
		w, a, b = twoZones(t)
		b.write("hset", "k", "f", "1")
		b.write("pexpireat", "k", at.UnixMilli())
		a.all(b)
		b.write("persist", "k")
		inTime = time.Now().Before(at)
		sleepPast(at)
		return inTime
	})
	b.keepCopy()
	a.all(b) // it has forgotten what it is to keep, and asks
	require.Equal(t, 1, w.counts["wanted"])
	b.all(a)
	a.all(b)
	a.write("hset", "k", "g", "2")
	b.all(a)
	require.Equal(t, "f=1 g=2", b.data(0)["k"].content)
	b.beat() // others may forget what it has
	for b.ship(1000) {
	}
	for range 2 { // the second time it is asked while it is not whole either
		b.restart(true)
		require.False(t, b.ready)
		b.deliver(a)
		require.False(t, b.ready)
	}
	w.drain()
	require.True(t, b.ready)
	for _, z := range w.zones {
		require.Equal(t, "f=1 g=2", z.data(0)["k"].content, z.name)
	}
}

// A zone that comes back older twice has told lower cursors in between. It must reach the highest
// again: others have forgotten what is before it.
func TestOlderTwiceReachesWhatItToldFirst(t *testing.T) {
	t.Parallel()
	w, a, b := twoZones(t)
	a.write("set", "k", "1")
	b.all(a)
	b.keepCopy()
	a.write("set", "k", "2")
	b.all(a)
	b.beat()
	b.ship(1000)
	b.restart(true)
	require.False(t, b.ready)
	b.beat() // it tells how far it is now
	b.ship(1000)
	b.restart(true)
	require.False(t, b.ready, "it has to be as far as it was the first time")
	b.all(a)
	require.True(t, b.ready)
	w.drain()
	require.Equal(t, a.data(0), b.data(0))
}

// A message with an effect that this library does not know is not applied, and nothing that it
// holds is lost: a newer library applies it.
func TestEffectsOfANewerVersion(t *testing.T) {
	t.Parallel()
	_, a, b := twoZones(t)
	a.write("incrby", "c:1", 5)
	a.write("set", "k", "1")
	a.ship(10)
	known := a.topic[0]
	newer := slices.Clone(known.entries)
	newer[1].Effects = strings.Replace(newer[1].Effects, "\xa1S", "\xa1?", 1)
	payload, _ := wire.Payload(newer)
	for range 2 {
		_, err := b.call("sonic_apply", "a", 1, known.prev, known.last, "", "0", payload)
		require.ErrorContains(t, err, "SONICNEWER a sent an effect "+newer[1].ID.String()+" of kind ?")
	}
	require.Empty(t, b.data(0))
	b.deliver(a)
	require.Equal(t, "5", b.data(0)["c:1"].content)
	require.Equal(t, "1", b.data(0)["k"].content)

	_, err := b.call("sonic_apply", "new", 1, "0-0", known.last, "", "0", known.parts[0])
	require.ErrorContains(t, err, "SONICNOTREADY zone new is not in the zones")
}

// A key of policy none that loses its last element is not asked for.
func TestNobodyAsksForAnEmptiedKey(t *testing.T) {
	t.Parallel()
	w, a, b := twoZones(t)
	a.write("hset", "n:a:1", "f", "1")
	a.write("pexpire", "n:a:1", 1_000_000)
	b.all(a)
	a.write("hdel", "n:a:1", "f")
	b.all(a)
	require.Zero(t, w.counts["wanted"])
	require.Empty(t, b.data(0))
}

// Many large keys are asked for at once. They are not all shipped in one call.
func TestAnswersOfLargeKeysComeInSeveralCalls(t *testing.T) {
	t.Parallel()
	var w *fixture
	var a, b *zone
	before(t, time.Second, func(at time.Time) (inTime bool) {
		w, a, b = twoZones(t)
		large := strings.Repeat("x", 3<<20)
		for i := range 5 {
			b.write("set", "large"+strconv.Itoa(i), large)
		}
		a.all(b)
		for i := range 5 {
			b.write("pexpireat", "large"+strconv.Itoa(i), at.UnixMilli())
		}
		a.all(b)
		for i := range 5 {
			b.write("persist", "large"+strconv.Itoa(i))
		}
		inTime = time.Now().Before(at)
		sleepPast(at)
		return inTime
	})
	a.all(b)
	require.Equal(t, 5, w.counts["wanted"])
	b.all(a)
	waiting := func() int64 { return b.client.HLen(t.Context(), "{sonic:0}answers").Val() }
	require.EqualValues(t, 3, waiting(), "two are enough for one call")
	b.beat()
	require.EqualValues(t, 1, waiting())
	b.beat()
	require.Zero(t, waiting())
	w.drain()
	require.Len(t, a.data(0), 5)
	require.Equal(t, a.data(0), b.data(0))
}
