package script_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/script"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
	"github.com/aviaryhq/aviary/test/stack"
)

// The keys of a slot of a Redis Cluster are after a flush what they are after it in one Redis.
func TestFlushOfASlot(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	_, p, _ := newCluster(t)
	slot, out := slotOfTag()
	require.NoError(t, p.client.Do(ctx, "FCALL", "sonic_open_primary", 0, "a", "r", "0-0", 3, "b", "c", "d", "lww", "n:", "none").Err())
	one := stack.PrivateRedis(t).Client(t)
	open(ctx, t, one, []string{"b", "c", "d"}, "lww", "n:", "none")

	same := func(function string, args ...any) (reply any) {
		t.Helper()
		for client, stream := range map[*redis.Client]string{p.client: out, one: script.KeysOf(0).Outbox} {
			got, err := client.Do(ctx, append([]any{"FCALL", function, 1, stream}, args...)...).Result()
			require.NoError(t, err)
			if list, isList := got.([]any); isList {
				got = list[0]
			}
			reply = got
		}
		return reply
	}
	for _, write := range []string{"SET {t}s old", "HSET {t}h f old", "RPUSH {t}l old", "SADD {t}m old", "PEXPIREAT {t}h 32503680000000"} {
		function, args := functionOf(write)
		same(function, args...)
	}
	for n := range 2500 {
		key := fmt.Sprintf("{t}%d", n)
		require.NoError(t, p.client.Set(ctx, key, "v", 0).Err())
		require.NoError(t, one.Set(ctx, key, "v", 0).Err())
	}
	outside := "" // a key of another slot of the primary
	for n := 0; outside == ""; n++ {
		if key := fmt.Sprint(n); p.client.Set(ctx, key, "v", 0).Err() == nil {
			outside = key
		}
	}
	now := one.Time(ctx).Val().UnixMilli() + 1000
	apply := func(origin string, effects ...[]string) any {
		t.Helper()
		var entries []wire.Entry
		for _, e := range effects {
			var after uint64
			_, err := fmt.Sscan(e[0], &after)
			require.NoError(t, err)
			entries = append(entries, wire.Entry{ID: wire.ID{Ms: uint64(now) + after}, Effects: packEffect(e[1:])})
		}
		payload, _ := wire.Payload(entries)
		return same("sonic_apply", origin, 1, "0-0", entries[len(entries)-1].ID.String(), "", "m", payload)
	}
	newer := [][]string{{"105", "H", "l", "0", "{t}h", "", "g", "new"}, {"106", "S", "l", "0", "{t}newer", "v", ""}}
	for n := range 1200 { // they stay, and are listed again and again
		newer = append(newer, []string{fmt.Sprint(107 + n), "S", "l", "0", fmt.Sprintf("{t}newer%d", n), "v", ""})
	}
	assert.Equal(t, "applied", apply("c", newer...))
	flush := [][]string{
		{"99", "S", "l", "0", "{t}before", "v", ""}, {"100", "F", "l", "0", ""}, {"101", "S", "l", "0", "{t}behind", "v", ""},
		{"102", "S", "n", "0", "n:{t}behind", "v", ""},
	}
	assert.Equal(t, "applied", apply("b", flush...))
	assert.Equal(t, "duplicate", apply("b", flush...))
	assert.Equal(t, "applied", apply("d", []string{"90", "S", "l", "0", "{t}late", "v", ""}, []string{"91", "H", "l", "0", "{t}h", "", "late", "v"}, []string{"92", "F", "l", "0", ""}))
	function, args := functionOf("RPUSH {t}l new")
	same(function, args...)

	contents := func(client *redis.Client, keys []string) map[string]string {
		all := map[string]string{}
		for _, key := range keys {
			if !isStateKey(key) {
				all[key] = client.Dump(context.Background(), key).Val() + fmt.Sprint(client.PExpireTime(context.Background(), key).Val())
			}
		}
		return all
	}
	want := contents(one, one.Keys(ctx, "*").Val())
	assert.Len(t, want, 1205)
	assert.Contains(t, want, "{t}behind")
	assert.Equal(t, want, contents(p.client, p.client.ClusterGetKeysInSlot(ctx, slot, 10000).Val()))
	assert.True(t, p.exists(outside))
	assert.Equal(t, []string{"g"}, p.client.HKeys(ctx, "{t}h").Val())

	// The primary forgets what it knows of the slot: it may be elsewhere meanwhile.
	require.NoError(t, p.client.HDel(ctx, script.SlotKeys(slot).Versions, "f0").Err())
	payload, _ := wire.Payload([]wire.Entry{{ID: wire.ID{Ms: uint64(now) + 93}, Effects: packEffect([]string{"S", "l", "0", "{t}late", "v", ""})}})
	require.NoError(t, p.call("sonic_apply", "d", 1, "0-0", wire.ID{Ms: uint64(now) + 93}.String(), "", "m", payload).Err())
	assert.True(t, p.exists("{t}late"))
}

// A flush that Redis does not allow is not passed over.
func TestFlushOfASlotIsRefused(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	_, p, _ := newCluster(t)
	require.NoError(t, p.client.Do(ctx, "ACL", "SETUSER", "default", "-cluster").Err())
	p.write("SET {t}k v")
	payload, _ := wire.Payload([]wire.Entry{{ID: wire.ID{Ms: 1 << 42}, Effects: packEffect([]string{"F", "l", "0", ""})}})
	apply := func() *redis.Cmd { return p.call("sonic_apply", "b", 1, "0-0", "4398046511104-0", "", "m", payload) }
	require.ErrorContains(t, apply().Err(), "NOPERM a flush needs")
	require.ErrorContains(t, apply().Err(), "NOPERM a flush needs")
	assert.True(t, p.exists("{t}k"))
	require.NoError(t, p.client.Do(ctx, "ACL", "SETUSER", "default", "+cluster|keyslot", "+cluster|getkeysinslot").Err())
	require.NoError(t, apply().Err())
	assert.False(t, p.exists("{t}k"))
}
