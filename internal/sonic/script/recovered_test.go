package script_test

import (
	"context"
	"slices"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/script"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
	"github.com/aviaryhq/aviary/test/stack"
)

// lone is a Redis that is used as a primary of a Redis Cluster.
func lone(t *testing.T) *primary {
	t.Helper()
	client := stack.PrivateRedis(t).Client(t)
	require.NoError(t, script.Load(t.Context(), client))
	return &primary{t: t, client: client}
}

// payloadOf is that of one effect: a key is set.
func payloadOf(id wire.ID, key, value string) []byte {
	packed := packEffect([]string{"S", "l", "0", key, value, ""})
	payload, _ := wire.Payload([]wire.Entry{{ID: id, Effects: packed}})
	return payload
}

// send applies the effect of a zone that sets a key of the slot. It returns the status, or the error.
func (p *primary) send(origin, epoch string, id wire.ID, key string) string {
	p.t.Helper()
	reply, err := p.call("sonic_apply", origin, epoch, "0-0", id.String(), "", "", payloadOf(id, key, id.String())).Slice()
	if err != nil {
		return err.Error()
	}
	return reply[0].(string)
}

func (p *primary) exists(key string) bool {
	p.t.Helper()
	n, err := p.client.Exists(context.Background(), key).Result()
	require.NoError(p.t, err)
	return n == 1
}

const notReady = "SONICNOTREADY no Sonic has opened this Redis"

// recovered calls sonic_recovered.
func (p *primary) recovered(args ...any) (any, error) {
	return p.client.Do(context.Background(), append([]any{"FCALL", "sonic_recovered", 0}, args...)...).Result()
}

// A primary that may have lost effects takes nothing but these until it has them: first its own, then
// those of others.
func TestRecoveryOfAPrimary(t *testing.T) {
	t.Parallel()
	p := lone(t)
	id := func(ms uint64) wire.ID { return wire.ID{Ms: ms} }
	assert.Equal(t, notReady, p.send("b", "r1", id(5), "{t}b"), "it is not opened")
	p.open("", "0-0")
	state := p.across("sonic_primary")
	require.Len(t, state, 7)
	opening := state[4]
	assert.ElementsMatch(t, []any{"a", "b"}, state[5:])

	assert.Equal(t, notReady, p.send("b", "1", id(5), "{t}b"))
	assert.Equal(t, notReady, p.send("b", "r1", id(5), "{t}b"), "own effects come first")
	assert.Equal(t, notReady, p.send("a", "1", id(3), "{t}a"))
	assert.Equal(t, "applied", p.send("a", "r1", id(3), "{t}a"))
	assert.Equal(t, "duplicate", p.send("a", "r1", id(3), "{t}a"))
	function, args := functionOf("SET {t}k 1")
	require.ErrorContains(t, p.call(function, args...).Err(), "SONICNOTREADY")

	_, err := p.recovered("a", "before")
	require.ErrorContains(t, err, "SONICNOTREADY", "of another opening")
	reply, err := p.recovered("a", opening)
	require.NoError(t, err)
	assert.EqualValues(t, 0, reply)
	assert.Equal(t, notReady, p.send("b", "1", id(5), "{t}b"))
	assert.Equal(t, "applied", p.send("b", "r1", id(5), "{t}b"))
	reply, err = p.recovered("b", opening)
	require.NoError(t, err)
	assert.EqualValues(t, 1, reply)
	assert.Equal(t, "duplicate", p.send("a", "r1", id(9), "{t}own"), "its own effects are all here")
	assert.Equal(t, "applied", p.send("b", "1", id(6), "{t}later"))
	assert.Len(t, p.across("sonic_primary"), 4)
	p.write("SET {t}k 1")
	for _, key := range []string{"{t}a", "{t}b", "{t}later", "{t}k"} {
		assert.True(t, p.exists(key), key)
	}

	// It is opened again during the recovery: what was applied before may be lost.
	p.open("", "0-0")
	first := p.across("sonic_primary")[4]
	p.open("", "0-0")
	_, err = p.recovered("a", first)
	require.ErrorContains(t, err, "SONICNOTREADY")
	p.open("r", "0-0")
	p.write("SET {t}k 2")
}

// What a zone with a cluster has told becomes a cursor of this Redis, and cursors of that zone.
func TestReached(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	db := stack.PrivateRedis(t).Client(t)
	open(ctx, t, db, []string{"b", "c"}, "lww")
	keys := script.KeysOf(0)
	epoch := db.HGet(ctx, keys.Meta, "epoch").Val()
	reached := func(args ...any) *redis.Cmd {
		return db.Do(ctx, append([]any{"FCALL", "sonic_reached", 1, keys.Outbox}, args...)...)
	}
	require.NoError(t, reached("b", epoch, "5-0", "m5", "a", "3-0", "c", "4-0").Err())
	require.NoError(t, reached("b", epoch, "4-0", "m4").Err(), "an older message")
	require.ErrorContains(t, reached("b", "7", "6-0", "m").Err(), "SONICOLDER")
	require.ErrorContains(t, reached("d", epoch, "6-0", "m").Err(), "SONICNOTREADY")
	assert.Equal(t, map[string]string{"b": "5-0", "m b": "m5"}, db.HGetAll(ctx, keys.Cursors).Val())
	told := db.HGetAll(ctx, "{sonic:0}reported").Val()
	assert.Equal(t, map[string]string{"b a": "3-0", "b c": "4-0"}, told)

	// The cursors of its slots are no cursors of zones.
	reply, err := db.Do(ctx, "FCALL", "sonic_apply", 1, keys.Outbox, "b/7", 1, "0-0", "5-1", "", "m", payloadOf(wire.ID{Ms: 5, Seq: 1}, "k", "v")).Slice()
	require.NoError(t, err)
	assert.Equal(t, "applied", reply[0])
	assert.Equal(t, "v", db.Get(ctx, "k").Val())
	look, err := db.Do(ctx, "FCALL", "sonic_state", 1, keys.Outbox).Slice()
	require.NoError(t, err)
	cursors := look[slices.Index(look, any("cursors"))+1].([]any)
	assert.Equal(t, []any{"b", "5-0", "m5", "0"}, cursors)
	gap, err := db.Do(ctx, "FCALL", "sonic_apply", 1, keys.Outbox, "b/7", 1, "5-2", "5-3", "", "m", payloadOf(wire.ID{Ms: 5, Seq: 3}, "k", "v")).Slice()
	require.NoError(t, err)
	assert.Equal(t, []any{"gap", "5-1", "m"}, gap[:3])

	// A Redis that has told other zones of a cursor, and came back without it, is ready when it has
	// reached it again.
	require.NoError(t, db.HSet(ctx, "{sonic:0}reported", "a b", "9-0").Err())
	open(ctx, t, db, []string{"b", "c"}, "lww")
	require.ErrorContains(t, db.Do(ctx, "FCALL", "sonic_set", 1, keys.Outbox, "0", "k", "1").Err(), "SONICNOTREADY")
	n, err := reached("b", epoch, "9-0", "m9").Int()
	require.NoError(t, err)
	assert.Equal(t, 1, n)
	require.NoError(t, db.Do(ctx, "FCALL", "sonic_set", 1, keys.Outbox, "0", "k", "1").Err())
}
