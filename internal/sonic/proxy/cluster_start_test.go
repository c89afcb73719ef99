package proxy_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zaptest"

	"github.com/aviaryhq/aviary/internal/sonic/cluster"
	"github.com/aviaryhq/aviary/internal/sonic/proxy"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/upstream"
	"github.com/aviaryhq/aviary/internal/sonic/script"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack"
)

// startCluster starts a proxy in front of a Redis Cluster, and what follows the cluster for it.
func startCluster(t *testing.T, c *stack.RedisCluster, change func(*proxy.Config)) *endpoint {
	t.Helper()
	log := zaptest.NewLogger(t)
	follower := cluster.New(cluster.Config{Addresses: c.Addresses()}, log)
	cfg := proxy.Config{Backend: upstream.Config{DialTimeout: await.Patience, Wait: await.Patience}, Cluster: follower}
	if change != nil {
		change(&cfg)
	}
	p, err := proxy.New(cfg, log, prometheus.NewRegistry())
	require.NoError(t, err)
	follower.OnChange(p.ClusterChanged)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- follower.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
	require.Eventually(t, func() bool { return follower.Map() != nil }, await.Patience, time.Millisecond)
	return &endpoint{p, serve(t, p), nil}
}

// clusterStarter is startCluster or startShards.
type clusterStarter func(t *testing.T, c *stack.RedisCluster, change func(*proxy.Config)) *endpoint

// inBothModes runs a test with writes that are relayed and with writes that are functions.
func inBothModes(t *testing.T, test func(t *testing.T, start clusterStarter)) {
	t.Helper()
	for name, start := range map[string]clusterStarter{"relay": startCluster, "replicate": startShards} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, start)
		})
	}
}

// startShards starts a proxy whose writes are functions, and what opens primaries for it.
func startShards(t *testing.T, c *stack.RedisCluster, change func(*proxy.Config)) *endpoint {
	t.Helper()
	for _, srv := range c.Nodes() {
		openPrimary(t, srv)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var opener sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		opener.Wait()
	})
	var clients []*redis.Client
	for _, srv := range c.Nodes() {
		clients = append(clients, redis.NewClient(&redis.Options{Addr: srv.Addr(), MaxRetries: -1}))
	}
	opener.Go(func() {
		for ctx.Err() == nil {
			for _, client := range clients {
				_ = tryOpen(ctx, client) // it may have ended
			}
			select {
			case <-ctx.Done():
			case <-time.After(5 * time.Millisecond):
			}
		}
		for _, client := range clients {
			_ = client.Close()
		}
	})
	return startShardsClosed(t, c, change)
}

// startShardsClosed is startShards without opening primaries.
func startShardsClosed(t *testing.T, c *stack.RedisCluster, change func(*proxy.Config)) *endpoint {
	t.Helper()
	return startCluster(t, c, func(cfg *proxy.Config) {
		cfg.SlotOutboxes, cfg.Zones = true, []string{"a", "b"}
		if change != nil {
			change(cfg)
		}
	})
}

func openPrimary(t *testing.T, srv *stack.RedisServer) {
	t.Helper()
	client := srv.Client(t)
	require.NoError(t, tryOpen(t.Context(), client))
	require.NoError(t, client.Close())
}

// tryOpen opens a primary as a Sonic with one other zone does, if it is one and is not open.
func tryOpen(ctx context.Context, client *redis.Client) error {
	state, err := client.Do(ctx, "FCALL", "sonic_primary", 0).StringSlice()
	if err == nil && len(state) > 1 && state[1] == "1" {
		return nil
	}
	role, err := client.Do(ctx, "ROLE").Slice()
	if err != nil || role[0] != "master" {
		return err
	}
	if err := script.Load(ctx, client); err != nil {
		return err
	}
	return client.Do(ctx, "FCALL", "sonic_open_primary", 0, "a", "r", "0-0", 1, "b", "lww").Err()
}
