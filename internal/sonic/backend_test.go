package sonic

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/health"
	"github.com/aviaryhq/aviary/internal/sonic/cluster"
	"github.com/aviaryhq/aviary/internal/sonic/script"
	"github.com/aviaryhq/aviary/internal/trial"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack"
)

func TestBackendOfACluster(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]backend{
		"redis://u:p%2C%40@a,b:2,[::1]:3,[::2]": {nodes: []string{"a:6379", "b:2", "[::1]:3", "[::2]:6379"}, username: "u", password: "p,@"},
		"redis://a":                             {address: "a:6379"},
		"redis://[::1]":                         {address: "[::1]:6379"},
	} {
		b, err := RedisConfig{URL: url}.backend(zap.NewNop())
		require.NoError(t, err, url)
		assert.Equal(t, want, b, url)
	}
	b, err := RedisConfig{URL: defaultURL, Cluster: true, Username: "u", Password: "p"}.backend(zap.NewNop())
	require.NoError(t, err)
	assert.Equal(t, backend{nodes: []string{"127.0.0.1:6379"}, username: "u", password: "p"}, b)
	assert.Equal(t, "the Redis Cluster of 127.0.0.1:6379", b.String())

	b, err = RedisConfig{URL: "rediss://a,b"}.backend(zap.NewNop())
	require.NoError(t, err)
	assert.Empty(t, b.tls.ServerName, "each node has its own")
}

func TestCommandsInFrontOfACluster(t *testing.T) {
	t.Parallel()
	cfg := DefaultConfig()
	cfg.Redis.Cluster = true
	zone := "b"
	cfg.Peers = []Peer{{Zone: zone}}
	require.NoError(t, Command{Check: true}.validate(cfg))
	require.NoError(t, Command{Repair: true, From: zone}.validate(cfg))
	require.NoError(t, Command{Bootstrap: &zone}.validate(cfg))
}

// TestPrimariesThatCannotBeTheBackend: one that does not answer holds nothing up, one that must not
// be the backend does.
func TestPrimariesThatCannotBeTheBackend(t *testing.T) {
	t.Parallel()
	srv := stack.PrivateRedis(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	b := backend{nodes: []string{l.Addr().String()}}
	mapOf := func(addresses ...string) *cluster.Map {
		var all []cluster.Range
		for i, address := range addresses {
			all = append(all, cluster.Range{First: i, Last: i, Primary: cluster.Primary{ID: address, Address: address}})
		}
		return cluster.NewMap(all)
	}
	err = b.checkPrimaries(t.Context(), mapOf(l.Addr().String()))
	require.ErrorContains(t, err, l.Addr().String()+": cannot reach Redis")
	require.NotErrorIs(t, err, errUnsuitable)
	require.ErrorContains(t, b.checkPrimaries(t.Context(), mapOf()), "no primary of the Redis Cluster has slots")

	require.NoError(t, srv.Client(t).ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lru").Err())
	err = b.checkPrimaries(t.Context(), mapOf(l.Addr().String(), srv.Addr()))
	require.ErrorIs(t, err, errUnsuitable)
	require.ErrorContains(t, err, srv.Addr()+": this Redis cannot be the backend: its maxmemory-policy is allkeys-lru")
	require.ErrorContains(t, err, "it is not part of a Redis Cluster: set redis.cluster: false")
	require.NoError(t, b.checkEnabled(t.Context()))
	b.nodes = append(b.nodes, srv.Addr())
	require.ErrorIs(t, b.checkEnabled(t.Context()), errUnsuitable)

	cfg := DefaultConfig()
	cfg.Redis.URL = "redis://" + l.Addr().String() + "," + srv.Addr()
	trials, end := Connect(cfg)
	defer end()
	var out strings.Builder
	tried, failed := trial.Run(context.Background(), trials, &out)
	assert.Equal(t, []int{4, 4}, []int{tried, failed})
	assert.Regexp(t, `(?m)^  redis.url, node `+l.Addr().String()+`: failed: .*connection refused$`, out.String())
	assert.Regexp(t, `(?m)^  redis.url, node `+srv.Addr()+`: failed: .*not part of a Redis Cluster`, out.String())
	assert.Regexp(t, `(?m)^  redis: state of the cluster: failed: ERR This instance has cluster support disabled$`, out.String())

	// With other zones it uses Pulsar, too.
	cfg.Zones, cfg.Pulsar.URL = []string{"default", "b"}, "pulsar://"+l.Addr().String()
	trials, end = Connect(cfg)
	defer end()
	out.Reset()
	trial.Run(context.Background(), trials, &out)
	assert.Contains(t, out.String(), "  pulsar.url pulsar://"+l.Addr().String()+": failed: connect: ")
}

// A Redis that is busy with a script is not unsuitable: Sonic waits until it answers.
func TestARedisThatIsBusyIsWaitedFor(t *testing.T) {
	t.Parallel()
	srv := stack.PrivateRedis(t)
	busy, db := srv.Client(t), srv.Client(t)
	require.NoError(t, busy.ConfigSet(t.Context(), "busy-reply-threshold", "1").Err())
	ended := make(chan error, 1)
	go func() { ended <- busy.Eval(context.Background(), "while true do end", nil).Err() }()
	require.Eventually(t, func() bool { return script.IsReply(db.Info(t.Context()).Err(), "BUSY") }, await.Patience, time.Millisecond)
	state := health.New(zap.NewNop())
	ready := make(chan error, 1)
	go func() { ready <- backend{}.awaitRedis(t.Context(), db, state) }()
	require.Eventually(t, func() bool { return state.Current() != nil || len(ready) > 0 }, await.Patience, time.Millisecond)
	require.NoError(t, db.ScriptKill(t.Context()).Err())
	require.ErrorContains(t, <-ended, "Script killed")
	select {
	case err := <-ready:
		require.NoError(t, err)
	case <-time.After(await.Patience):
		t.Fatal("Redis answers again, and is not found")
	}
}
