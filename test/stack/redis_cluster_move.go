package stack

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/aviaryhq/aviary/test/stack/process"
)

// slotMove is a slot on its way from one primary to another.
type slotMove struct {
	source, target *RedisServer
}

// keysAtOnce is how many keys one request moves.
const keysAtOnce = 100

// MoveSlot moves a slot with its keys to the primary at an address, as redis-cli --cluster reshard
// does. Clients may use the slot meanwhile. It does nothing if the primary has it.
func (c *RedisCluster) MoveSlot(t testing.TB, slot int, to string) {
	t.Helper()
	if c.Owner(t, slot) == to {
		return
	}
	c.StartMove(t, slot, to)
	c.EndMove(t, slot)
}

// StartMove begins to move a slot to the primary at an address: its primary answers ASK for keys
// that it does not have. EndMove ends it.
func (c *RedisCluster) StartMove(t testing.TB, slot int, to string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), adminTimeout)
	defer cancel()
	move := slotMove{c.Node(t, c.Owner(t, slot)), c.Node(t, to)}
	c.do(ctx, t, move.target, "CLUSTER", "SETSLOT", slot, "IMPORTING", c.id(ctx, t, move.source))
	c.do(ctx, t, move.source, "CLUSTER", "SETSLOT", slot, "MIGRATING", c.id(ctx, t, move.target))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.moves[slot] = move
}

// MoveKeys moves up to count keys of a slot after StartMove, and returns how many it has moved.
func (c *RedisCluster) MoveKeys(t testing.TB, slot, count int) (moved int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), adminTimeout)
	defer cancel()
	move := c.move(t, slot)
	source := move.source.Client(t)
	for moved < count {
		keys, err := source.ClusterGetKeysInSlot(ctx, slot, min(count-moved, keysAtOnce)).Result()
		if err != nil {
			t.Fatalf("cannot read the keys of slot %d: %v", slot, err)
		}
		if len(keys) == 0 {
			break
		}
		target := redisOptions(move.target.url)
		host, port, _ := net.SplitHostPort(target.Addr)
		command := []any{"MIGRATE", host, port, "", 0, adminTimeout.Milliseconds()}
		if target.Password != "" {
			command = append(command, "AUTH", target.Password)
		}
		command = append(command, "KEYS")
		for _, key := range keys {
			command = append(command, key)
		}
		if err := process.Poll(ctx, 20*time.Millisecond, func() (bool, error) {
			err := source.Do(ctx, command...).Err()
			if err != nil && strings.Contains(err.Error(), "CLUSTERDOWN") {
				return false, nil // the target was restarted a moment ago
			}
			return true, err
		}); err != nil {
			t.Fatalf("cannot move keys of slot %d: %v", slot, err)
		}
		moved += len(keys)
	}
	return moved
}

// EndMove moves the other keys of a slot after StartMove, and gives the slot to the primary.
func (c *RedisCluster) EndMove(t testing.TB, slot int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), adminTimeout)
	defer cancel()
	for c.MoveKeys(t, slot, keysAtOnce) > 0 {
	}
	move := c.move(t, slot)
	owner := c.id(ctx, t, move.target)
	// The target first: if the source knew it before, nobody would have the slot for a moment.
	c.do(ctx, t, move.target, "CLUSTER", "SETSLOT", slot, "NODE", owner)
	c.do(ctx, t, move.source, "CLUSTER", "SETSLOT", slot, "NODE", owner)
	for _, srv := range c.nodes {
		if srv != move.source && srv != move.target && c.isPrimary(ctx, t, srv) {
			c.do(ctx, t, srv, "CLUSTER", "SETSLOT", slot, "NODE", owner)
		}
	}
	// The target has a new epoch. A primary that does not know it yet would take the slot back, with an
	// epoch that is not newer, and the two would disagree for good.
	if err := process.Poll(ctx, 5*time.Millisecond, func() (bool, error) { return c.sameEpoch(ctx) }); err != nil {
		t.Fatalf("the nodes do not agree on slot %d: %v", slot, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.moves, slot)
}

// sameEpoch reports whether all nodes that run know the same current epoch.
func (c *RedisCluster) sameEpoch(ctx context.Context) (bool, error) {
	epochs := map[string]bool{}
	for _, srv := range c.nodes {
		if !srv.Reachable() {
			continue
		}
		client := redis.NewClient(redisOptions(srv.url))
		info, err := client.ClusterInfo(ctx).Result()
		_ = client.Close()
		if err != nil {
			return false, err
		}
		_, rest, _ := strings.Cut(info, "cluster_current_epoch:")
		epoch, _, _ := strings.Cut(rest, "\r\n")
		epochs[epoch] = true
	}
	return len(epochs) == 1, nil
}

func (c *RedisCluster) move(t testing.TB, slot int) slotMove {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	move, found := c.moves[slot]
	if !found {
		t.Fatalf("slot %d is not being moved", slot)
	}
	return move
}

// isPrimary reports whether the node runs and is a primary.
func (c *RedisCluster) isPrimary(ctx context.Context, t testing.TB, srv *RedisServer) bool {
	t.Helper()
	if !srv.Reachable() {
		return false
	}
	info, err := replicationInfo(ctx, srv.Client(t))
	if err != nil {
		t.Fatalf("%s does not report its role: %v", srv.Addr(), err)
	}
	return info["role"] == "master"
}

func (c *RedisCluster) id(ctx context.Context, t testing.TB, srv *RedisServer) string {
	t.Helper()
	id, _ := c.do(ctx, t, srv, "CLUSTER", "MYID").(string)
	return id
}

// do sends a command to a node. The test ends if it is refused.
func (c *RedisCluster) do(ctx context.Context, t testing.TB, srv *RedisServer, command ...any) any {
	t.Helper()
	client := redis.NewClient(redisOptions(srv.url))
	defer func() { _ = client.Close() }()
	reply, err := client.Do(ctx, command...).Result()
	if err != nil {
		t.Fatalf("%s refuses %v: %v", srv.Addr(), command, err)
	}
	return reply
}
