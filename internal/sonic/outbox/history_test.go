package outbox

import (
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/redislib"
	"github.com/aviaryhq/aviary/internal/sonic/script"
	"github.com/aviaryhq/aviary/test/stack"
)

// A twoRedis is a zone with a primary and its successor, which a shipper serves in turn.
type twoRedis struct {
	t      *testing.T
	s      *Shipper
	former *redis.Client
	next   *redis.Client
	owner  *owner
}

// serve makes the shipper use that Redis, as a new owner of the topic does.
func (w *twoRedis) serve(db *redis.Client) error {
	w.t.Helper()
	if w.owner != nil {
		w.s.release(w.owner.topicWriter)
	}
	w.s.redis, w.s.library = db, redislib.New(db, redislib.Config{Zone: "a", Others: []string{"b"}, Default: "lww"})
	w.owner = prepared(w.t, w.s)
	err := w.owner.prepare(w.t.Context())
	return err
}

func (w *twoRedis) write(db *redis.Client, key string) {
	w.t.Helper()
	require.NoError(w.t, db.Do(w.t.Context(), "FCALL", "sonic_set", 1, w.s.library.Outbox(), "0", key, key).Err())
}

// ship stores what the outbox holds.
func (w *twoRedis) ship() {
	w.t.Helper()
	ctx := w.t.Context()
	entries, _, err := w.owner.readRange(ctx, w.owner.packer.Tail.Last, "+", nil)
	require.NoError(w.t, err)
	require.NoError(w.t, w.owner.storeOne(entries))
}

// shipped tells Redis what is stored.
func (w *twoRedis) shipped() {
	w.t.Helper()
	require.NoError(w.t, w.s.library.Shipped(w.t.Context(), w.owner.packer.Tail.Last))
}

// newTwoRedis returns a zone whose former Redis has shipped one write, and whose next Redis has just
// been promoted.
func newTwoRedis(t *testing.T) *twoRedis {
	t.Helper()
	s, former, _ := shipper(t)
	server := stack.PrivateRedis(t)
	w := &twoRedis{t: t, s: s, former: former, next: server.Client(t)}
	require.NoError(t, script.Load(t.Context(), former))
	require.NoError(t, w.serve(former))
	w.write(former, "both")
	w.ship()
	w.shipped()
	for _, key := range former.Keys(t.Context(), "*").Val() { // what a replica has, but for the functions
		require.NoError(t, w.next.RestoreReplace(t.Context(), key, 0, former.Dump(t.Context(), key).Val()).Err())
	}
	return w
}

// A former primary returns, open for writes, after its successor has taken some.
func TestAFormerPrimaryReturns(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name          string
		before, after bool // the former primary has written, and not shipped, before or after its successor
		differs       bool
		holds         []string // once it is accepted
	}{
		{"with what it had shipped only", false, false, false, []string{"both", "next"}},
		{"with writes from before", true, false, true, []string{"both", "before", "next"}},
		{"with writes from after", false, true, true, []string{"both", "after"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			w := newTwoRedis(t)
			if row.before {
				w.write(w.former, "before")
			}
			require.NoError(t, w.serve(w.next))
			w.write(w.next, "next")
			w.ship()
			w.shipped()
			if row.after {
				w.write(w.former, "after")
			}
			for range 2 { // it stays so
				err := w.serve(w.former)
				if !row.differs {
					require.NoError(t, err)
					break
				}
				require.ErrorIs(t, err, ErrHistory)
				assert.ErrorContains(t, err, "run sonic -repair")
				assert.False(t, final(err))
				require.ErrorContains(t, w.former.Do(ctx, "FCALL", "sonic_set", 1, w.s.library.Outbox(), "0", "k", "v").Err(), "SONICNOTREADY")
			}
			if row.differs {
				state, err := w.s.library.ReadState(ctx)
				require.NoError(t, err)
				assert.Equal(t, redislib.HistoryRejected, state.History)
				require.NoError(t, w.former.Do(ctx, "FCALL", "sonic_accept", 1, w.s.library.Outbox()).Err())
				require.NoError(t, w.serve(w.former))
			}
			keys := w.former.Keys(ctx, "[a-z]*").Val()
			assert.ElementsMatch(t, row.holds, keys)
			state, err := w.s.library.ReadState(ctx)
			require.NoError(t, err)
			assert.True(t, state.Ready)
			assert.Empty(t, state.History)
			w.write(w.former, "goes on")
			w.ship()
			require.NoError(t, w.serve(w.former), "once it is equal it stays so")
		})
	}
}

// Redis did not hear what was stored, or was restored from a copy: it is older or ahead, and its
// history is the same.
func TestTheSameHistory(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	w := newTwoRedis(t)
	w.write(w.former, "not shipped")
	copied := w.former.Dump(ctx, w.s.library.Outbox()).Val()
	w.ship()
	w.write(w.former, "ahead")
	require.NoError(t, w.serve(w.former), "the outbox is ahead, and holds what the topic has, too")
	assert.True(t, w.ready())
	w.ship()

	// The copy holds an effect that was shipped after it was made.
	require.NoError(t, w.former.Del(ctx, "ahead").Err())
	require.NoError(t, w.former.HDel(ctx, script.KeysOf(0).Versions, "k0:ahead").Err())
	require.NoError(t, w.former.RestoreReplace(ctx, w.s.library.Outbox(), 0, copied).Err())
	require.NoError(t, script.Replace(ctx, w.former))
	require.NoError(t, w.serve(w.former))
	assert.EqualValues(t, 1, w.former.Exists(ctx, "ahead").Val())
	assert.True(t, w.ready())

	// FLUSHALL, while Redis is open.
	require.NoError(t, w.former.FlushAll(ctx).Err())
	require.ErrorContains(t, w.s.library.SendHeartbeat(ctx), "SONICNOTREADY")
	err := w.serve(w.former)
	require.ErrorIs(t, err, ErrState)
	assert.ErrorContains(t, err, "sonic -bootstrap ZONE")
}

func (w *twoRedis) ready() bool {
	w.t.Helper()
	state, err := w.s.library.ReadState(w.t.Context())
	require.NoError(w.t, err)
	return state.Ready
}
