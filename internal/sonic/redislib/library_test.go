package redislib_test

import (
	"io"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/redislib"
	"github.com/aviaryhq/aviary/internal/sonic/script"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
	"github.com/aviaryhq/aviary/test/stack"
)

// of is the library of zone a, and what a Redis holds for it.
func of(t *testing.T, r *stack.RedisServer) (*redislib.Library, redislib.State) {
	t.Helper()
	c := r.Client(t)
	require.NoError(t, script.Load(t.Context(), c))
	l := redislib.New(c, redislib.Config{Zone: "a", Others: []string{"b"}, Default: "lww"})
	state, err := l.ReadState(t.Context())
	require.NoError(t, err)
	return l, state
}

// A primary that became a replica without a restart keeps its library's memory. When it is promoted
// again it must not take writes before a Sonic has compared it with the topic: others have been
// taken meanwhile.
func TestAFormerPrimaryIsNotOpen(t *testing.T) {
	first, second := stack.PrivateRedis(t), stack.PrivateRedis(t)
	ctx := t.Context()
	l1, state := of(t, first)
	state, err := l1.Open(ctx, state, 0, wire.ID{})
	require.NoError(t, err)
	require.True(t, state.Ready)
	second.Follow(t, first)

	syncs := first.Client(t).Info(ctx, "stats").Val()
	second.Promote(t)
	first.Follow(t, second)
	require.Contains(t, second.Client(t).Info(ctx, "stats").Val(), "sync_partial_ok:1", "the former primary goes on without a full synchronisation: %s", syncs)
	l2, state := of(t, second)
	require.False(t, state.Opened)
	state, err = l2.Open(ctx, state, 1, state.Last)
	require.NoError(t, err)
	require.True(t, state.Ready)
	first.Follow(t, second) // until it has all

	first.Promote(t)
	state, err = l1.ReadState(ctx)
	require.NoError(t, err)
	assert.False(t, state.Opened)
	assert.True(t, redislib.NotReady(l1.SendHeartbeat(ctx)))
}

// A Redis that was exchanged between looking and opening is not opened: what it has lost was not
// compared with the topic.
func TestOpenRefusesAnOlderRedis(t *testing.T) {
	l, state := of(t, stack.PrivateRedis(t))
	state.Last = wire.ID{Ms: 5}
	_, err := l.Open(t.Context(), state, 0, wire.ID{Ms: 9})
	require.True(t, redislib.Older(err), "%v", err)
	assert.False(t, redislib.Fatal(err), "it is to be looked at again")
	state, err = l.ReadState(t.Context())
	require.NoError(t, err)
	assert.False(t, state.Opened)
	_, err = l.Open(t.Context(), state, 0, wire.ID{Ms: 9})
	assert.NoError(t, err)
}

// Only what is known to be refused for good ends a process: an error that nobody has thought of may
// pass.
func TestOnlyKnownRefusalsAreForGood(t *testing.T) {
	t.Parallel()
	db := stack.PrivateRedis(t).Client(t)
	l := redislib.New(db, redislib.Config{Zone: "a", Default: "lww"})
	_, err := l.Open(t.Context(), redislib.State{}, 1, wire.ID{})
	require.NoError(t, err)
	_, err = redislib.New(db, redislib.Config{Zone: "b", Default: "lww"}).Open(t.Context(), redislib.State{Opened: true}, 1, wire.ID{})
	assert.True(t, redislib.Fatal(err), "another zone: %v", err)
	require.NoError(t, db.Do(t.Context(), "CONFIG", "SET", "maxmemory", "1").Err())
	assert.False(t, redislib.Fatal(db.Set(t.Context(), "k", "v", 0).Err()), "it has no memory")
	assert.False(t, redislib.Fatal(db.Do(t.Context(), "EVAL", "return redis.error_reply('NEWCODE of a later Redis')", 0).Err()))
	assert.False(t, redislib.Fatal(io.EOF))
}

// A message that cannot be read is rejected. An error of Redis is not the message's fault, although
// it comes from the same function: the message is applied once Redis is repaired.
func TestOnlyWhatIsTheMessagesFaultIsRejected(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	r := stack.PrivateRedis(t)
	db := r.Client(t)
	l, state := of(t, r)
	_, err := l.Open(ctx, state, 1, wire.ID{})
	require.NoError(t, err)
	apply := func(payload string) (redislib.Result, error) {
		return l.Apply(ctx, &wire.Header{Origin: "b", Epoch: 1, Last: wire.ID{Ms: 1}}, []byte(payload), "m")
	}
	const empty = "\x90"
	for name, payload := range map[string]string{
		"no MessagePack":           "\x91",
		"an effect of a later one": "\x92\xa31-0\xa3\x91\xa1?",
		"an entry that is no text": "\x92\xa31-0\x90", // a Lua error
	} {
		_, err := apply(payload)
		require.Error(t, err, name)
		assert.True(t, redislib.Rejected(err), "%s: %v", name, err)
	}
	cursors := script.KeysOf(0).Cursors
	require.NoError(t, db.Set(ctx, cursors, "text", 0).Err())
	_, err = apply(empty)
	require.ErrorContains(t, err, "WRONGTYPE")
	assert.False(t, redislib.Rejected(err), "%v", err)
	require.NoError(t, db.Del(ctx, cursors).Err())
	result, err := apply(empty)
	require.NoError(t, err)
	assert.Equal(t, redislib.Applied, result.Status)
}
