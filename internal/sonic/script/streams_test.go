package script_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/cluster"
	"github.com/aviaryhq/aviary/internal/sonic/script"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack"
)

// taken is what a call of sonic_take returned of the slot of tag: the entry before, and the ids.
type taken struct {
	prev  string
	ids   []string
	list  []redis.XMessage
	clock int64 // 0 when there is more
}

func (p *primary) take(again ...any) (got taken) {
	p.t.Helper()
	_, out := slotOfTag()
	reply := p.across("sonic_take", append([]any{"reader"}, again...)...)
	for i := 0; i+2 < len(reply); i += 3 {
		if reply[i] != out {
			continue
		}
		got.prev, got.list = reply[i+1].(string), xmessages(p.t, reply[i+2])
		for _, m := range got.list {
			got.ids = append(got.ids, m.ID)
		}
	}
	if len(reply)%3 == 1 {
		clock, err := strconv.ParseInt(reply[len(reply)-1].(string), 10, 64)
		require.NoError(p.t, err)
		got.clock = clock
	}
	return got
}

// held returns the bytes that the primary counts of its streams.
func (p *primary) held() string { return p.across("sonic_primary")[2].(string) }

// What a slot that moves has not shipped is taken where it is afterwards, once, and who lost it does
// not say meanwhile that nothing is left.
func TestEntriesOfASlotThatMoves(t *testing.T) {
	t.Parallel()
	c, from, to := newCluster(t)
	slot, out := slotOfTag()
	from.write("SET {t}k 1")
	first := from.take()
	require.Len(t, first.ids, 1)
	assert.Equal(t, "0-0", first.prev)
	assert.NotZero(t, first.clock)
	require.Empty(t, from.across("sonic_shipped_all", out, first.ids[0]))
	assert.Equal(t, "0", from.held())

	from.write("SET {t}k 2")
	from.write("SET {t}k 3")
	c.StartMove(t, slot, to.address)
	from.migrate(to, out)
	got := from.take()
	assert.Empty(t, got.ids)
	assert.Zero(t, got.clock, "it cannot say that nothing is left")
	assert.Equal(t, []any{out}, from.across("sonic_shipped_all", out, "9999999999999-0"))
	c.EndMove(t, slot)
	assert.Zero(t, from.take().clock)
	require.Empty(t, to.across("sonic_hold", out))
	require.Equal(t, []any{out}, from.across("sonic_hold", out))
	assert.NotZero(t, from.take().clock)
	assert.Equal(t, "0", from.held())
	got = to.take()
	assert.Equal(t, first.ids[0], got.prev, "the chain goes on")
	require.Len(t, got.ids, 2)
	assert.NotZero(t, got.clock)

	// It moves back with entries that were taken and not shipped.
	to.write("SET {t}k 4")
	c.MoveSlot(t, slot, from.address)
	require.Empty(t, from.across("sonic_hold", out))
	require.Equal(t, []any{out}, to.across("sonic_hold", out))
	from.write("SET {t}k 5")
	back := from.take()
	assert.Equal(t, first.ids[0], back.prev)
	require.Len(t, back.ids, 4)
	assert.Equal(t, got.ids, back.ids[:2])
	require.Empty(t, from.across("sonic_shipped_all", out, back.ids[3]))
	for _, p := range []*primary{from, to} {
		assert.Equal(t, "0", p.held())
		assert.Empty(t, p.take("again").ids)
	}

	// A stream without entries keeps its clock, and counts for nothing.
	c.MoveSlot(t, slot, to.address)
	require.Empty(t, to.across("sonic_hold", out))
	require.Equal(t, []any{out}, from.across("sonic_hold", out))
	to.write("SET {t}k 6")
	last := to.take()
	assert.Equal(t, back.ids[3], last.prev)
	require.Len(t, last.ids, 1)
	assert.Greater(t, last.ids[0], last.prev)
}

// The bytes of a stream follow what is left in it, also when it is never empty.
func TestBytesOfAStreamThatIsNeverEmpty(t *testing.T) {
	t.Parallel()
	_, from, _ := newCluster(t)
	_, out := slotOfTag()
	one := int64(0)
	for round := range 50 {
		for range 20 {
			from.write("SET {t}k 0123456789")
		}
		held, err := strconv.ParseInt(from.held(), 10, 64)
		require.NoError(t, err)
		if round == 0 {
			one = held / 20
		}
		require.InDelta(t, 21*one, held, float64(3*one), "round %d", round)
		ids := from.ids()
		require.Empty(t, from.across("sonic_shipped_all", out, ids[len(ids)-2]))
	}
}

// oldest returns the time of the oldest entry of all slots of the primary, 0 if there is none.
func (p *primary) oldest() int64 {
	p.t.Helper()
	ms, err := p.client.Do(context.Background(), "FCALL", "sonic_oldest", 0).Int64()
	require.NoError(p.t, err)
	return ms
}

// The oldest entry of a primary is that of all its slots that is not shipped, also after a slot has
// moved.
func TestTheOldestEntryOfAPrimary(t *testing.T) {
	t.Parallel()
	c, from, to := newCluster(t)
	slot, out := slotOfTag()
	other := tag // a key of another slot of the same primary
	for i := 0; cluster.Slot([]byte(other)) == slot || c.Owner(t, cluster.Slot([]byte(other))) != from.address; i++ {
		other = fmt.Sprint("other", i)
	}
	otherOut := script.SlotOutbox(cluster.Slot([]byte(other)))
	write := func(p *primary, out, key string) (id wire.ID) {
		t.Helper()
		tick() // no two have the same time
		require.NoError(t, p.client.Do(t.Context(), "FCALL", "sonic_set", 1, out, "0", key, "1").Err())
		last, err := p.client.XRevRangeN(t.Context(), out, "+", "-", 1).Result()
		require.NoError(t, err)
		id, err = wire.ParseID(last[0].ID)
		require.NoError(t, err)
		return id
	}
	assert.Zero(t, from.oldest())
	first := write(from, out, tag+"k")
	second := write(from, otherOut, other)
	third := write(from, out, tag+"k")
	assert.EqualValues(t, first.Ms, from.oldest())
	require.Empty(t, from.across("sonic_shipped_all", out, first.String()))
	assert.EqualValues(t, second.Ms, from.oldest())
	require.Empty(t, from.across("sonic_shipped_all", otherOut, second.String()))
	assert.EqualValues(t, third.Ms, from.oldest())

	c.MoveSlot(t, slot, to.address)
	assert.Zero(t, to.oldest())
	require.Empty(t, to.across("sonic_hold", out))
	require.Equal(t, []any{out}, from.across("sonic_hold", out))
	assert.Zero(t, from.oldest())
	assert.EqualValues(t, third.Ms, to.oldest())
	fourth := write(to, out, tag+"k")
	require.Empty(t, to.across("sonic_shipped_all", out, third.String()))
	assert.EqualValues(t, fourth.Ms, to.oldest())
	require.Empty(t, to.across("sonic_shipped_all", out, fourth.String()))
	assert.Zero(t, to.oldest())
}

// A move that was given up leaves what was not taken.
func TestAMoveThatIsGivenUp(t *testing.T) {
	t.Parallel()
	c, from, to := newCluster(t)
	slot, out := slotOfTag()
	from.write("SET {t}k 1")
	c.StartMove(t, slot, to.address)
	from.migrate(to, out)
	assert.Zero(t, from.take().clock)
	pipe := to.client.Pipeline()
	for _, args := range [][]any{{"ASKING"}, {"DUMP", out}} {
		pipe.Do(t.Context(), args...)
	}
	cmds, err := pipe.Exec(t.Context())
	require.NoError(t, err)
	for _, p := range []*primary{from, to} {
		require.NoError(t, p.client.Do(t.Context(), "CLUSTER", "SETSLOT", slot, "STABLE").Err())
	}
	require.NoError(t, from.client.Do(t.Context(), "RESTORE", out, 0, cmds[1].(*redis.Cmd).Val()).Err())
	got := from.take()
	assert.Len(t, got.ids, 1)
	assert.NotZero(t, got.clock)
}

// Effects that are in several entries, and transactions, are read where the slot has moved to.
func TestLargeEffectsInASlotThatMoves(t *testing.T) {
	t.Parallel()
	c, from, to := newCluster(t)
	slot, out := slotOfTag()
	large := strings.Repeat("x", 5<<20)
	require.NoError(t, from.call("sonic_set", "0", tag+"k", large).Err())
	_, err := from.client.TxPipelined(t.Context(), func(pipe redis.Pipeliner) error {
		pipe.Do(t.Context(), "FCALL", "sonic_set", 1, out, "0t1", tag+"a", "1")
		pipe.Do(t.Context(), "FCALL", "sonic_set", 1, out, "0t1", tag+"b", "2")
		pipe.Do(t.Context(), "FCALL", "sonic_tx", 1, out, "0t1")
		return nil
	})
	require.NoError(t, err)
	before := from.take() // a part of the first
	require.NotEmpty(t, before.ids)
	assert.Zero(t, before.clock)
	c.MoveSlot(t, slot, to.address)
	require.Empty(t, to.across("sonic_hold", out))
	require.Equal(t, []any{out}, from.across("sonic_hold", out))
	var entries []wire.Entry
	var joiner wire.Joiner
	prev, n := "0-0", 0
	for {
		got := to.take()
		for _, m := range got.list {
			e, ok, err := joiner.Add(m.ID, m.Values)
			require.NoError(t, err)
			if ok {
				entries = append(entries, e)
			}
			n++
		}
		if len(got.ids) > 0 {
			assert.Equal(t, prev, got.prev)
			prev = got.ids[len(got.ids)-1]
		}
		if got.clock > 0 {
			break
		}
	}
	assert.Equal(t, len(large)/65536+4, n)
	require.Len(t, entries, 4)
	effects, err := wire.Effects(entries[0].Effects)
	require.NoError(t, err)
	assert.Equal(t, large, effects[0].Values[4])
	assert.Equal(t, "1", entries[1].Transaction)
	require.Empty(t, to.across("sonic_shipped_all", out, prev))
	assert.Equal(t, "0", to.held())
}

// Ids go on rising where the clock is behind: behind the last id of the stream, or behind the time
// up to which others were told that they have all.
func TestIDsRiseWhereTheClockIsBehind(t *testing.T) {
	t.Parallel()
	c, from, to := newCluster(t)
	slot, out := slotOfTag()
	ahead := time.Now().Add(time.Hour).UnixMilli()
	from.open("r", fmt.Sprintf("%d-0", ahead))
	from.write("SET {t}k 1")
	from.write("SET {t}k 2")
	require.NoError(t, from.call("sonic_set", "0", tag+"k", strings.Repeat("x", 1<<20)).Err())
	got := from.take()
	assert.Equal(t, []string{fmt.Sprintf("%d-1", ahead), fmt.Sprintf("%d-2", ahead)}, got.ids[:2])
	assert.True(t, strings.HasPrefix(got.ids[2], fmt.Sprint(ahead)))
	c.MoveSlot(t, slot, to.address)
	require.Empty(t, to.across("sonic_hold", out))
	to.write("SET {t}k 3")
	ids := to.ids()
	require.Len(t, ids, len(got.ids)+1)
	assert.True(t, strings.HasPrefix(ids[len(ids)-1], fmt.Sprint(ahead)))
}

// Sequence numbers stay below 2^20, whatever the clock.
func TestSequenceNumbersOfAShard(t *testing.T) {
	t.Parallel()
	_, from, _ := newCluster(t)
	_, out := slotOfTag()
	ahead := time.Now().Add(time.Hour).UnixMilli()
	payload, _ := wire.Payload([]wire.Entry{{ID: wire.ID{Ms: uint64(ahead), Seq: 1<<20 - 1}, Effects: packEffect([]string{"S", "l", "0", tag + "s", "x", ""})}})
	require.NoError(t, from.call("sonic_apply", "b", 1, "0-0", fmt.Sprintf("%d-%d", ahead, 1<<20-1), "", 1, payload).Err())
	from.write("SET {t}k 1")
	require.NoError(t, from.client.Do(t.Context(), "XSETID", out, fmt.Sprintf("%d-%d", ahead+1, 999_998)).Err())
	for range 4 {
		from.write("SET {t}k 1")
	}
	for _, id := range from.ids() {
		parsed, err := wire.ParseID(id)
		require.NoError(t, err)
		assert.Less(t, parsed.Seq, uint64(1<<20), id)
		_, err = parsed.Position()
		require.NoError(t, err)
	}
}

// A script does not run in a slot that moves, if its transaction names a key that does not exist.
func TestAScriptInASlotThatMoves(t *testing.T) {
	t.Parallel()
	c, from, to := newCluster(t)
	slot, out := slotOfTag()
	from.write("SET {t}k 1")
	none := stateKey(script.SlotKeys(slot), "none")
	run := func(p *primary) ([]redis.Cmder, error) {
		return p.client.TxPipelined(context.Background(), func(pipe redis.Pipeliner) error {
			pipe.Do(t.Context(), "FCALL", "sonic_mark", 2, out, none, "0", tag+"k")
			pipe.Eval(t.Context(), "return redis.call('INCR', KEYS[1])", []string{tag + "k"})
			pipe.Do(t.Context(), "FCALL", "sonic_ship", 1, out, "0", tag+"k")
			return nil
		})
	}
	cmds, err := run(from)
	require.NoError(t, err)
	assert.EqualValues(t, 2, cmds[1].(*redis.Cmd).Val())
	c.StartMove(t, slot, to.address)
	for _, p := range []*primary{from, to} {
		_, err = run(p)
		require.Error(t, err)
		assert.Regexp(t, "^(ASK|TRYAGAIN|MOVED|EXECABORT) ", err.Error())
	}
	assert.Equal(t, "2", from.client.Get(t.Context(), tag+"k").Val())
	c.EndMove(t, slot)
	cmds, err = run(to)
	require.NoError(t, err)
	assert.EqualValues(t, 3, cmds[1].(*redis.Cmd).Val())
	assert.NotNil(t, cmds[2].(*redis.Cmd).Val(), "it is shipped")
}

// A primary that was restarted takes no writes and tells nothing before it was opened again. Then it
// has what it had.
func TestAPrimaryIsStartedAgain(t *testing.T) {
	t.Parallel()
	c, from, _ := newCluster(t)
	_, out := slotOfTag()
	from.write("SET {t}k 1")
	got := from.take()
	require.NoError(t, c.Node(t, from.address).Kill())
	require.NoError(t, c.Node(t, from.address).Start(t.Context()))
	require.Eventually(t, func() bool {
		info, _ := from.client.ClusterInfo(context.Background()).Result()
		return strings.Contains(info, "cluster_state:ok")
	}, await.Patience, 10*time.Millisecond)
	assert.Equal(t, []any{"0", "0", "0"}, from.across("sonic_primary")[:3])
	require.ErrorContains(t, from.call("sonic_set", "0", tag+"k", "2").Err(), "SONICNOTREADY")
	require.ErrorContains(t, from.client.Do(t.Context(), "FCALL", "sonic_take", 0).Err(), "SONICNOTREADY")
	from.open("", "0-0")
	assert.Equal(t, []any{"1", "0", "0"}, from.across("sonic_primary")[:3])
	require.ErrorContains(t, from.call("sonic_set", "0", tag+"k", "2").Err(), "SONICNOTREADY")
	require.ErrorContains(t, from.call("sonic_prune", "0", 10, "9999999999999-0").Err(), "SONICNOTREADY")
	require.Empty(t, from.across("sonic_hold", out))
	assert.NotEqual(t, "0", from.held())
	from.open("r", "0-0")
	from.write("SET {t}k 2")
	again := from.take("again")
	require.Len(t, again.ids, 2)
	assert.Equal(t, got.ids[0], again.ids[0])
}

// A primary that one zone has opened is not opened by another one.
func TestAPrimaryBelongsToAZone(t *testing.T) {
	t.Parallel()
	_, from, _ := newCluster(t)
	open := func(zone, other string) error {
		return from.client.Do(t.Context(), "FCALL", "sonic_open_primary", 0, zone, "r", "0-0", "1", other, "lww").Err()
	}
	require.ErrorContains(t, open("c", "b"), "SONICZONE this Redis belongs to zone a")
	require.NoError(t, open("a", "b"))
}

// Other zones take everything up to <watermark>-0 as applied. Redis' clock stands still in a MULTI: the
// write has the time of the watermark.
func TestAWriteInTheMillisecondOfTheWatermark(t *testing.T) {
	t.Parallel()
	_, from, _ := newCluster(t)
	_, out := slotOfTag()
	from.write("SET {t}k 1")
	from.take("again")
	var take, set *redis.Cmd
	_, err := from.client.TxPipelined(t.Context(), func(p redis.Pipeliner) error {
		take = p.Do(t.Context(), "FCALL", "sonic_take", 0, "reader")
		set = p.Do(t.Context(), "FCALL", "sonic_set", 1, out, "0p", tag+"other", "2")
		return nil
	})
	require.NoError(t, err)
	watermark := take.Val().([]any)
	text := set.Val().([]any)[0].(string)
	id, err := wire.ParseID(text)
	require.NoError(t, err)
	at, err := wire.ParseID(watermark[len(watermark)-1].(string) + "-0")
	require.NoError(t, err)
	assert.Positive(t, id.Compare(at), "%v behind %v", id, at)
}

// Answers that were put off are given by sonic_take, and those of another process, too.
func TestAnswersThatWerePutOff(t *testing.T) {
	t.Parallel()
	_, from, _ := newCluster(t)
	_, out := slotOfTag()
	random := make([]byte, 3<<20) // Redis does not make it shorter
	for i, r := 0, rand.New(rand.NewPCG(1, 1)); i < len(random); i++ {
		random[i] = byte(r.Uint32())
	}
	value := string(random)
	var entries []wire.Entry
	for i := range 4 {
		key := fmt.Sprint(tag, "k", i)
		require.NoError(t, from.call("sonic_append", "0", key, value).Err())
		entries = append(entries, wire.Entry{ID: wire.ID{Ms: uint64(time.Now().UnixMilli()), Seq: uint64(i)}, Effects: packEffect([]string{"N", "l", "0", key, "a"})})
	}
	last := entries[3].ID.String()
	ids := from.ids()
	require.Empty(t, from.across("sonic_shipped_all", out, ids[len(ids)-1]))
	payload, _ := wire.Payload(entries)
	require.NoError(t, from.call("sonic_apply", "b", 1, "0-0", last, "", 1, payload).Err())
	owe := strings.TrimSuffix(out, "out") + "answers"
	require.EqualValues(t, 2, from.client.HLen(t.Context(), owe).Val())
	from.across("sonic_hold", out) // as after a restart
	from.take()
	assert.Zero(t, from.client.Exists(t.Context(), owe).Val())

	// What a zone was asked that is gone, another one is asked.
	want := strings.TrimSuffix(out, "out") + "requests"
	require.NoError(t, from.client.HSet(t.Context(), want, "gone 0:{t}k1", "l 1-1", "b 0:{t}k2", "l 1-1").Err())
	from.across("sonic_hold", out)
	from.take()
	all := from.client.HGetAll(t.Context(), want).Val()
	assert.Len(t, all, 2)
	assert.Equal(t, "l 1-1", all["b 0:{t}k2"], "it is not asked again")
	assert.Contains(t, all, "b 0:{t}k1")
}

// Commands that the library tries on a key of its own run in any slot.
func TestCommandsThatAreTried(t *testing.T) {
	t.Parallel()
	_, from, _ := newCluster(t)
	args := []any{"0", tag + "z"}
	for i := range 3000 {
		args = append(args, i, fmt.Sprint("m", i))
	}
	assert.EqualValues(t, 3000, from.call("sonic_zadd", args...).Val())
	big := from.call("sonic_bitfield", "0", tag+"f", "SET", "i64", "0", "9223372036854775807", "GET", "i64", "0")
	require.NoError(t, big.Err())
	assert.Equal(t, "9223372036854775807", big.Val().([]any)[1])
	assert.ErrorContains(t, from.call("sonic_flushall", "0").Err(), "SONICREFUSED")
}

// A primary that became a replica and is one again has missed what happened meanwhile. Whoever opens
// the primary in between replaces the library, which closes it in the replicas.
func TestAPrimaryThatWasAReplicaMeanwhileIsClosed(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	c := stack.PrivateRedisCluster(t, 3, 1)
	slot, _ := slotOfTag()
	nodes := make(map[string]*primary)
	for _, srv := range c.Nodes() {
		nodes[srv.Addr()] = &primary{t: t, address: srv.Addr(), client: srv.Client(t)}
	}
	was := nodes[c.Owner(t, slot)]
	require.NoError(t, script.Load(ctx, was.client))
	was.open("r", "0-0")
	was.write("SET {t}k 1")
	replicaOf := func(p *primary) *primary {
		for i, srv := range c.Nodes() {
			if srv.Addr() == p.address {
				return nodes[c.Nodes()[(i+3)%6].Addr()]
			}
		}
		return nil
	}
	takesOver := func(p *primary) {
		require.Eventually(t, func() bool { // only a replica that is in sync can
			info, err := p.client.Info(context.Background(), "replication").Result()
			return err == nil && strings.Contains(info, "master_link_status:up") && strings.Contains(info, "master_sync_in_progress:0")
		}, await.Patience, 10*time.Millisecond)
		require.NoError(t, p.client.Do(ctx, "CLUSTER", "FAILOVER").Err())
		require.Eventually(t, func() bool {
			for _, node := range nodes {
				slots, err := node.client.ClusterSlots(context.Background()).Result() //nolint:staticcheck // as in package stack
				if err != nil || !slices.ContainsFunc(slots, func(s redis.ClusterSlot) bool {
					return s.Start <= slot && slot <= s.End && s.Nodes[0].Addr == p.address && len(s.Nodes) == 2
				}) {
					return false
				}
			}
			return true
		}, await.Patience, 10*time.Millisecond)
	}
	other := replicaOf(was)
	takesOver(other)
	assert.Equal(t, "0", other.across("sonic_primary")[0])
	require.NoError(t, script.Replace(ctx, other.client))
	other.open("r", "0-0")
	other.write("SET {t}k 2")
	takesOver(was)
	assert.Equal(t, []any{"0", "0"}, was.across("sonic_primary")[:2])
	require.ErrorContains(t, was.call("sonic_set", "0", tag+"k", "3").Err(), "SONICNOTREADY")
}

// A primary that gets its own effects again asks nothing before it has all of them: a question would
// raise the stream's last id, which tells what is lost. It asks afterwards.
func TestAPrimaryThatIsNotReadyAsksNothing(t *testing.T) {
	t.Parallel()
	_, from, _ := newCluster(t)
	_, out := slotOfTag()
	from.open("", "0-0")
	for i, effect := range [][]string{{"L", "l", "0", tag + "l", "1-1@b", "", "2", "RPUSH", "x"}, {"S", "l", "0", tag + "k", "v", ""}} {
		id := wire.ID{Ms: uint64(time.Now().Add(-time.Hour).UnixMilli() + int64(i))}
		payload, _ := wire.Payload([]wire.Entry{{ID: id, Effects: packEffect(effect)}})
		reply, err := from.call("sonic_apply", "a", "r1", "0-0", id.String(), "", i, payload).StringSlice()
		require.NoError(t, err)
		assert.Equal(t, "applied", reply[0])
	}
	assert.Equal(t, "v", from.client.Get(t.Context(), tag+"k").Val())
	want := strings.TrimSuffix(out, "out") + "requests"
	assert.Equal(t, map[string]string{"b 0:{t}l": "l* 0-0"}, from.client.HGetAll(t.Context(), want).Val())
	assert.Empty(t, from.take().ids)
	from.open("r", "0-0")
	got := from.take()
	require.Len(t, got.ids, 1)
	assert.Equal(t, map[string]string{"b 0:{t}l": "l* " + got.ids[0]}, from.client.HGetAll(t.Context(), want).Val())
	assert.Empty(t, from.take().ids)
}
