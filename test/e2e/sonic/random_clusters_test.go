package sonic

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	slots "github.com/aviaryhq/aviary/internal/sonic/cluster"
	"github.com/aviaryhq/aviary/internal/sonic/script"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack"
	"github.com/aviaryhq/aviary/test/systems"
)

// startRedis starts what a zone has: one Redis, or a Redis Cluster. The other one is nil.
type startRedis func(testing.TB) (*stack.RedisServer, *stack.RedisCluster)

func single(t testing.TB) (*stack.RedisServer, *stack.RedisCluster) {
	t.Helper()
	return durable(t), nil
}

// clusterOf starts a cluster in which no node loses anything when it is killed, and in which a replica
// takes over however old it is.
func clusterOf(primaries, replicas int) startRedis {
	return func(t testing.TB) (*stack.RedisServer, *stack.RedisCluster) {
		t.Helper()
		return nil, stack.PrivateRedisCluster(t, primaries, replicas,
			"appendonly yes", "appendfsync always", "cluster-require-full-coverage no", "cluster-replica-validity-factor 0")
	}
}

// slotsUsed is how many slots writers use in front of Redis Clusters: few, so that many effects are
// of a slot that moves.
const slotsUsed = 12

func hashTags() (tags []string) {
	for i := range slotsUsed {
		tags = append(tags, fmt.Sprintf("{t%d}", i))
	}
	return tags
}

// slotOf is the slot of a key.
func slotOf(key string) int { return slots.Slot([]byte(key)) }

// databases is how many databases writers use.
func (w *randomRun) databases() int {
	if w.clusters() {
		return 1
	}
	return maxDatabases
}

// clusters reports whether a zone has a Redis Cluster.
func (w *randomRun) clusters() bool {
	return slices.ContainsFunc(w.sites, func(s *site) bool { return s.nodes != nil })
}

// redisURL is what the zone's Sonics need to reach its Redis.
func (s *site) redisURL() string {
	if s.nodes == nil {
		return s.redis.URL()
	}
	return "redis://" + strings.Join(s.nodes.Addresses(), ",")
}

// client is one of the zone's Redis, past Sonic. The caller closes it.
func (s *site) client() redis.UniversalClient {
	if s.nodes == nil {
		return redis.NewClient(&redis.Options{Addr: s.redis.Addr()})
	}
	return redis.NewClusterClient(&redis.ClusterOptions{Addrs: s.nodes.Addresses()})
}

// keys are the state keys of what belongs to a key.
func (s *site) keys(key string) script.Keys {
	if s.nodes == nil {
		return script.KeysOf(0)
	}
	return script.SlotKeys(slotOf(key))
}

// holdings reads all keys of a database but Sonic's own.
func (s *site) holdings(t testing.TB, db int) map[string]held {
	t.Helper()
	if s.nodes == nil {
		return holdings(t, s.redis, db)
	}
	all := map[string]held{}
	for _, node := range primariesOf(t, s.nodes) {
		before := len(all)
		mine := map[string]held{}
		readHoldings(t, node, db, mine)
		maps.Copy(all, mine)
		require.Len(t, all, before+len(mine), "zone %s has a key at two primaries", s.name)
	}
	return all
}

// primariesOf are the nodes that are primaries of slots now, each as it says.
func primariesOf(t testing.TB, nodes *stack.RedisCluster) (found []*stack.RedisServer) {
	t.Helper()
	owners := map[string]bool{}
	for _, tag := range hashTags() {
		owners[nodes.Owner(t, slotOf(tag))] = true
	}
	for _, srv := range nodes.Nodes() {
		if owners[srv.Addr()] {
			found = append(found, srv)
		}
	}
	return found
}

// entriesOf are the entries of a message, of all slots.
func entriesOf(h *wire.Header, payload []byte) ([]wire.Entry, error) {
	if !h.Slots {
		return wire.Entries(payload)
	}
	groups, err := wire.Groups(payload)
	if err != nil {
		return nil, err
	}
	var all []wire.Entry
	for _, g := range groups {
		entries, err := wire.Entries(g.Entries)
		if err != nil {
			return nil, err
		}
		all = append(all, entries...)
	}
	return all, nil
}

// field is a line of INFO replication of a Redis.
func field(c *redis.Client, name string) string {
	info := c.Info(context.Background(), "replication").Val()
	_, rest, _ := strings.Cut(info, "\r\n"+name+":")
	value, _, _ := strings.Cut(rest, "\r\n")
	return value
}

// awaitReplicas waits until each primary has a replica that has what the primary has now.
func (w *randomRun) awaitReplicas(s *site) {
	w.t.Helper()
	for _, primary := range primariesOf(w.t, s.nodes) {
		c := redis.NewClient(&redis.Options{Addr: primary.Addr()})
		offset := field(c, "master_repl_offset")
		_ = c.Close()
		systems.Await(w.t, await.Patience, "a replica of "+primary.Addr()+" is in sync", func() bool {
			return slices.ContainsFunc(s.nodes.Nodes(), func(node *stack.RedisServer) bool {
				if node == primary || !node.Reachable() {
					return false
				}
				c := redis.NewClient(&redis.Options{Addr: node.Addr()})
				defer c.Close()
				at := field(c, "slave_repl_offset")
				return field(c, "master_host")+":"+field(c, "master_port") == primary.Addr() && field(c, "master_link_status") == "up" &&
					(len(at) > len(offset) || len(at) == len(offset) && at >= offset)
			})
		})
	}
}

// Faults of Redis Clusters.
const (
	moveSlots   fault = "slots moved"
	failPrimary fault = "SIGKILL of a primary, and its replica takes over"
	failBehind  fault = "SIGKILL of a primary, and a replica takes over that lacks what was shipped"
)

// can reports whether a fault can happen in a zone.
func (s *site) can(f fault) bool {
	switch f {
	case moveSlots:
		return s.nodes != nil
	case failPrimary, failBehind:
		return s.replicas
	default:
		return true
	}
}

// beginAt makes a fault of a Redis Cluster happen, and returns what ends it.
func (w *randomRun) beginAt(s *site, f fault) (end func()) {
	w.t.Helper()
	tag := w.tags[w.r.IntN(len(w.tags))]
	slot := slotOf(tag)
	switch f {
	case moveSlots:
		return w.moveSlots(s)
	case failPrimary:
		w.event("zone %s: %s, of slot %d", s.name, f, slot)
		node := s.nodes.Node(w.t, s.nodes.Owner(w.t, slot))
		w.killInSync(s, node)
		return w.takeover(s, slot, node)
	case failBehind:
		w.event("zone %s: %s, of slot %d", s.name, f, slot)
		return w.failBehind(s, tag)
	default:
		node := s.nodes.Node(w.t, s.nodes.Owner(w.t, slot))
		pause := w.span(between(w.r, 1, 1_000_000_000))
		w.event("zone %s: %s, %s, for %s", s.name, f, node.Addr(), pause)
		w.killInSync(s, node)
		return func() {
			w.run(pause)
			require.NoError(w.t, node.Start(context.Background()))
			w.allServed(s)
		}
	}
}

// moveSlots moves some slots to another primary and, of these, some back.
func (w *randomRun) moveSlots(s *site) (end func()) {
	w.t.Helper()
	primaries := primariesOf(w.t, s.nodes)
	type move struct {
		slot     int
		from, to string
	}
	var moves []move
	for _, i := range w.r.Perm(len(w.tags))[:4] {
		m := move{slot: slotOf(w.tags[i])}
		m.from = s.nodes.Owner(w.t, m.slot)
		to := w.r.IntN(len(primaries))
		if primaries[to].Addr() == m.from {
			to = (to + 1) % len(primaries)
		}
		m.to = primaries[to].Addr()
		w.event("zone %s: slot %d moves from %s to %s", s.name, m.slot, m.from, m.to)
		s.nodes.StartMove(w.t, m.slot, m.to)
		moves = append(moves, m)
	}
	return func() {
		w.run(w.span(between(w.r, 1, 400_000_000))) // while Redis answers ASK
		for i, m := range moves {
			s.nodes.MoveKeys(w.t, m.slot, 1+w.r.IntN(5))
			w.run(w.span(between(w.r, 1, 100_000_000)))
			s.nodes.EndMove(w.t, m.slot)
			if i%2 == 0 {
				s.nodes.MoveSlot(w.t, m.slot, m.from)
			}
		}
		w.event("zone %s: slots have moved", s.name)
	}
}

// killInSync kills a primary while its replica, if there is one, has all that was acknowledged: a
// Redis Cluster loses what it has not.
func (w *randomRun) killInSync(s *site, node *stack.RedisServer) {
	w.t.Helper()
	if !s.replicas {
		require.NoError(w.t, node.Kill())
		return
	}
	w.awaitReplicas(s) // before writers have to wait
	w.pause()
	defer w.resume()
	w.awaitReplicas(s)
	require.NoError(w.t, node.Kill())
}

// failBehind kills the replica of a primary, waits until all that the primary has got since is in
// the other zones or came from there, and kills the primary.
// The replica then starts with what it has on disk.
func (w *randomRun) failBehind(s *site, tag string) (end func()) {
	w.t.Helper()
	primary := s.nodes.Node(w.t, s.nodes.Owner(w.t, slotOf(tag)))
	replica := replicaOf(w.t, s.nodes, primary)
	require.NoError(w.t, replica.Kill())
	w.run(w.span(time.Second)) // writes that the replica lacks
	w.pause()
	defer w.resume()
	w.awaitAll()
	require.NoError(w.t, primary.Kill())
	require.NoError(w.t, replica.Start(context.Background()))
	after := w.takeover(s, slotOf(tag), primary)
	return func() {
		after()
		w.writable(s)
		assert.True(w.t, slices.ContainsFunc(s.sonics, func(e *service) bool {
			return strings.Contains(e.Log(), "a primary was older than the topic: restored its lost effects")
		}), "zone %s: the replica lacked nothing", s.name)
	}
}

// replicaOf is the replica of a primary.
func replicaOf(t testing.TB, nodes *stack.RedisCluster, primary *stack.RedisServer) *stack.RedisServer {
	t.Helper()
	i := slices.IndexFunc(nodes.Nodes(), func(node *stack.RedisServer) bool {
		if !node.Reachable() {
			return false
		}
		c := redis.NewClient(&redis.Options{Addr: node.Addr()})
		defer c.Close()
		return field(c, "master_host")+":"+field(c, "master_port") == primary.Addr()
	})
	require.GreaterOrEqual(t, i, 0, "%s has no replica", primary.Addr())
	return nodes.Nodes()[i]
}

// takeover is for behind the kill of a primary. It waits until another node has the slot, starts the
// former primary again, and waits until that is a replica.
func (w *randomRun) takeover(s *site, slot int, node *stack.RedisServer) (end func()) {
	return func() {
		w.t.Helper()
		var now string
		systems.Await(w.t, await.Patience, "a replica takes over", func() bool {
			now = s.nodes.Owner(w.t, slot)
			return now != "" && now != node.Addr()
		})
		w.event("zone %s: %s has taken over", s.name, now)
		require.NoError(w.t, node.Start(context.Background()))
		w.allServed(s)
		w.awaitReplicas(s)
	}
}

// allServed waits until all slots have an owner.
func (w *randomRun) allServed(s *site) {
	w.t.Helper()
	for _, tag := range w.tags {
		systems.Await(w.t, await.Patience, "the slot of "+tag+" has a primary", func() bool { return s.nodes.Owner(w.t, slotOf(tag)) != "" })
	}
}
