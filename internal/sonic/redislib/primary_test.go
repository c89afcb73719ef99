package redislib_test

import (
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/redislib"
	"github.com/aviaryhq/aviary/internal/sonic/script"
	"github.com/aviaryhq/aviary/test/stack"
)

// A Sonic that has lost the topic may not know it yet. It takes no entries from the one that has the
// topic now: what it takes is never stored.
func TestTwoReadersOfAPrimary(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	client := stack.PrivateRedis(t).Client(t)
	reader := func(conn *redis.Conn) *redislib.Primary {
		t.Cleanup(func() { _ = conn.Close() })
		p := redislib.NewPrimary(conn, redislib.Config{Zone: "a", Others: []string{"b"}, Default: "lww"})
		state, err := p.Look(ctx)
		require.NoError(t, err)
		require.NoError(t, p.Open(ctx, state, true, 0))
		return p
	}
	write := func() {
		require.NoError(t, client.Do(ctx, "FCALL", "sonic_set", 1, script.SlotKeys(7).Outbox, "0", "key", "value").Err())
	}
	former := reader(client.Conn())
	write()
	list, _, _, err := former.Take(ctx, true)
	require.NoError(t, err)
	require.Len(t, list, 1)

	now := reader(client.Conn())
	list, _, _, err = now.Take(ctx, true)
	require.NoError(t, err)
	require.Len(t, list, 1)
	first := list[0].Entries[0].ID
	write()
	_, _, _, err = former.Take(ctx, false)
	require.ErrorContains(t, err, "SONICOLDER")
	list, _, _, err = now.Take(ctx, false)
	require.NoError(t, err)
	require.Len(t, list, 1)
	assert.Equal(t, first, list[0].Prev.String())

	// It may begin again before it knows. Then the other one does, too, and gets all.
	list, _, _, err = former.Take(ctx, true)
	require.NoError(t, err)
	require.Len(t, list, 1)
	_, _, _, err = now.Take(ctx, false)
	require.ErrorContains(t, err, "SONICOLDER")
	list, _, _, err = now.Take(ctx, true)
	require.NoError(t, err)
	require.Len(t, list, 1)
	assert.Len(t, list[0].Entries, 2)
}
