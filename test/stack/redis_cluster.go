package stack

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/aviaryhq/aviary/test/stack/process"
)

// clusterSlots is how many slots a Redis Cluster has.
const clusterSlots = 16384

// A RedisCluster is a Redis Cluster that is private to a test. Its methods are safe for concurrent
// use. Owner may be called in any goroutine, those that can fail the test only in the test's own.
type RedisCluster struct {
	nodes []*RedisServer // the first primaries, then the first replicas

	mu    sync.Mutex
	moves map[int]slotMove // by slot, those begun and not ended
}

// PrivateRedisCluster starts a Redis Cluster that only this test uses, under the rules of
// [PrivateRedis], with so many replicas of each primary. It returns when all nodes take commands
// and all replicas are in sync. Each primary has an equal part of the slots, in the order of
// [RedisCluster.Nodes]. A replica takes over about three seconds after its primary was killed.
//
// Each line of conf is one of redis.conf, "cluster-require-full-coverage no" for instance, and
// applies to all nodes. A primary that is started again before a replica took over has lost its
// data, and so will its replicas, unless "appendonly yes" is among the lines. "requirepass" sets
// the password of the nodes, too.
func PrivateRedisCluster(t testing.TB, primaries, replicas int, conf ...string) *RedisCluster {
	t.Helper()
	c := &RedisCluster{moves: map[int]slotMove{}}
	var ports []int // of the cluster bus
	for range primaries * (1 + replicas) {
		srv, port := clusterNode(t, conf)
		c.nodes, ports = append(c.nodes, srv), append(ports, port)
	}
	ctx, cancel := context.WithTimeout(t.Context(), adminTimeout)
	defer cancel()
	if err := c.form(ctx, t, primaries, ports); err != nil {
		t.Fatalf("cannot form a Redis Cluster: %v", err)
	}
	return c
}

// clusterNode starts a node that knows no other. It returns its port of the cluster bus, too, which
// is a reserved one: the default, 10000 above the other port, may be in use.
func clusterNode(t testing.TB, lines []string) (srv *RedisServer, bus int) {
	t.Helper()
	srv = &RedisServer{}
	n := private(t, "redis", &srv.Server, func(_ context.Context, s *Stack, dir string) (*redisNode, error) {
		conf := map[string]string{
			"cluster-enabled": "yes", "cluster-config-file": "nodes.conf", "cluster-node-timeout": "2000",
			// CLUSTER SLOTS has a replica only once it has received something from its primary.
			"repl-ping-replica-period": "1",
		}
		for _, line := range lines {
			name, value, _ := strings.Cut(line, " ")
			conf[name] = strings.TrimSpace(value)
		}
		if password := conf["requirepass"]; password != "" {
			conf["masterauth"] = password
		}
		n, err := s.newRedis(dir, 0, options{conf: conf})
		if err != nil {
			return nil, err
		}
		port, err := process.ReservePort(s.cache)
		if err != nil {
			n.ReleasePorts()
			return nil, err
		}
		bus = port.Number
		n.ports, conf["cluster-port"] = append(n.ports, port), strconv.Itoa(bus)
		return n, nil
	})
	srv.url, srv.dir = n.url(), n.dir
	return srv, bus
}

// form makes a cluster of the nodes, as redis-cli --cluster create does.
func (c *RedisCluster) form(ctx context.Context, t testing.TB, primaries int, buses []int) error {
	t.Helper()
	clients := make([]*redis.Client, len(c.nodes))
	ids := make([]string, len(c.nodes))
	for i, srv := range c.nodes {
		clients[i] = srv.Client(t)
		id, err := clients[i].ClusterMyID(ctx).Result()
		if err != nil {
			return err
		}
		ids[i] = id
		// Primaries with the same epoch would have to settle that first.
		if err := clients[i].Do(ctx, "CLUSTER", "SET-CONFIG-EPOCH", i+1).Err(); err != nil {
			return err
		}
		if i < primaries {
			first, last := i*clusterSlots/primaries, (i+1)*clusterSlots/primaries-1
			if err := clients[i].ClusterAddSlotsRange(ctx, first, last).Err(); err != nil {
				return err
			}
		}
		if i > 0 {
			host, port, _ := net.SplitHostPort(srv.Addr())
			if err := clients[0].Do(ctx, "CLUSTER", "MEET", host, port, buses[i]).Err(); err != nil {
				return err
			}
		}
	}
	for i := primaries; i < len(c.nodes); i++ {
		primary := ids[i%primaries]
		// A node can follow one that it knows, and that it knows to be a primary.
		if err := process.Poll(ctx, 10*time.Millisecond, func() (bool, error) {
			err := clients[i].ClusterReplicate(ctx, primary).Err()
			if err != nil && (strings.Contains(err.Error(), "Unknown node") || strings.Contains(err.Error(), "can only replicate a master")) {
				return false, nil
			}
			return true, err
		}); err != nil {
			return fmt.Errorf("%s cannot follow its primary: %w", c.nodes[i].Addr(), err)
		}
	}
	for i, client := range clients {
		if err := process.Poll(ctx, 10*time.Millisecond, func() (bool, error) {
			return nodeReady(ctx, client, len(c.nodes)/primaries, i >= primaries)
		}); err != nil {
			return fmt.Errorf("%s is not ready: %w", c.nodes[i].Addr(), err)
		}
	}
	return nil
}

// nodeReady reports whether a node has its place in the cluster, and knows so many nodes of each
// slot.
func nodeReady(ctx context.Context, client *redis.Client, perSlot int, replica bool) (bool, error) {
	info, err := client.ClusterInfo(ctx).Result()
	if err != nil || !strings.Contains(info, "cluster_state:ok") {
		return false, err
	}
	ranges, err := slotRanges(ctx, client)
	if err != nil {
		return false, err
	}
	slots := 0 // cluster_state does not depend on them with "cluster-require-full-coverage no"
	for _, r := range ranges {
		if len(r.Nodes) != perSlot {
			return false, nil
		}
		slots += r.End - r.Start + 1
	}
	if slots < clusterSlots {
		return false, nil
	}
	if !replica {
		return true, nil
	}
	state, err := replicationInfo(ctx, client)
	return state["master_link_status"] == "up", err
}

// slotRanges asks a node as clients do. They use CLUSTER SLOTS rather than its successor.
func slotRanges(ctx context.Context, client *redis.Client) ([]redis.ClusterSlot, error) {
	return client.ClusterSlots(ctx).Result() //nolint:staticcheck // see above
}

// Addresses returns the addresses of all nodes, host:port, in the order of Nodes.
func (c *RedisCluster) Addresses() []string {
	var all []string
	for _, srv := range c.nodes {
		all = append(all, srv.Addr())
	}
	return all
}

// Nodes returns all nodes, those first that were primaries at the start. Of three primaries with a
// replica each, the fourth node was the replica of the first.
func (c *RedisCluster) Nodes() []*RedisServer { return c.nodes }

// Node returns the node at an address.
func (c *RedisCluster) Node(t testing.TB, address string) *RedisServer {
	t.Helper()
	for _, srv := range c.nodes {
		if srv.Addr() == address {
			return srv
		}
	}
	t.Fatalf("the cluster has no node at %q", address)
	return nil
}

// Owner returns the address of the primary that has a slot, or "" if no node that answers says that
// it has it: its primary has ended, and no replica has taken over yet.
func (c *RedisCluster) Owner(t testing.TB, slot int) (address string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), adminTimeout)
	defer cancel()
	for _, srv := range c.nodes {
		if srv.Reachable() && srv.hasSlot(ctx, slot) {
			return srv.Addr()
		}
	}
	return ""
}

// hasSlot reports whether the node says that it is the primary of a slot.
func (s *RedisServer) hasSlot(ctx context.Context, slot int) bool {
	client := redis.NewClient(redisOptions(s.url))
	defer func() { _ = client.Close() }()
	ranges, err := slotRanges(ctx, client)
	if err != nil {
		return false // it has just ended, or has not read its files yet
	}
	for _, r := range ranges {
		if r.Start <= slot && slot <= r.End {
			return r.Nodes[0].Addr == s.Addr()
		}
	}
	return false
}
