package apply

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/redislib"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
	"github.com/aviaryhq/aviary/test/stack"
)

// A zone with one Redis applies the messages of a zone with a Redis Cluster once and in order, also
// when its Redis comes back without the last of them, and its Sonic ends between parts.
func TestMessagesOfSlotsToOneRedis(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	pulsar := stack.Pulsar(t)
	namespace, client := pulsar.Namespace(t), dial(t, pulsar)
	b := newOrigin(t, client, namespace, "b", true, "a")
	server := stack.PrivateRedis(t)
	db := server.Client(t)
	l := redislib.New(db, redislib.Config{Zone: "a", Others: []string{"b"}, Default: "none"})
	epoch := int64(0)
	open := func() {
		epoch++
		state, err := l.ReadState(ctx)
		require.NoError(t, err)
		_, err = l.Open(ctx, state, epoch, wire.ID{})
		require.NoError(t, err)
	}
	open()
	cfg := appliersConfig(namespace, "a", "b")
	applier := newApplier(t, client, cfg, l)
	stop := runApplier(t, applier.Run)

	written := 0
	const keys = 5
	write := func(n int) {
		for range n {
			for key := range keys {
				b.write("rpush", fmt.Sprint("list", key), written)
			}
			written++
			b.ship()
		}
	}
	applied := func() {
		t.Helper()
		eventually(t, func() bool {
			for key := range keys {
				if db.LLen(ctx, fmt.Sprint("list", key)).Val() < int64(written) {
					return false
				}
			}
			return true
		}, "%d numbers are in each list", written)
		for key := range keys {
			require.Equal(t, numbers(written), db.LRange(ctx, fmt.Sprint("list", key), 0, -1).Val())
		}
	}
	write(20)
	applied()

	// A message without effects moves the cursor, and tells how far the zone is.
	b.told = map[string]uint64{"a": 77}
	b.ship()
	cursor := func() redislib.Cursor {
		state, err := l.ReadState(ctx)
		require.NoError(t, err)
		return state.Cursors["b"]
	}
	eventually(t, func() bool { return db.HGet(ctx, "{sonic:0}reported", "b a").Val() == "77-0" }, "it is told")
	assert.Less(t, time.Since(time.UnixMilli(int64(cursor().ID.Ms))), time.Minute)
	s := applier.Status()
	assert.Equal(t, b.packer.Tail.Count, s.Count)
	lag, effects, known := s.Behind(time.Now())
	assert.True(t, known)
	assert.Zero(t, effects)
	assert.Less(t, lag, time.Minute)

	// Redis comes back without what was written since. Some slots get nothing new.
	require.NoError(t, db.Save(ctx).Err())
	write(10)
	applied()
	require.NoError(t, server.Kill())
	require.NoError(t, server.Start(ctx))
	open()
	b.write("rpush", "another", "1")
	b.ship()
	eventually(t, func() bool { return db.LLen(ctx, "another").Val() == 1 }, "another list")
	b.ship()
	applied()

	// Nothing new is written: the end of the topic shows what is missing.
	write(10)
	applied()
	require.NoError(t, server.Kill())
	require.NoError(t, server.Start(ctx))
	open()
	applied()

	// A large effect is in several messages. The process ends between them.
	large := incompressible()
	b.write("rpush", "large", large)
	messages := b.messages()
	require.Greater(t, len(messages), 2)
	b.store(messages[:2])
	eventually(t, func() bool { return drained(t, pulsar, cfg) }, "all parts so far are acknowledged")
	stop()
	assert.Zero(t, db.Exists(ctx, "large").Val())
	stop = runApplier(t, newApplier(t, client, cfg, l).Run)
	b.store(messages[2:])
	write(3)
	applied()
	same := large == db.LIndex(ctx, "large", 0).Val()
	assert.True(t, same) // the difference would be too long to read
	assert.EqualValues(t, 1, db.LLen(ctx, "large").Val())
	assert.Zero(t, db.Exists(ctx, "{sonic:0}part:b").Val())
	stop()
}

// incompressible returns a text that is larger than two parts.
func incompressible() string {
	random := make([]byte, 3*wire.PartBytes)
	_, _ = rand.NewChaCha8([32]byte{}).Read(random)
	return string(random)
}

// drained reports whether the subscription has acknowledged all messages.
func drained(t *testing.T, pulsar *stack.PulsarServer, cfg Config) bool {
	t.Helper()
	var stats struct {
		Subscriptions map[string]struct {
			Backlog int `json:"msgBacklog"`
		} `json:"subscriptions"`
	}
	path := "/admin/v2/persistent/" + strings.TrimPrefix(cfg.Topic, "persistent://") + "/stats"
	require.NoError(t, pulsar.Admin(t.Context(), "GET", path, nil, &stats))
	s, found := stats.Subscriptions["sonic-"+cfg.Zone]
	return found && s.Backlog == 0
}
