package proxy_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zaptest"

	"github.com/aviaryhq/aviary/internal/sonic/cluster"
	"github.com/aviaryhq/aviary/internal/sonic/proxy"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/dialer"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack"
)

// startCluster starts a proxy in front of a Redis Cluster.
func startCluster(t *testing.T, c *stack.RedisCluster, change func(*proxy.Config)) *endpoint {
	t.Helper()
	f := &follower{wake: make(chan struct{}, 1)}
	for _, srv := range c.Nodes() {
		f.nodes = append(f.nodes, srv.Client(t))
	}
	require.Eventually(t, func() bool { return f.read(t.Context()) }, await.Patience, time.Millisecond)
	cfg := proxy.Config{Backend: dialer.Config{DialTimeout: await.Patience, Wait: await.Patience}, Cluster: f}
	if change != nil {
		change(&cfg)
	}
	p, err := proxy.New(cfg, zaptest.NewLogger(t), prometheus.NewRegistry())
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f.run(ctx, p.ClusterChanged)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return &endpoint{p, serve(t, p), nil}
}

// follower follows a Redis Cluster: it asks the first node that answers.
type follower struct {
	nodes []*redis.Client
	last  atomic.Pointer[cluster.Map]
	wake  chan struct{}
}

func (f *follower) Map() *cluster.Map { return f.last.Load() }

func (f *follower) Refresh() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// read reads the map, and reports whether it has changed.
func (f *follower) read(ctx context.Context) bool {
	for _, node := range f.nodes {
		slots, err := node.ClusterSlots(ctx).Result()
		if err != nil || len(slots) == 0 {
			continue
		}
		var ranges []cluster.Range
		for _, r := range slots {
			primary := cluster.Primary{ID: r.Nodes[0].ID, Address: r.Nodes[0].Addr}
			ranges = append(ranges, cluster.Range{First: r.Start, Last: r.End, Primary: primary})
		}
		m := cluster.NewMap(ranges)
		if last := f.Map(); last != nil && last.Equal(m) {
			return false
		}
		f.last.Store(m)
		return true
	}
	return false
}

func (f *follower) run(ctx context.Context, changed func()) {
	const interval = 100 * time.Millisecond
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.wake:
		case <-time.After(interval):
		}
		if f.read(ctx) {
			changed()
		}
	}
}
