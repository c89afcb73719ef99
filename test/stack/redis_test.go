package stack

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/stack/process"
)

// redisAnswers is a part of TestUpAndDown.
func redisAnswers(t *testing.T, lines []string) {
	t.Helper()
	var urls []string
	for i, key := range []string{"REDIS_URL=", "REDIS_A_URL=", "REDIS_B_URL=", "REDIS_C_URL="} {
		url, found := strings.CutPrefix(lines[i], key)
		require.True(t, found, lines[i])
		assert.NotContains(t, urls, url)
		urls = append(urls, url)
		client := redis.NewClient(redisOptions(url))
		got, err := client.ConfigGet(t.Context(), "maxclients").Result()
		require.NoError(t, err)
		assert.Equal(t, map[string]string{"maxclients": "123"}, got)
		require.NoError(t, client.Close())
	}
	t.Run("without the password", func(t *testing.T) {
		options := redisOptions(urls[0])
		options.Password = ""
		client := redis.NewClient(options)
		defer client.Close()
		require.ErrorContains(t, client.Ping(t.Context()).Err(), "NOAUTH")
	})
	t.Run("named by the environment", func(t *testing.T) {
		t.Setenv("AVIARY_TEST_REDIS_URL", urls[0])
		for i, zone := range redisZones() {
			t.Setenv("AVIARY_TEST_REDIS_"+zone+"_URL", urls[i+1])
		}
		srv := Redis(t)
		assert.Equal(t, urls[0], srv.URL())
		require.ErrorIs(t, srv.Kill(), process.ErrNotOwned)
		for i, srv := range RedisZones(t).All() {
			assert.Equal(t, urls[i+1], srv.URL())
		}
	})
}

func TestPrivateRedisThroughFaults(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	srv := PrivateRedis(t, Conf(map[string]string{"appendonly": "yes", "appendfsync": "always"}))
	client, key := srv.Client(t), srv.Name(t)
	const writes = 1000
	for i := range writes {
		require.NoError(t, client.RPush(ctx, key, i).Err())
	}
	info, err := client.InfoMap(ctx, "server").Result()
	require.NoError(t, err)
	assert.NotEmpty(t, info["Server"]["redis_version"])

	t.Run("kill and start", func(t *testing.T) {
		url, pid := srv.URL(), srv.PID()
		require.NotZero(t, pid)
		require.NoError(t, srv.Kill())
		require.NoError(t, srv.Kill(), "twice")
		require.Error(t, client.Ping(ctx).Err())
		require.NoError(t, srv.Start(ctx))
		require.NoError(t, srv.Start(ctx), "twice")
		assert.Equal(t, url, srv.URL())
		assert.NotEqual(t, pid, srv.PID())
		assert.EqualValues(t, writes, client.LLen(ctx, key).Val(), "every write that was replied to")
	})
	t.Run("comes back older than it was", func(t *testing.T) {
		files, err := filepath.Glob(filepath.Join(srv.Dir(), "appendonlydir", "*.incr.aof"))
		require.NoError(t, err)
		require.NotEmpty(t, files)
		last := files[len(files)-1]
		before, err := os.Stat(last)
		require.NoError(t, err)
		require.NoError(t, client.RPush(ctx, key, "lost").Err())
		require.NoError(t, srv.Kill())
		require.NoError(t, os.Truncate(last, before.Size()))
		require.NoError(t, srv.Start(ctx))
		assert.EqualValues(t, writes, client.LLen(ctx, key).Val())
	})
	t.Run("pause and resume", func(t *testing.T) {
		require.NoError(t, srv.Pause())
		short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		defer cancel()
		require.Error(t, redisHealthy(short, srv.URL()))
		require.NoError(t, srv.Resume())
		require.NoError(t, redisHealthy(ctx, srv.URL()))
	})
	t.Run("stop and start", func(t *testing.T) {
		require.NoError(t, srv.Stop(ctx))
		require.NoError(t, srv.Stop(ctx), "twice")
		require.NoError(t, srv.Start(ctx))
		assert.EqualValues(t, writes, client.LLen(ctx, key).Val())
	})
}

func TestPrivateRedisForgets(t *testing.T) {
	t.Parallel()
	srv := PrivateRedis(t)
	client := srv.Client(t)
	require.NoError(t, client.Set(t.Context(), "k", "v", 0).Err())
	require.NoError(t, srv.Stop(t.Context()))
	require.NoError(t, srv.Start(t.Context()))
	assert.Zero(t, client.DBSize(t.Context()).Val())
}

func TestRedisReplica(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	conf := map[string]string{"requirepass": "of-the-primary", "appendonly": "yes"}
	primary, replica := PrivateRedis(t, Conf(conf)), PrivateRedis(t)
	source, copied := primary.Client(t), replica.Client(t)
	require.NoError(t, source.Set(ctx, "k", "before", 0).Err())
	replica.Follow(t, primary)
	assert.Equal(t, "before", copied.Get(ctx, "k").Val())
	require.ErrorContains(t, copied.Set(ctx, "k", "x", 0).Err(), "READONLY")

	require.NoError(t, source.Set(ctx, "k", "after", 0).Err())
	eventually(t, "the write crosses", func() bool { return copied.Get(ctx, "k").Val() == "after" })
	require.NoError(t, replica.Kill())
	require.NoError(t, replica.Start(ctx))
	eventually(t, "still a replica", func() bool { return copied.Get(ctx, "k").Val() == "after" })

	require.NoError(t, primary.Kill())
	replica.Promote(t)
	require.NoError(t, copied.Set(ctx, "k", "promoted", 0).Err())
	require.NoError(t, replica.Stop(ctx))
	require.NoError(t, replica.Start(ctx))
	require.NoError(t, copied.Set(ctx, "k", "promoted still", 0).Err())
}

func TestPrivateRedisZones(t *testing.T) {
	t.Parallel()
	zones := PrivateRedisZones(t, Conf(map[string]string{"maxmemory-policy": "allkeys-lru"}))
	for i, srv := range zones.All() {
		client := srv.Client(t)
		assert.Equal(t, "allkeys-lru", client.ConfigGet(t.Context(), "maxmemory-policy").Val()["maxmemory-policy"])
		require.NoError(t, client.Set(t.Context(), fmt.Sprint("zone-", i), i, 0).Err())
		assert.EqualValues(t, 1, client.DBSize(t.Context()).Val())
	}
	require.NoError(t, zones.B.Kill())
	require.NoError(t, redisHealthy(t.Context(), zones.C.URL()))
}

func TestSecuredRedis(t *testing.T) {
	t.Parallel()
	srv := PrivateRedis(t, Secured(), Conf(map[string]string{"tls-auth-clients": "yes", "requirepass": "secret"}))
	k := srv.Security()
	authority, err := os.ReadFile(k.CAFile)
	require.NoError(t, err)
	pool := x509.NewCertPool()
	require.True(t, pool.AppendCertsFromPEM(authority))
	pair, err := tls.LoadX509KeyPair(k.CertFile, k.KeyFile)
	require.NoError(t, err)

	options := redisOptions(srv.URL())
	options.Addr, options.TLSConfig = k.TLS, &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	client := redis.NewClient(options)
	defer client.Close()
	require.NoError(t, client.Ping(t.Context()).Err())
	require.NoError(t, redisHealthy(t.Context(), srv.URL()), "without encryption, too")

	options.TLSConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	stranger := redis.NewClient(options)
	defer stranger.Close()
	require.Error(t, stranger.Ping(t.Context()).Err())
}

func TestRedisConfThatIsWrong(t *testing.T) {
	t.Parallel()
	s := testStack(t, Config{RedisConf: map[string]string{"no-such-setting": "1"}})
	if err := s.Fetch(t.Context(), "redis"); err != nil {
		Unavailable(t, "redis", err)
	}
	_, err := s.Up(t.Context(), "redis")
	require.ErrorContains(t, err, "ended while starting")
	require.ErrorContains(t, err, "no-such-setting")
}

func TestRedisVersion(t *testing.T) {
	require.NoError(t, checkRedisVersion("Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64 build=e9c1f5ae1eba0a4f\n"))
	require.NoError(t, checkRedisVersion("Redis server v=8.2.1 sha=0"))
	require.EqualError(t, checkRedisVersion("Redis server v=6.0.16 sha=0"), "redis-server is 6.0.16: Redis 7.0 or newer is needed")
	require.ErrorContains(t, checkRedisVersion("Segmentation fault"), "Segmentation fault")
}
