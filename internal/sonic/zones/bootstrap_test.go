package zones_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/wire"
	"github.com/aviaryhq/aviary/internal/sonic/zones"
	"github.com/aviaryhq/aviary/test/await"
)

// lose empties the zone's Redis, which no Sonic serves from then on.
func (z *zone) lose() {
	z.t.Helper()
	z.mu.Lock()
	defer z.mu.Unlock()
	z.open = false
	require.NoError(z.t, z.each(func(db *redis.Client) error {
		return errors.Join(db.FlushAll(z.t.Context()).Err(), db.Do(z.t.Context(), "FUNCTION", "FLUSH").Err())
	}))
}

// each calls f for each Redis of the zone.
func (z *zone) each(f func(db *redis.Client) error) error {
	if z.cluster == nil {
		return f(z.server.Client(z.t))
	}
	return z.cluster.each(func(db *redis.Client, _ []int) error { return f(db) })
}

// boots returns how many hashes there are of what keys without versions were copied from.
func (z *zone) boots() (n int64) {
	z.t.Helper()
	require.NoError(z.t, z.each(func(db *redis.Client) error {
		found, err := db.Keys(z.t.Context(), "{sonic:*}boot").Result()
		n += int64(len(found))
		return err
	}))
	return n
}

// prune forgets what no zone needs any more, as a Sonic does.
func (z *zone) prune() {
	z.t.Helper()
	if z.cluster == nil {
		return // its cursors tell
	}
	after := wire.ID{Ms: uint64(time.Now().Add(time.Minute).UnixMilli())}.String() // all zones have all
	for i := range 40 {
		for _, key := range []string{fmt.Sprint("c:", i), fmt.Sprint("n:a:f", i), fmt.Sprint("n:a:", i), fmt.Sprint("n:a:h", i), fmt.Sprint("n:b:f", i), fmt.Sprint("n:b:", i), fmt.Sprint("n:b:h", i), fmt.Sprint("n:c:f", i), fmt.Sprint("n:c:", i), fmt.Sprint("n:c:h", i)} {
			require.NoError(z.t, z.fcallAt(z.t.Context(), z.outOf(key), "sonic_prune", "0", 100, after).Err())
		}
	}
}

// recover opens the Redis as the Sonic of a zone does that came back: it applies the zone's own
// effects that the Redis has lost.
func (z *zone) recover() {
	z.t.Helper()
	z.mu.Lock()
	last := "0-0"
	for _, m := range z.topic {
		if z.cluster != nil {
			break // the copy has all of them, and the Sonic begins behind them
		}
		require.NoError(z.t, z.apply(z.t.Context(), z.Name(), m))
		last = m.last
	}
	clear(z.at) // the subscriptions begin where they were made
	z.mu.Unlock()
	z.begin("2", last)
}

func (w *zoneGroup) bootstrap(from, to string) error {
	b := zones.Bootstrap{Source: w.zones[from].Zone, Target: w.zones[to].Zone, Timeout: await.Patience}
	return b.Run(w.t.Context())
}

// awaitEqual waits until zones have all effects of each other, and hold the same.
func (w *zoneGroup) awaitEqual() {
	w.t.Helper()
	if w.clustered { // a comparison waits for effects that its two zones lack of each other
		for i, name := range w.names {
			for _, other := range w.names[i+1:] {
				require.Empty(w.t, w.differences(name, other))
			}
		}
		return
	}
	for name, z := range w.zones {
		info, err := z.client.XInfoStream(w.t.Context(), z.out).Result()
		require.NoError(w.t, err)
		last, err := wire.ParseID(info.LastGeneratedID)
		require.NoError(w.t, err)
		for _, other := range z.others {
			require.Eventually(w.t, func() bool {
				at, err := wire.ParseID(w.zones[other].client.HGet(w.t.Context(), "{sonic:0}cur", name).Val())
				return err == nil && at.Compare(last) >= 0
			}, await.Patience, 5*time.Millisecond, "%s in %s", name, other)
		}
	}
	for _, other := range w.names[1:] {
		require.Empty(w.t, w.differences(w.names[0], other))
	}
}

func TestAnEmptiedZoneIsFilledWhileOthersWrite(t *testing.T) {
	t.Parallel()
	for name, names := range map[string][]string{
		"three Redis": {"a", "b", "c"}, "a Redis from a cluster": {"a*", "b", "c"},
		"a cluster from a cluster": {"a*", "b*", "c"}, "a cluster from one Redis, with another cluster": {"a", "b*", "c*"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			filledWhileOthersWrite(t, names)
		})
	}
}

func filledWhileOthersWrite(t *testing.T, names []string) {
	t.Helper()
	w := newZones(t, names...)
	w.fill()
	first := w.writing("a", "b", "c")
	require.Empty(t, w.differences("a", "b"))
	b := w.zones["b"]
	sums := first() // what b has acknowledged is shipped before it is lost
	w.awaitEqual()
	second := w.writing("a", "c")
	b.lose()
	require.NoError(t, w.bootstrap("a", "b"))
	require.Positive(t, b.boots(), "counters have been copied while they changed")
	b.recover()
	third := w.writing("b")
	w.differences("a", "b")
	for _, more := range []map[string]int64{second(), third()} {
		for counter, n := range more {
			sums[counter] += n
		}
	}
	w.awaitEqual()
	for i := range 7 {
		counter := fmt.Sprint("c:", i)
		assert.Equal(t, strconv.FormatInt(sums[counter]+int64(i), 10), b.get(counter), "of fill and writing")
	}
	b.prune()
	require.Eventually(t, func() bool { return b.boots() == 0 }, await.Patience, 5*time.Millisecond)
}

func TestABootstrapThatEndedHalfWayIsRunAgain(t *testing.T) {
	t.Parallel()
	w := newZones(t, "a", "b")
	w.fill()
	stop := w.writing("a")
	require.Empty(t, w.differences("a", "b"))
	b := w.zones["b"]
	b.lose()
	ctx, cancel := context.WithCancel(t.Context())
	half := zones.Bootstrap{Source: w.zones["a"].Zone, Target: b.Zone, Progress: func(zones.Progress) { cancel() }}
	require.ErrorIs(t, half.Run(ctx), context.Canceled)
	require.Positive(t, b.client.DBSize(t.Context()).Val())
	err := b.fcall(t.Context(), "sonic_open", "b", "2", "0-0", "", "1", "a", "lww").Err()
	require.ErrorContains(t, err, "run sonic -bootstrap a again")
	b.behind(0, "SET", "left over", "v")

	require.NoError(t, w.bootstrap("a", "b"))
	b.recover()
	stop()
	w.awaitEqual()
	assert.Zero(t, b.client.Exists(t.Context(), "left over").Val())
}

func TestWhatCannotBeFilled(t *testing.T) {
	t.Parallel()
	w := newZones(t, "a", "b")
	w.fill()
	require.ErrorContains(t, w.bootstrap("a", "b"), "holds the state of zone b")
	b := w.zones["b"]
	b.lose()
	b.behind(0, "SET", "k", "v")
	require.ErrorContains(t, w.bootstrap("a", "b"), "holds keys")
	b.lose()
	unknown := zones.Bootstrap{Source: w.zones["a"].Zone, Target: zones.New("d", b.server.Client(t))}
	require.ErrorContains(t, unknown.Run(t.Context()), "zone d is not in the zones of this zone")
}

// What another zone wrote before, and comes after the copy, loses to what the source removed since:
// removals are among the versions.
func TestAFilledZoneKnowsWhatWasRemoved(t *testing.T) {
	t.Parallel()
	for name, names := range map[string][]string{"Redis": {"a", "b", "c"}, "clusters": {"a*", "b*", "c*"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			filledKnowsWhatWasRemoved(t, names)
		})
	}
}

func filledKnowsWhatWasRemoved(t *testing.T, names []string) {
	t.Helper()
	w := newZones(t, names...)
	w.fill()
	w.awaitEqual()
	a, b, c := w.zones["a"], w.zones["b"], w.zones["c"]
	c.mu.Lock()
	c.open = false // what it writes stays in its outbox
	c.mu.Unlock()
	c.write(0, "set", "str1", "old")
	c.write(0, "hset", "hash1", "a", "old", "new", "kept")
	for now := time.Now().UnixMilli(); time.Now().UnixMilli() == now; { // what follows is newer
		time.Sleep(100 * time.Microsecond)
	}
	a.write(0, "del", "str1")
	a.write(0, "hdel", "hash1", "a")
	b.lose()
	require.NoError(t, w.bootstrap("a", "b"))
	b.recover()
	c.mu.Lock()
	c.open = true
	c.mu.Unlock()
	w.awaitEqual()
	for _, z := range w.zones {
		assert.Zero(t, z.client.Exists(t.Context(), "str1").Val(), z.Name())
		assert.Equal(t, map[string]string{"b": "x", "c": "y", "new": "kept"}, z.client.HGetAll(t.Context(), "hash1").Val(), z.Name())
	}
}

// The source's keys of policy none change while they are copied: applied again from where the copy
// began, what was written then must not take away what was there before.
func TestKeysWithoutVersionsChangeWhileTheyAreCopied(t *testing.T) {
	t.Parallel()
	w := newZones(t, "a", "b")
	a, b := w.zones["a"], w.zones["b"]
	a.write(0, "set", "first", "1")
	a.write(1, "hset", "n:a:h", "before", "1")
	a.write(1, "rpush", "n:a:l", "1")
	a.write(1, "sadd", "n:a:s", "before")
	w.awaitEqual()
	b.lose()
	changed := false
	filling := zones.Bootstrap{Source: a.Zone, Target: b.Zone, Timeout: await.Patience, Progress: func(zones.Progress) {
		if !changed { // db 0 is copied, and db 1 is not
			changed = true
			a.write(1, "hset", "n:a:h", "since", "1")
			a.write(1, "pexpire", "n:a:h", 1_000_000)
			a.write(1, "sadd", "n:a:s", "since")
			a.write(1, "pexpire", "n:a:s", 1_000_000)
		}
	}}
	require.NoError(t, filling.Run(t.Context()))
	require.True(t, changed)
	b.recover()
	w.awaitEqual()
}

// The source is restarted while it is copied. It has lost a moment, perhaps, which the copy is
// taken to have.
func TestTheSourceIsRestartedWhileItIsCopied(t *testing.T) {
	t.Parallel()
	w := newZones(t, "a", "b")
	a, b := w.zones["a"], w.zones["b"]
	w.fill()
	w.awaitEqual()
	b.lose()
	restarted := false
	filling := zones.Bootstrap{Source: a.Zone, Target: b.Zone, Timeout: await.Patience, Progress: func(zones.Progress) {
		if restarted {
			return
		}
		restarted = true
		a.mu.Lock()
		a.open = false
		a.mu.Unlock()
		assert.NoError(t, a.server.Kill())
		assert.NoError(t, a.server.Start(context.Background()))
		a.begin("1", "0-0") // the same epoch: its stream ends where the topic does
	}}
	require.ErrorContains(t, filling.Run(t.Context()), "run the command again")
	require.True(t, restarted)
}

// The copy begins once the source has what the topics had when the subscriptions were made, and not
// before.
func TestTheSourceMustHaveWhatSubscriptionsLack(t *testing.T) {
	t.Parallel()
	w := newZones(t, "a", "b", "c")
	w.fill()
	w.awaitEqual()
	a, b, c := w.zones["a"], w.zones["b"], w.zones["c"]
	a.mu.Lock()
	a.open = false // it gets nothing of others
	a.mu.Unlock()
	c.write(0, "set", "late", "v")
	last := c.client.XInfoStream(t.Context(), c.out).Val().LastGeneratedID
	b.lose()
	fill := zones.Bootstrap{Source: a.Zone, Target: b.Zone, Timeout: 200 * time.Millisecond, Subscribe: func(context.Context) (zones.Subscribed, error) {
		id, err := wire.ParseID(last)
		return zones.Subscribed{Least: zones.Reached{"c": id}}, err
	}}
	require.ErrorContains(t, fill.Run(t.Context()), "this zone's cluster has them up to "+last)
	a.mu.Lock()
	a.open = true
	a.mu.Unlock()
	fill.Timeout = await.Patience
	require.NoError(t, fill.Run(t.Context()))
	assert.Equal(t, "v", b.get("late"))
}
