package proxy_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/cluster"
	"github.com/aviaryhq/aviary/internal/sonic/proxy"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack"
)

// TestClusterPipeline: the replies to the commands of one client come in the order of its commands,
// although these go to all primaries.
func TestClusterPipeline(t *testing.T) { inBothModes(t, testClusterPipeline) }

func testClusterPipeline(t *testing.T, startCluster clusterStarter) {
	t.Helper()
	e := startCluster(t, stack.PrivateRedisCluster(t, 3, 0), func(cfg *proxy.Config) {
		cfg.Limits.Pipeline = 64 // so that the client pauses, too
	})
	c := dial(t, e.addr)
	random := rand.New(rand.NewPCG(1, 1))
	values := map[string]string{}
	var commands strings.Builder
	var want []string
	large := strings.Repeat("x", 100_000)
	for i := range 3000 {
		key := fmt.Sprintf("key:%d", random.IntN(100))
		switch random.IntN(6) {
		case 0:
			fmt.Fprintf(&commands, "echo %d\r\n", i)
			want = append(want, string(resp.AppendBulk(nil, fmt.Sprint(i))))
		case 1:
			commands.WriteString("nosuch\r\n")
			want = append(want, "-ERR unknown command 'nosuch', with args beginning with: \r\n")
		case 2, 3:
			value := fmt.Sprint(i)
			if i%50 == 0 {
				value += large
			}
			values[key] = value
			commands.Write(resp.AppendCommand(nil, "set", key, value))
			want = append(want, "+OK\r\n")
		default:
			fmt.Fprintf(&commands, "get %s\r\n", key)
			answer := "$-1\r\n"
			if value, ok := values[key]; ok {
				answer = string(resp.AppendBulk(nil, value))
			}
			want = append(want, answer)
		}
	}
	var sending sync.WaitGroup
	defer sending.Wait()
	sending.Go(func() { _, _ = c.Write([]byte(commands.String())) })
	for i, text := range want {
		reply, err := c.reply()
		require.NoError(t, err)
		require.Equal(t, short(text), short(reply), "command %d", i)
	}
}

// TestClusterSlotsMove moves slots while clients write. No client gets an error, each write is
// executed once, and those of one client to one key in order.
func TestClusterSlotsMove(t *testing.T) { inBothModes(t, testClusterSlotsMove) }

func testClusterSlotsMove(t *testing.T, startCluster clusterStarter) {
	t.Helper()
	servers := stack.PrivateRedisCluster(t, 3, 0)
	e := startCluster(t, servers, nil)
	const slots, clients = 8, 4
	key := func(slot, i int) string { return fmt.Sprintf("{%d}:%d", slot, i) }
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var counted [slots]atomic.Int64
	var running sync.WaitGroup
	for n := range clients {
		c := e.client(t, 2+n%2)
		running.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				slot := i % slots
				write(t, c, n, i, slot, key)
				counted[slot].Add(1)
			}
		})
	}
	random := rand.New(rand.NewPCG(1, 1))
	moves := 40
	if testing.Short() {
		moves = 10
	}
	for range moves {
		slot := cluster.Slot([]byte(key(random.IntN(slots), 0)))
		servers.MoveSlot(t, slot, servers.Nodes()[random.IntN(3)].Addr())
		before := counted[0].Load()
		require.Eventually(t, func() bool { return counted[0].Load() >= before+2 }, await.Patience, time.Millisecond, "the clients go on")
	}
	stop()
	running.Wait()
	direct := redis.NewClusterClient(&redis.ClusterOptions{Addrs: servers.Addresses()})
	defer func() { _ = direct.Close() }()
	for slot := range slots {
		for _, name := range []string{key(slot, 0), key(slot, 1), key(slot, 2)} {
			n, err := direct.Get(t.Context(), name).Int64()
			require.NoError(t, err)
			assert.Equal(t, counted[slot].Load(), n, name)
		}
		for n := range clients {
			list, err := direct.LRange(t.Context(), fmt.Sprintf("{%d}:list:%d", slot, n), 0, -1).Result()
			require.NoError(t, err)
			last := -1
			for _, text := range list {
				var i int
				_, err := fmt.Sscan(text, &i)
				require.NoError(t, err)
				require.Less(t, last, i, "the writes of a client are in order")
				last = i
			}
		}
	}
}

// write makes one write of each kind to keys of a slot: one key, in a transaction, and by a script.
func write(t *testing.T, c *redis.Client, n, i, slot int, key func(slot, i int) string) {
	t.Helper()
	ctx := context.Background()
	_, err := c.Incr(ctx, key(slot, 0)).Result()
	assert.NoError(t, err)
	_, err = c.TxPipelined(ctx, func(p redis.Pipeliner) error {
		p.Incr(ctx, key(slot, 1))
		p.RPush(ctx, fmt.Sprintf("{%d}:list:%d", slot, n), i)
		return nil
	})
	assert.NoError(t, err)
	err = c.Eval(ctx, "return redis.call('INCR', KEYS[1])", []string{key(slot, 2)}).Err()
	assert.NoError(t, err)
	got, err := c.MGet(ctx, key(slot, 0), key(slot, 1), key((slot+1)%8, 0)).Result()
	assert.NoError(t, err)
	assert.Len(t, got, 3)
}

// TestClusterSlotHalfMoved: while a slot stays half moved, its keys are where they are, and a
// command with keys on both sides waits until the slot has moved.
func TestClusterSlotHalfMoved(t *testing.T) {
	t.Parallel()
	servers := stack.PrivateRedisCluster(t, 2, 0)
	e := startCluster(t, servers, nil)
	c := e.client(t, 2)
	for i := range 20 {
		require.NoError(t, c.Set(t.Context(), fmt.Sprintf("{s}:%d", i), i, 0).Err())
	}
	slot := cluster.Slot([]byte("s"))
	to := servers.Nodes()[0].Addr()
	if servers.Owner(t, slot) == to {
		to = servers.Nodes()[1].Addr()
	}
	servers.StartMove(t, slot, to)
	servers.MoveKeys(t, slot, 10)
	for i := range 20 {
		n, err := c.Get(t.Context(), fmt.Sprintf("{s}:%d", i)).Int()
		require.NoError(t, err)
		require.Equal(t, i, n)
	}
	require.NoError(t, c.Set(t.Context(), "{s}:new", "x", 0).Err())
	answered := make(chan error, 1)
	go func() {
		var keys []string
		for i := range 20 {
			keys = append(keys, fmt.Sprintf("{s}:%d", i))
		}
		answered <- c.Del(context.Background(), keys...).Err()
	}()
	other := e.client(t, 2) // a client that waits does not hold up another
	require.NoError(t, other.Get(t.Context(), "{s}:new").Err())
	servers.EndMove(t, slot)
	require.NoError(t, <-answered)
	n, err := c.Exists(t.Context(), "{s}:0", "{s}:10", "{s}:19").Result()
	require.NoError(t, err)
	assert.Zero(t, n)
}

// TestPipelineWhileASlotIsHalfMoved: a command that waits for its slot has the reply of its turn. If
// a later write to the slot was executed, the earlier one is not any more.
func TestPipelineWhileASlotIsHalfMoved(t *testing.T) {
	t.Parallel()
	servers := stack.PrivateRedisCluster(t, 2, 0)
	c := dial(t, startCluster(t, servers, nil).addr)
	all := "del"
	for i := range 20 {
		require.Equal(t, "+OK\r\n", c.ask(t, "SET", fmt.Sprintf("{s}:%d", i), "x"))
		all += fmt.Sprintf(" {s}:%d", i)
	}
	slot := cluster.Slot([]byte("s"))
	from, to := servers.Owner(t, slot), servers.Nodes()[0].Addr()
	if from == to {
		to = servers.Nodes()[1].Addr()
	}
	servers.StartMove(t, slot, to)
	servers.MoveKeys(t, slot, 10)
	stays := 0
	direct := servers.Node(t, from).Client(t)
	for direct.Exists(t.Context(), fmt.Sprintf("{s}:%d", stays)).Val() == 0 {
		stays++
	}
	for _, command := range []string{"del {s}:new {s}:none", all} { // the former goes to the new primary, which does not run it
		c.send(t, fmt.Sprintf("%s\r\nappend {s}:%d y\r\n", command, stays))
		reply, err := c.reply()
		require.NoError(t, err)
		require.Contains(t, reply, "-TRYAGAIN ", command)
		reply, err = c.reply()
		require.NoError(t, err)
		require.Contains(t, reply, ":", command)
	}
	c.send(t, all+fmt.Sprintf("\r\nget {s}:%d\r\necho x\r\n", stays))
	servers.EndMove(t, slot)
	for _, want := range []string{":20\r\n", "$-1\r\n", "$1\r\nx\r\n"} {
		reply, err := c.reply()
		require.NoError(t, err)
		require.Equal(t, want, reply)
	}
}
