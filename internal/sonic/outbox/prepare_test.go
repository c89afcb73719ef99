package outbox

import (
	"context"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zaptest"

	"github.com/aviaryhq/aviary/internal/sonic/redislib"
	"github.com/aviaryhq/aviary/internal/sonic/script"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/stack"
)

// shipper is one of zone a, with a Redis of the test's own, whose client and library it returns, too.
// It has asked nothing yet.
func shipper(t *testing.T) (*Shipper, *redis.Client, *redislib.Library) {
	t.Helper()
	pulsar, server := stack.Pulsar(t), stack.PrivateRedis(t)
	client, err := messaging.Dial(t.Context(), messaging.Config{URL: pulsar.URL()})
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close(context.Background()) })
	db := server.Client(t)
	l := redislib.New(db, redislib.Config{Zone: "a", Others: []string{"b"}, Default: "lww"})
	topic := "persistent://" + pulsar.Namespace(t) + "/sonic-a-0"
	s := New(Config{Zone: "a", Topic: topic}, db, l, client, zaptest.NewLogger(t), NewMetrics(prometheus.NewRegistry()), func(wire.ID) {})
	return s, db, l
}

// prepared is a new owner, before it looks at Redis.
func prepared(t *testing.T, s *Shipper) *owner {
	t.Helper()
	w, err := s.acquire(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { s.release(w) })
	return &owner{Shipper: s, topicWriter: w, single: true}
}

// What a predecessor has sent is stored after its successor has read the topic's end, and Redis has
// come back without it. The successor finds out before it opens Redis, and Redis gets it from the
// topic.
func TestWhatAPredecessorSentIsStoredLate(t *testing.T) {
	t.Parallel()
	s, db, l := shipper(t)
	ctx := t.Context()
	require.NoError(t, script.Load(ctx, db))

	parent, first := t, prepared(t, s)
	err := first.prepare(ctx)
	require.NoError(t, err)
	write := func(key string) wire.ID {
		require.NoError(t, db.Do(ctx, "FCALL", "sonic_set", 1, l.Outbox(), "0", key, "1").Err())
		state, err := l.ReadState(ctx)
		require.NoError(t, err)
		return state.Last
	}
	store := func(o *owner) {
		entries, whole, err := o.firstUnstored(ctx)
		require.NoError(t, err)
		require.True(t, whole)
		require.NoError(t, o.storeOne(entries))
	}
	for name, waits := range map[string]bool{"nothing else waits": false, "another effect waits": true} {
		t.Run(name, func(t *testing.T) {
			kept := name + " kept"
			last := write(kept)
			if !waits {
				store(first)
			}
			before := first.packer.Tail // as the successor reads it
			copied, err := db.Do(ctx, "DUMP", l.Outbox()).Text()
			require.NoError(t, err)
			lost := name + " lost"
			write(lost)
			if waits {
				both, err := db.XRangeN(ctx, l.Outbox(), "("+before.Last.String(), "+", 10).Result()
				require.NoError(t, err)
				entries, err := entriesOf(new(wire.Joiner), both)
				require.NoError(t, err)
				require.NoError(t, first.storeOne(entries))
			} else {
				store(first)
			}
			s.release(first.topicWriter)

			// Redis is the one before the last write, and was restarted.
			require.NoError(t, db.Del(ctx, lost).Err())
			require.NoError(t, db.HDel(ctx, script.KeysOf(0).Versions, "k0:"+lost).Err())
			require.NoError(t, db.Do(ctx, "RESTORE", l.Outbox(), 0, copied, "REPLACE").Err())
			require.NoError(t, script.Replace(ctx, db))
			second := prepared(parent, s)
			second.packer.Tail = before
			err = second.prepare(ctx)
			require.NoError(t, err)
			assert.EqualValues(t, 2, db.Exists(ctx, kept, lost).Val())
			state, err := l.ReadState(ctx)
			require.NoError(t, err)
			assert.True(t, state.Ready)
			assert.Positive(t, state.Last.Compare(last))
			assert.Equal(t, first.packer.Tail.Last, second.packer.Tail.Last)
			first = second
		})
	}

	t.Run("nothing was under way", func(t *testing.T) {
		// It stores a message without effects, and recovers nothing.
		require.NoError(t, script.Replace(ctx, db))
		s.release(first.topicWriter)
		next := prepared(t, s)
		state, err := l.ReadState(ctx)
		require.NoError(t, err)
		began := next.packer.Tail
		require.NoError(t, next.prepare(ctx))
		assert.Equal(t, began.Position+1, next.packer.Tail.Position)
		assert.Equal(t, state.Epoch+1, next.packer.Tail.Epoch, "it was opened again")
		id := write("later")
		assert.Positive(t, id.Compare(next.packer.Tail.Last))
	})
}

// The library that a predecessor of another version has opened gives way to the owner's.
func TestAPredecessorOfAnotherVersion(t *testing.T) {
	t.Parallel()
	s, db, l := shipper(t)
	ctx := t.Context()
	text, version, err := script.Library()
	require.NoError(t, err)
	require.NoError(t, db.Do(ctx, "FUNCTION", "LOAD", strings.Replace(text, "'"+version+"'", "'another'", 1)).Err())
	require.NoError(t, db.Do(ctx, "FCALL", "sonic_open", 1, l.Outbox(), "a", 1, "0-0", "", 1, "b", "lww").Err())
	require.NoError(t, db.Do(ctx, "FCALL", "sonic_set", 1, l.Outbox(), "0", "k", "1").Err())
	loaded := func() string {
		found, err := db.Do(ctx, "FCALL_RO", "sonic_version", 0).Text()
		require.NoError(t, err)
		return found
	}
	require.Equal(t, "another", loaded())
	next := prepared(t, s)
	require.NoError(t, next.updateLibrary(ctx))
	err = next.prepare(ctx)
	require.NoError(t, err)
	assert.Equal(t, version, loaded())
	state, err := l.ReadState(ctx)
	require.NoError(t, err)
	assert.True(t, state.Ready)
}

// Finding the end of a transaction takes time in proportion to its length: Redis is not open yet.
func TestFirstUnitOfAnOutbox(t *testing.T) {
	t.Parallel()
	const n = 100_000
	entries := make([]wire.Entry, n)
	for i := range entries {
		entries[i] = wire.Entry{ID: wire.ID{Ms: uint64(i + 1)}, Transaction: "1", Effects: "e"}
	}
	entries[n-2].Effects = ""
	entries[n-1].Transaction = ""
	var f firstUnit
	searched := 0
	for read := 0; read < n; read += minReadCount {
		before := f.searched
		require.False(t, f.find(entries[:read]))
		if f.searched != before {
			searched += f.searched
		}
	}
	require.Less(t, searched, 2*n)
	require.Equal(t, n-1, wire.Cut(entries, true))
	f = firstUnit{}
	require.True(t, f.find(entries[n-1:]), "an entry without a transaction")
	require.Equal(t, 1, f.size)
}
