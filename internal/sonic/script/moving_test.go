package script_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/cluster"
	"github.com/aviaryhq/aviary/internal/sonic/script"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
	"github.com/aviaryhq/aviary/test/stack"
)

// A primary is one of a Redis Cluster, with the library.
type primary struct {
	t       testing.TB
	address string
	client  *redis.Client
}

// tag is the hash tag of keys in the slot that moves.
const tag = "{t}"

// slotOfTag is the slot that moves, and its stream.
func slotOfTag() (slot int, out string) {
	slot = cluster.Slot([]byte(tag))
	return slot, script.SlotKeys(slot).Outbox
}

// newCluster starts a cluster of two primaries that are opened. The first one has the slot of tag.
func newCluster(t *testing.T) (c *stack.RedisCluster, from, to *primary) {
	t.Helper()
	c = stack.PrivateRedisCluster(t, 2, 0, "appendonly yes", "appendfsync no", "cluster-require-full-coverage no")
	slot, _ := slotOfTag()
	all := make([]*primary, 2)
	for i, srv := range c.Nodes() {
		p := &primary{t: t, address: srv.Addr()}
		p.client = redis.NewClient(&redis.Options{Addr: srv.Addr(), MaxRetries: -1, PoolSize: 1})
		t.Cleanup(func() { _ = p.client.Close() })
		require.NoError(t, script.Load(t.Context(), p.client))
		p.open("r", "0-0")
		p.take("again")
		all[i] = p
	}
	if c.Owner(t, slot) != all[0].address {
		slices.Reverse(all)
	}
	return c, all[0], all[1]
}

func (p *primary) open(flags, floor string) {
	p.t.Helper()
	require.NoError(p.t, p.client.Do(context.Background(), "FCALL", "sonic_open_primary", 0, "a", flags, floor, 1, "b", "lww", "c:", "counter").Err())
}

func (p *primary) across(function string, args ...any) []any {
	p.t.Helper()
	reply, err := p.client.Do(context.Background(), append([]any{"FCALL", function, 0}, args...)...).Slice()
	require.NoError(p.t, err, function)
	return reply
}

func (p *primary) call(function string, args ...any) *redis.Cmd {
	_, out := slotOfTag()
	return p.client.Do(context.Background(), append([]any{"FCALL", function, 1, out}, args...)...)
}

// write runs a write to the slot. Its words are those of the command.
func (p *primary) write(command string) {
	p.t.Helper()
	function, args := functionOf(command)
	require.NoError(p.t, p.call(function, args...).Err(), command)
}

// functionOf returns the call of a command in words, but for its stream.
func functionOf(command string) (function string, args []any) {
	fields := strings.Fields(command)
	args = []any{"0"}
	for _, word := range fields[1:] {
		args = append(args, word)
	}
	return "sonic_" + strings.ToLower(fields[0]), args
}

// keys returns what the primary holds of the slot.
func (p *primary) keys() map[string]string {
	p.t.Helper()
	slot, _ := slotOfTag()
	all := make(map[string]string)
	for _, key := range p.client.ClusterGetKeysInSlot(context.Background(), slot, 1000).Val() {
		pipe := p.client.Pipeline() // it has what it counts, whoever has the slot
		pipe.Do(context.Background(), "ASKING")
		dump := pipe.Dump(context.Background(), key)
		pipe.Do(context.Background(), "ASKING")
		ttl := pipe.PExpireTime(context.Background(), key)
		_, err := pipe.Exec(context.Background())
		require.NoError(p.t, err)
		all[key] = dump.Val() + fmt.Sprint(ttl.Val())
	}
	return all
}

// migrate moves keys to another primary.
func (p *primary) migrate(to *primary, keys ...string) {
	p.t.Helper()
	host, port, err := net.SplitHostPort(to.address)
	require.NoError(p.t, err)
	args := []any{"MIGRATE", host, port, "", 0, 10000, "KEYS"}
	for _, key := range keys {
		args = append(args, key)
	}
	require.Equal(p.t, "OK", p.client.Do(context.Background(), args...).Val(), keys)
}

// entries returns the ids of the slot's entries.
func (p *primary) ids() (ids []string) {
	p.t.Helper()
	_, out := slotOfTag()
	list, err := p.client.XRange(context.Background(), out, "-", "+").Result()
	require.NoError(p.t, err)
	for _, e := range list {
		ids = append(ids, e.ID)
	}
	return ids
}

// fill makes keys of all types in the slot.
func (p *primary) fill() {
	p.t.Helper()
	for _, command := range []string{
		"SET {t}s 1", "APPEND {t}s 2", "HSET {t}h f 1", "SADD {t}a 1 2", "ZADD {t}z 1 m 2 n", "RPUSH {t}l a b c", "XADD {t}x 1-1 f v", "INCRBY c:{t} 1",
		"GEOADD {t}g 13 38 p", "PEXPIREAT {t}h 9999999999999",
	} {
		p.write(command)
	}
}

// calls are those of the functions that change something in one slot.
func calls(t *testing.T) [][]any {
	t.Helper()
	_, out := slotOfTag()
	var list [][]any
	for _, command := range []string{
		"SET {t}s 2", "SET {t}new 2", "SETEX {t}s 10 v", "GETSET {t}s 3", "GETDEL {t}s", "GETEX {t}s PX 10", "MSET {t}s 1 {t}new 1", "MSETNX {t}new 1", "APPEND {t}s 1", "SETRANGE {t}s 1 x",
		"INCR {t}new", "INCRBY c:{t} 1", "SETBIT {t}s 1 1", "BITFIELD {t}s SET u8 0 1", "BITOP NOT {t}new {t}s", "PFADD {t}new 1", "DEL {t}s {t}h", "UNLINK {t}s",
		"EXPIRE {t}s 10", "PERSIST {t}h", "RENAME {t}s {t}new", "COPY {t}s {t}new", "HSET {t}h f 2", "HDEL {t}h f", "HINCRBY {t}h f 1", "SADD {t}a 3", "SREM {t}a 1",
		"SPOP {t}a", "SMOVE {t}a {t}new 1", "SUNIONSTORE {t}new {t}a", "ZADD {t}z 3 o", "ZREM {t}z m", "ZPOPMIN {t}z", "ZINCRBY {t}z 1 m", "ZUNIONSTORE {t}new 1 {t}z",
		"LPUSH {t}l x", "LPOP {t}l", "LREM {t}l 1 a", "LMOVE {t}l {t}new LEFT LEFT", "LMPOP 1 {t}l LEFT", "BLPOP {t}l 0", "BLMOVE {t}l {t}new LEFT LEFT 0", "BRPOPLPUSH {t}l {t}new 0", "BZPOPMIN {t}z 0",
		"XADD {t}x * f v", "XDEL {t}x 1-1", "XTRIM {t}x MAXLEN 0", "GEOADD {t}g 13 38 q", "SORT {t}a STORE {t}new", "PUBLISH {t}c m", "MARK {t}s", "SHIP {t}s", "TX", "OVERWRITE {t}s",
	} {
		function, args := functionOf(command)
		list = append(list, append([]any{function, 1, out}, args...))
	}
	payload, _ := wire.Payload([]wire.Entry{{ID: wire.ID{Ms: 9999999999999}, Effects: packEffect([]string{"S", "l", "0", tag + "s", "x", ""})}})
	return append(
		list,
		[]any{"sonic_apply", 1, out, "b", 1, "0-0", "9999999999999-0", "", 1, payload},
		[]any{"sonic_prune", 1, out, "0", 100, "9999999999999-0"},
		[]any{"sonic_tx", 1, out, "0t1"},
	)
}

// A primary applies nothing of a zone that it was not opened with.
func TestAPrimaryDoesNotApplyWhatAnUnknownZoneWrote(t *testing.T) {
	t.Parallel()
	_, from, _ := newCluster(t)
	payload, _ := wire.Payload([]wire.Entry{{ID: wire.ID{Ms: 1}, Effects: packEffect([]string{"S", "l", "0", tag + "s", "x", ""})}})
	require.ErrorContains(t, from.call("sonic_apply", "unknown", 1, "0-0", "1-0", "", 1, payload).Err(), "SONICNOTREADY zone unknown")
	require.NoError(t, from.call("sonic_apply", "b", 1, "0-0", "1-0", "", 1, payload).Err())
}

// While a slot moves nothing in it changes, at either primary, wherever its keys are.
func TestNothingChangesInASlotThatMoves(t *testing.T) {
	t.Parallel()
	c, from, to := newCluster(t)
	slot, out := slotOfTag()
	prefix := strings.TrimSuffix(out, "out")
	from.fill()
	list := calls(t)
	refused := func(where string) {
		t.Helper()
		fromHad, toHad := from.keys(), to.keys()
		for _, p := range []*primary{from, to} {
			for _, call := range list {
				err := p.client.Do(t.Context(), append([]any{"FCALL"}, call...)...).Err()
				require.Error(t, err, "%s %v", where, call)
				require.Regexp(t, "^(TRYAGAIN|ASK|MOVED) ", err.Error(), "%s %v", where, call)
				if p == to {
					pipe := p.client.Pipeline()
					pipe.Do(t.Context(), "ASKING")
					pipe.Do(t.Context(), append([]any{"FCALL"}, call...)...)
					_, err := pipe.Exec(t.Context())
					require.Error(t, err, "%s %v", where, call)
					require.Regexp(t, "^TRYAGAIN ", err.Error(), "%s %v", where, call)
				}
			}
			many, err := p.client.Do(t.Context(), "FCALL", "sonic_many", 1, out, "0", "SET 2", out, tag+"s", "9", "SET 2", out, tag+"new", "9").Slice()
			if err != nil {
				require.Regexp(t, "^(TRYAGAIN|ASK|MOVED) ", err.Error(), where)
			}
			for _, reply := range many {
				require.ErrorContains(t, reply.(error), "TRYAGAIN", where)
			}
		}
		require.Equal(t, fromHad, from.keys(), where)
		require.Equal(t, toHad, to.keys(), where)
	}
	last := slices.Max(from.ids())
	c.StartMove(t, slot, to.address)
	refused("all keys are at the source")
	from.migrate(to, tag+"s", tag+"h", "c:"+tag)
	refused("data moved")
	from.migrate(to, prefix+"ver")
	refused("versions moved")
	from.migrate(to, out)
	refused("the stream moved")
	for c.MoveKeys(t, slot, 100) > 0 {
	}
	refused("all moved")
	c.EndMove(t, slot)
	require.Empty(t, to.across("sonic_hold", out))
	require.Equal(t, []any{out}, from.across("sonic_hold", out))
	to.write("SET {t}s 3")
	require.Greater(t, slices.Max(to.ids()), last)
	require.Contains(t, to.client.HGet(t.Context(), prefix+"ver", "k0:{t}s").Val(), to.ids()[len(to.ids())-1])
	for _, call := range list[:len(list)-3] {
		err := to.client.Do(t.Context(), append([]any{"FCALL"}, call...)...).Err()
		if err != nil && err != redis.Nil { //nolint:errorlint // go-redis' own
			require.NotRegexp(t, "^(TRYAGAIN|ASK|MOVED|SONIC)|[Ss]cript|function", err.Error(), call)
		}
	}
}
