package sonic_test

import (
	"flag"
	"io"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zaptest"

	"github.com/aviaryhq/aviary/internal/app"
	"github.com/aviaryhq/aviary/internal/sonic"
	"github.com/aviaryhq/aviary/internal/sonic/script"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack"
)

// command runs the program with flags of the command line, and returns how it ended.
func command(t *testing.T, cfg sonic.Config, args ...string) error {
	t.Helper()
	fs := flag.NewFlagSet("sonic", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	sonic.Flags(fs, &cfg)
	require.NoError(t, fs.Parse(args))
	program := app.Program[sonic.Config]{Name: "sonic", Defaults: sonic.DefaultConfig, Flags: sonic.Flags, Build: sonic.Build}
	return app.RunProgram(t.Context(), program, cfg, zaptest.NewLogger(t))
}

// The commands that compare need no Pulsar, and say by how they end whether zones differ.
func TestZonesAreComparedFromTheCommandLine(t *testing.T) {
	t.Parallel()
	cfg := sonic.DefaultConfig()
	cfg.Zone, cfg.Zones, cfg.ShutdownTimeout = "a", []string{"a", "b"}, await.Patience
	require.ErrorContains(t, command(t, cfg, "-check"), "peers: name the Redis")

	clients := map[string]*redis.Client{}
	for zone, other := range map[string]string{"a": "b", "b": "a"} {
		srv := stack.PrivateRedis(t)
		c := srv.Client(t)
		clients[zone] = c
		require.NoError(t, script.Load(t.Context(), c))
		require.NoError(t, c.Do(t.Context(), "FCALL", "sonic_open", 1, "{sonic:0}out", zone, 1, "0-0", "", 1, other, "lww").Err())
		require.NoError(t, c.Set(t.Context(), "k", "v", 0).Err())
		if zone == "a" {
			cfg.Redis.URL = srv.URL()
		} else {
			cfg.Peers = []sonic.Peer{{Zone: zone, Redis: sonic.RedisConfig{URL: srv.URL()}}}
		}
	}
	require.NoError(t, command(t, cfg, "-check"))
	require.NoError(t, command(t, cfg, "-repair"))

	// Both have all of each other that there is: nothing is written but behind their Sonics.
	for zone, other := range map[string]string{"a": "b", "b": "a"} {
		last, err := clients[other].XInfoStream(t.Context(), "{sonic:0}out").Result()
		require.NoError(t, err)
		require.NoError(t, clients[zone].Do(t.Context(), "FCALL", "sonic_cursors", 1, "{sonic:0}out", other, last.LastGeneratedID, "", 1).Err())
	}
	require.NoError(t, clients["b"].Set(t.Context(), "k", "other", 0).Err())
	err := command(t, cfg, "-check")
	require.ErrorContains(t, err, "1 keys differ")
	require.ErrorContains(t, command(t, cfg, "-bootstrap", "c"), "peers does not name the Redis of zone c")
	require.ErrorContains(t, command(t, cfg, "-bootstrap", "b"), "holds the state of zone a")
	require.ErrorContains(t, command(t, cfg, "-bootstrap", "b", "-check"), "cannot be combined with")
	err = command(t, cfg, "-repair", "-repair.from", "c")
	require.ErrorContains(t, err, "zone c is not this zone and not in peers")
	assert.Equal(t, "other", clients["b"].Get(t.Context(), "k").Val())

	require.NoError(t, clients["a"].FlushAll(t.Context()).Err())
	require.NoError(t, clients["a"].Do(t.Context(), "FUNCTION", "FLUSH").Err())
	pulsar := stack.Pulsar(t)
	cfg.Pulsar.URL, cfg.Topic = pulsar.URL(), "persistent://"+pulsar.Namespace(t)+"/sonic"
	require.NoError(t, command(t, cfg, "-bootstrap", "b"))
	assert.Equal(t, "other", clients["a"].Get(t.Context(), "k").Val())
}

// TestAMistakenCommandIsNoService: an empty variable in a script must not start a Sonic beside the
// one that runs.
func TestAMistakenCommandIsNoService(t *testing.T) {
	t.Parallel()
	cfg := sonic.DefaultConfig()
	cfg.Zone, cfg.Zones = "a", []string{"a", "b"}
	cfg.Peers = []sonic.Peer{{Zone: "b", Redis: sonic.RedisConfig{URL: "redis://127.0.0.1:1"}}}
	free := cfg // -repair.from alone does not change the port
	free.Admin.Listen = "127.0.0.1:0"
	require.ErrorContains(t, command(t, free, "-bootstrap", ""), "-bootstrap needs the name of a zone")
	require.ErrorContains(t, command(t, free, "-repair.from", "b"), "-repair.from needs -repair")
	require.ErrorContains(t, command(t, free, "-check", "-repair.from", "b"), "-repair.from needs -repair")

	fs := flag.NewFlagSet("sonic", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	sonic.Flags(fs, &cfg)
	require.NoError(t, fs.Parse([]string{"-check=false"}))
	assert.Equal(t, sonic.Command{}, cfg.Command)
	assert.Equal(t, "127.0.0.1:9303", cfg.Admin.Listen)
	require.Error(t, fs.Parse([]string{"-check=perhaps"}))
}

// TestRepairFromOneOfSeveralPeers: the zone whose state is taken need not be in each pair that is
// compared.
func TestRepairFromOneOfSeveralPeers(t *testing.T) {
	t.Parallel()
	names := []string{"a", "b", "c"}
	cfg := sonic.DefaultConfig()
	cfg.Zone, cfg.Zones, cfg.ShutdownTimeout = "a", names, await.Patience
	for i, zone := range names {
		srv := stack.PrivateRedis(t)
		c := srv.Client(t)
		require.NoError(t, script.Load(t.Context(), c))
		require.NoError(t, c.Do(t.Context(), "FCALL", "sonic_open", 1, "{sonic:0}out", zone, 1, "0-0", "", 2, names[(i+1)%3], names[(i+2)%3], "lww").Err())
		if zone == "a" {
			cfg.Redis.URL = srv.URL()
		} else {
			cfg.Peers = append(cfg.Peers, sonic.Peer{Zone: zone, Redis: sonic.RedisConfig{URL: srv.URL()}})
		}
	}
	for _, from := range names {
		require.NoError(t, command(t, cfg, "-repair", "-repair.from", from))
	}
}
