package proxy_test

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zaptest"

	"github.com/aviaryhq/aviary/internal/sonic/cluster"
	"github.com/aviaryhq/aviary/internal/sonic/proxy"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/dialer"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack"
)

// startCluster starts a proxy in front of a Redis Cluster, and what follows the cluster for it.
func startCluster(t *testing.T, c *stack.RedisCluster, change func(*proxy.Config)) *endpoint {
	t.Helper()
	log := zaptest.NewLogger(t)
	follower := cluster.New(cluster.Config{Addresses: c.Addresses()}, log)
	cfg := proxy.Config{Backend: dialer.Config{DialTimeout: await.Patience, Wait: await.Patience}, Cluster: follower}
	if change != nil {
		change(&cfg)
	}
	p, err := proxy.New(cfg, log, prometheus.NewRegistry())
	require.NoError(t, err)
	follower.OnChange(func(*cluster.Map) { p.ClusterChanged() })
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
