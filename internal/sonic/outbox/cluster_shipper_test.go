package outbox

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/cluster"
	"github.com/aviaryhq/aviary/internal/sonic/primaries"
	"github.com/aviaryhq/aviary/internal/sonic/redislib"
	"github.com/aviaryhq/aviary/internal/sonic/script"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
	"github.com/aviaryhq/aviary/test/await"
)

// The effects of all slots come once, in the order of each slot, also large ones and transactions.
// Streams are trimmed, and primaries get markers.
func TestClusterEffectsOfAllSlots(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	w := newClusterFixture(t, 3, 0)
	s, _, _ := w.shipper(w.dial())
	written := map[string][]string{}
	for i := range 3 {
		for k := range 400 {
			key := fmt.Sprint("key", k)
			written[key] = append(written[key], fmt.Sprint(i))
			require.NoError(t, w.set(ctx, key, fmt.Sprint(i), ""))
		}
	}
	large := strings.Repeat("large", 500_000)
	for i := range 200 { // more than one read of sonic_take returns
		key := fmt.Sprint("{tx}", i)
		written[key] = []string{"a"}
		require.NoError(t, w.set(ctx, key, "a", "1"))
	}
	written["large"] = []string{large, "small"}
	require.NoError(t, w.set(ctx, "large", large, ""))
	require.NoError(t, w.set(ctx, "large", "small", ""))
	h := w.await(written)
	assert.Zero(t, h.repeated)
	assert.Equal(t, 3, h.parts)
	w.emptied()
	assert.EqualValues(t, 1402, h.header.Count)
	assert.True(t, s.Status().Owner)
	assert.NoError(t, s.Unhealthy())

	greatest := s.Status().Stored
	require.Eventually(t, func() bool { return w.read().header.Watermark > greatest.Ms }, await.Patience, 100*time.Millisecond)
	for _, p := range w.primaries.Map().Primaries() {
		require.Eventually(t, func() bool { return w.marker(p.Address).Watermark > greatest.Ms }, await.Patience, 20*time.Millisecond)
	}
}

// Slots move while clients write to them.
func TestClusterSlotsMove(t *testing.T) {
	t.Parallel()
	w := newClusterFixture(t, 3, 0)
	_, _, _ = w.shipper(w.dial())
	var keys []string
	for i := range 4 {
		for k := range 5 {
			keys = append(keys, fmt.Sprintf("{%d}%d", i, k))
		}
	}
	stop, count := w.writing(keys)
	grows(t, count, 100)
	addresses := w.redis.Addresses()
	for i := range 12 {
		w.redis.MoveSlot(t, cluster.Slot(fmt.Appendf(nil, "{%d}", i%4)), addresses[rand.IntN(3)])
		grows(t, count, 20)
	}
	h := w.await(stop())
	w.emptied()
	t.Logf("%d messages, %d entries came again", h.messages, h.repeated)
	last := wire.ID{}
	for _, id := range h.last {
		last = wire.Max(last, id)
	}
	require.Eventually(t, func() bool { return w.read().header.Watermark > last.Ms }, await.Patience, 100*time.Millisecond)
}

// A process is killed, and another one takes over.
func TestClusterShipperIsKilled(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	w := newClusterFixture(t, 3, 0)
	var keys []string
	for k := range 30 {
		keys = append(keys, fmt.Sprint("key", k))
	}
	client := w.dial()
	s, kill, _ := w.shipper(client)
	stop, count := w.writing(keys)
	for range 4 {
		require.Eventually(t, func() bool { return s.Status().Owner }, await.Patience, time.Millisecond)
		grows(t, count, 200)
		next := w.dial()
		another, killNext, _ := w.shipper(next)
		_ = client.Close(ctx) // what is in flight is lost or stored
		kill()
		s, kill, client = another, killNext, next
	}
	h := w.await(stop())
	w.emptied()
	t.Logf("%d messages, %d entries came again", h.messages, h.repeated)
}

// A primary is killed, and its replica lacks the last writes. What the topic has comes back.
func TestClusterReplicaLacksWrites(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	w := newClusterFixture(t, 3, 1)
	_, _, _ = w.shipper(w.dial())
	var keys []string
	for k := range 60 {
		keys = append(keys, fmt.Sprint("key", k))
	}
	written := map[string][]string{}
	write := func(value string) {
		for _, key := range keys {
			written[key] = append(written[key], value)
			require.NoError(t, w.set(ctx, key, value, ""))
		}
	}
	write("first")
	w.await(written)
	w.emptied()
	primary, replica := w.redis.Nodes()[0], w.redis.Nodes()[3]
	require.Eventually(t, func() bool { return !w.marker(primary.Addr()).IsZero() }, await.Patience, 20*time.Millisecond)
	require.NoError(t, primary.Client(t).Wait(ctx, 1, await.Patience).Err())

	// The replica is not let in any more.
	require.NoError(t, replica.Client(t).ConfigSet(ctx, "masteruser", "nobody").Err())
	require.NoError(t, replica.Client(t).ConfigSet(ctx, "masterauth", "wrong").Err())
	require.NoError(t, primary.Client(t).Do(ctx, "CLIENT", "KILL", "TYPE", "replica").Err())
	write("second")
	w.await(written)
	require.NoError(t, primary.Kill())
	write("third")
	w.await(written)
	w.emptied()
	for _, key := range keys {
		address := w.redis.Owner(t, cluster.Slot([]byte(key)))
		assert.NotEqual(t, primary.Addr(), address)
		assert.Equal(t, "third", w.primaries.At(address).Get(ctx, key).Val(), key)
	}
}

// What only the topic has is there again before the new primary takes writes.
func TestClusterIsRestoredBeforeItTakesWrites(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	w := newClusterFixture(t, 3, 1)
	_, _, _ = w.shipper(w.dial())
	require.NoError(t, w.set(ctx, "{x}first", "1", ""))
	w.await(map[string][]string{"{x}first": {"1"}})
	slot := cluster.Slot([]byte("{x}first"))
	primary := w.redis.Node(t, w.redis.Owner(t, slot))
	for i, n := range w.redis.Nodes()[:3] {
		if n == primary {
			replica := w.redis.Nodes()[3+i].Client(t)
			require.NoError(t, primary.Client(t).Wait(ctx, 1, await.Patience).Err())
			require.NoError(t, replica.ConfigSet(ctx, "masteruser", "nobody").Err())
			require.NoError(t, replica.ConfigSet(ctx, "masterauth", "wrong").Err())
			require.NoError(t, primary.Client(t).Do(ctx, "CLIENT", "KILL", "TYPE", "replica").Err())
		}
	}
	require.NoError(t, w.set(ctx, "{x}lost", "2", ""))
	w.await(map[string][]string{"{x}lost": {"2"}})
	require.NoError(t, primary.Kill())
	require.NoError(t, w.set(ctx, "{x}next", "3", ""))
	assert.Equal(t, "2", w.primaries.At(w.redis.Owner(t, slot)).Get(ctx, "{x}lost").Val())
}

// What a predecessor has sent is stored after its successor has read the topic's end.
func TestClusterPredecessorIsStoredLate(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	w := newClusterFixture(t, 1, 0)
	first := w.owner(w.dial())
	require.NoError(t, first.takeOver(ctx))
	before := first.packer.Tail // as the successor reads it
	e := wire.Entry{ID: wire.ID{Ms: 5}, Effects: "\x94\xa1D\xa1l\xa10\xa1k"}
	require.NoError(t, first.storeGroups([]wire.Group{{Last: e.ID, Entries: []wire.Entry{e}}}, 0))
	first.release(first.topicWriter)

	second := w.owner(w.dial())
	second.packer.Tail = before
	require.NoError(t, second.confirmEnd(ctx))
	assert.Equal(t, first.packer.Tail.Position+1, second.packer.Tail.Position)
	assert.Equal(t, e.ID, second.packer.Tail.Last)
	h := w.read()
	assert.Equal(t, 3, h.messages)
	assert.Equal(t, second.packer.Tail.Position, h.header.Position)
	assert.EqualValues(t, 1, h.header.Count)
}

// A cluster that was emptied is refused: its topic has effects.
func TestClusterWasEmptied(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	w := newClusterFixture(t, 3, 0)
	_, stop, ended := w.shipper(w.dial())
	require.NoError(t, w.set(ctx, "key", "1", ""))
	w.await(map[string][]string{"key": {"1"}})
	stop()
	require.NoError(t, <-ended)
	for _, n := range w.redis.Nodes() {
		require.NoError(t, n.Client(t).FlushAll(ctx).Err())
		require.NoError(t, n.Client(t).FunctionFlush(ctx).Err())
	}
	_, _, ended = w.shipper(w.dial())
	require.ErrorIs(t, <-ended, ErrState)
}

// A primary that is started again with all its data goes on.
func TestClusterPrimaryIsStartedAgain(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	w := newClusterFixture(t, 3, 0, "appendonly yes", "appendfsync always")
	_, _, _ = w.shipper(w.dial())
	var keys []string
	for k := range 30 {
		keys = append(keys, fmt.Sprint("key", k))
	}
	stop, count := w.writing(keys)
	for range 2 {
		grows(t, count, 100)
		n := w.redis.Nodes()[1]
		require.NoError(t, n.Kill())
		require.NoError(t, n.Start(ctx))
	}
	grows(t, count, 100)
	w.await(stop())
	w.emptied()
}

// Versions that all zones are past are removed.
func TestClusterPrunes(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	w := newClusterFixture(t, 3, 0)
	_, _, _ = w.shipper(w.dial())
	require.NoError(t, w.set(ctx, "key", "1", ""))
	db := w.primaries.At(w.redis.Owner(t, cluster.Slot([]byte("key"))))
	versions := slotOf("key").Versions
	require.EqualValues(t, 1, db.HLen(ctx, versions).Val())
	w.horizon.Store(&wire.ID{Ms: uint64(time.Now().Add(time.Hour).UnixMilli())})
	require.Eventually(t, func() bool { return db.Exists(ctx, versions).Val() == 0 }, await.Patience, 20*time.Millisecond)
}

// A slot with entries that are not shipped moves while no process ships. The primary that had it does
// not wait for them.
func TestClusterSlotMovesWhileNobodyShips(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	w := newClusterFixture(t, 2, 0)
	_, stop, ended := w.shipper(w.dial())
	require.NoError(t, w.set(ctx, "key", "first", ""))
	w.await(map[string][]string{"key": {"first"}})
	stop()
	require.NoError(t, <-ended)
	require.NoError(t, w.set(ctx, "key", "second", ""))
	slot, to := cluster.Slot([]byte("key")), w.redis.Nodes()[0].Addr()
	if w.redis.Owner(t, slot) == to {
		to = w.redis.Nodes()[1].Addr()
	}
	w.redis.MoveSlot(t, slot, to)
	w.primaries.Refresh()
	require.Eventually(t, func() bool { return w.primaries.Map().Owner(slot) == to }, await.Patience, time.Millisecond)

	_, _, _ = w.shipper(w.dial())
	h := w.await(map[string][]string{"key": {"first", "second"}})
	require.Eventually(t, func() bool { return w.read().header.Watermark > h.last[slot].Ms }, await.Patience, 100*time.Millisecond)
	w.emptied()
}

// The topic no longer has what a primary has lost. It takes no writes. The others go on.
func TestClusterPrimaryIsOlderThanTheTopic(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	w := newClusterFixture(t, 2, 0)
	owner := w.owner(w.dial())
	require.NoError(t, owner.takeOver(ctx))
	slot := cluster.Slot([]byte("key"))
	g := wire.Group{Slot: slot, Prev: wire.ID{Ms: 4}, Last: wire.ID{Ms: 5}}
	g.Entries = []wire.Entry{{ID: g.Last, Effects: "\x94\xa1D\xa1l\xa10\xa3key"}}
	require.NoError(t, owner.storeGroups([]wire.Group{g}, 0))
	owner.release(owner.topicWriter)
	other := w.redis.Nodes()[0].Addr()
	if w.redis.Owner(t, slot) == other {
		other = w.redis.Nodes()[1].Addr()
	}
	require.Eventually(t, func() bool { return w.primaries.Map() != nil }, await.Patience, time.Millisecond)
	slots := primaries.SlotsOf(w.primaries.Map(), other)
	marker := primaries.Marker{Message: owner.writer.LastID()}
	require.NoError(t, w.primaries.At(other).HSet(ctx, script.SlotKeys(slots[0]).Markers, "a", marker.Text()).Err())

	s, _, ended := w.shipper(w.dial())
	require.Eventually(t, func() bool { return errors.Is(s.Unhealthy(), errLost) || len(ended) > 0 }, await.Patience, time.Millisecond)
	require.Empty(t, ended)
	for i := 0; ; i++ {
		if key := fmt.Sprint(i); w.redis.Owner(t, cluster.Slot([]byte(key))) == other {
			require.NoError(t, w.set(ctx, key, "1", ""))
			break
		}
	}
	err := w.primaries.At(w.redis.Owner(t, slot)).Do(ctx, "FCALL", "sonic_set", 1, slotOf("key").Outbox, "0", "key", "1").Err()
	assert.True(t, redislib.NotReady(err) || primaries.Moving(err), err)
}
