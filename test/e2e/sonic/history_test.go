package sonic

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/systems"
)

// A former primary returns with a write that its successor does not have. It is read, it takes no
// write, and nothing of it is published, until an operator repairs the zones. Both hold the same
// then.
func TestAFormerPrimaryReturnsWithOtherWrites(t *testing.T) {
	t.Parallel()
	a, b, replica, line := withReplicaBehind(t)
	ctx, primary := t.Context(), a.redis
	set := func(z zone, keys ...string) {
		t.Helper()
		for _, key := range keys {
			require.NoError(t, z.client().Set(ctx, key, key, 0).Err())
		}
	}
	set(a, "before", "changed")
	same(t, []string{"before", "changed"}, a, b)

	line.Close()
	replica.Promote(t)
	require.NoError(t, line.Forward(replica.Addr()))
	former := a
	a.redis = replica
	a.awaitWritable()
	set(a, "of the successor", "changed")
	same(t, []string{"before", "changed", "of the successor"}, a, b)
	// An isolated Sonic, or a client that is not ours, still writes to the former primary.
	for _, key := range []string{"of the former", "changed"} {
		require.NoError(t, primary.Client(t).Do(ctx, "FCALL", "sonic_set", 1, "{sonic:0}out", "0", key, "former").Err())
	}

	line.Close()
	require.NoError(t, line.Forward(primary.Addr()))
	a = former
	systems.Await(t, await.Patience, "the alarm", func() bool { return a.metric("sonic_history_rejected") == 1 })
	status, body := a.Ask(http.MethodGet, "/-/ready")
	assert.Equal(t, http.StatusServiceUnavailable, status)
	assert.Contains(t, string(body), "different histories")
	assert.Contains(t, a.Log(), "run sonic -repair")
	ca := a.client()
	systems.Await(t, await.Patience, "reads go on", func() bool { return ca.Get(ctx, "of the former").Val() == "former" })
	require.ErrorContains(t, ca.Set(ctx, "k", "v", 0).Err(), "LOADING")
	set(b, "of b") // the other zone goes on
	assert.Zero(t, b.redis.Client(t).Exists(ctx, "of the former").Val())
	set(b, "changed again by b")

	repair(t, a, b)
	set(a, "after")
	same(t, []string{"before", "changed", "of the successor", "of the former", "of b", "changed again by b", "after"}, a, b)
	assert.EqualValues(t, 7, a.redis.Client(t).Exists(ctx, "before", "changed", "of the successor", "of the former", "of b", "changed again by b", "after").Val())
	assert.Zero(t, a.metric("sonic_history_rejected"))
}

// repair runs sonic -repair in a zone.
func repair(t testing.TB, z, peer zone) {
	t.Helper()
	cmd := systems.Command(t.Context(), []string{"-repair"}, append(z.Env(), fmt.Sprintf("SONIC_PEERS=[{zone: b, redis: {url: '%s'}}]", peer.redis.URL())))
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "continues with the history of this Redis")
}

// FLUSHALL past Sonic: the zone's Sonic does not go on as if the data had never been.
func TestARedisIsEmptiedWhileItIsServed(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	ctx := t.Context()
	require.NoError(t, a.client().Set(ctx, "k", "v", 0).Err())
	same(t, []string{"k"}, a, b)
	require.NoError(t, a.redis.Client(t).FlushAll(ctx).Err())
	require.Error(t, a.Ended(await.Patience))
	assert.Contains(t, a.Log(), "fill it from another zone by sonic -bootstrap ZONE")
	assert.Equal(t, "v", b.client().Get(ctx, "k").Val())
}

// TestARestartWithoutItsTopic: a Sonic that cannot open its topic takes writes for a Redis that
// another Sonic has opened, as in an outage of Pulsar, and says why it does not ship them. It takes
// none for a Redis that was emptied past Sonic.
func TestARestartWithoutItsTopic(t *testing.T) {
	t.Parallel()
	a, b := pair(t)
	ctx := t.Context()
	require.NoError(t, a.client().Set(ctx, "before", "v", 0).Err())
	same(t, []string{"before"}, a, b)
	a.Stop()
	away := zone{run(t, append(a.Env(), "SONIC_TOPIC=persistent://public/missing/sonic")...), a.redis}
	c := away.client()
	require.NoError(t, c.Set(ctx, "meanwhile", "v", 0).Err())
	systems.Await(t, await.Patience, "it is shown why nothing is shipped", func() bool {
		z := away.zones().Outbox
		return z.Length > 0 && strings.Contains(z.Unhealthy, "cannot open the topic")
	})
	status, body := away.Ask(http.MethodGet, "/-/ready")
	assert.Equal(t, http.StatusOK, status, "%s", body)
	assert.Contains(t, away.Log(), "cannot open the topic")

	require.NoError(t, a.redis.Client(t).FlushAll(ctx).Err())
	systems.Await(t, await.Patience, "it is not ready", func() bool {
		status, body = away.Ask(http.MethodGet, "/-/ready")
		return status == http.StatusServiceUnavailable
	})
	assert.Contains(t, string(body), "no Sonic has opened this Redis")
	require.ErrorContains(t, c.Set(ctx, "afterwards", "v", 0).Err(), "LOADING")
}
