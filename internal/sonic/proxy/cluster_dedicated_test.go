package proxy_test

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/cluster"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack"
)

// keyOf returns a key, or a channel, whose slot the primary at an address has.
func keyOf(t *testing.T, c *stack.RedisCluster, address, prefix string) string {
	t.Helper()
	for i := 0; ; i++ {
		if key := prefix + strconv.Itoa(i); c.Owner(t, cluster.Slot([]byte(key))) == address {
			return key
		}
	}
}

// moveKey moves the slot of a key to another primary.
func moveKey(t *testing.T, c *stack.RedisCluster, key string, to *stack.RedisServer) {
	t.Helper()
	c.MoveSlot(t, cluster.Slot([]byte(key)), to.Addr())
}

// awaitBlocked waits until so many clients are blocked in a Redis.
func awaitBlocked(t *testing.T, srv *stack.RedisServer, n int) {
	t.Helper()
	client := srv.Client(t)
	require.Eventually(t, func() bool {
		info, err := client.Info(t.Context(), "clients").Result()
		require.NoError(t, err)
		return strings.Contains(info, fmt.Sprintf("blocked_clients:%d\r\n", n))
	}, await.Patience, time.Millisecond)
}

func (c *connection) next(t *testing.T) string {
	t.Helper()
	reply, err := c.reply()
	require.NoError(t, err)
	return reply
}

// TestSubscriptionsInCluster compares what a client gets with what a single Redis sends.
func TestSubscriptionsInCluster(t *testing.T) { inBothModes(t, testSubscriptionsInCluster) }

func testSubscriptionsInCluster(t *testing.T, startCluster clusterStarter) {
	t.Helper()
	c := stack.PrivateRedisCluster(t, 2, 0)
	e, single := startCluster(t, c, nil), stack.PrivateRedis(t)
	one, two := keyOf(t, c, c.Addresses()[0], "s"), keyOf(t, c, c.Addresses()[1], "s")
	for _, proto := range []string{"2", "3"} {
		want, got := dial(t, single.Addr()), dial(t, e.addr)
		publishWant, publishGot := dial(t, single.Addr()), dial(t, e.addr)
		want.ask(t, "hello", proto)
		got.ask(t, "hello", proto)
		for _, step := range []struct {
			publish bool
			command string
			replies int
		}{
			{false, "unsubscribe", 1}, {false, "sunsubscribe", 1},
			{false, "subscribe a b a", 3}, {false, "psubscribe x* y*", 2}, {false, "ssubscribe " + one, 1},
			{false, "ssubscribe " + two + " " + two, 2}, {false, "ssubscribe " + one, 1}, {false, "ping", 1}, {false, "ping hi", 1}, {false, "get none", 1},
			{true, "publish a m", 1}, {true, "publish xx m", 1}, {true, "spublish " + one + " m", 1}, {true, "spublish " + two + " m", 1},
			{false, "sunsubscribe " + one, 1}, {true, "spublish " + one + " m", 0}, {false, "sunsubscribe none", 1}, {false, "unsubscribe a", 1},
			{true, "publish a m", 0}, {false, "unsubscribe", 1}, {false, "punsubscribe x* y* z*", 3}, {true, "publish xx m", 0},
			{true, "spublish " + two + " m", 1}, {false, "sunsubscribe", 1}, {false, "sunsubscribe", 1}, {false, "punsubscribe", 1},
			{true, "spublish " + two + " m", 0}, {false, "get none", 1}, {false, "subscribe a", 1}, {true, "publish a m", 1}, {false, "reset", 1},
			{true, "publish a m", 0}, {false, "get none", 1},
		} {
			if step.publish {
				publishWant.ask(t, strings.Fields(step.command)...)
				publishGot.ask(t, strings.Fields(step.command)...)
			} else {
				want.send(t, step.command+"\r\n")
				got.send(t, step.command+"\r\n")
			}
			for range step.replies {
				assert.Equal(t, want.next(t), got.next(t), "%s, RESP%s", step.command, proto)
			}
		}
	}
	x := dial(t, e.addr)
	assert.Contains(t, x.ask(t, "ssubscribe", one, two), "-CROSSSLOT ")
	assert.Contains(t, x.ask(t, "sunsubscribe", one, two), "-CROSSSLOT ")
}

// TestMessagesInClusterBetweenReplies: a client of RESP3 may run commands while messages arrive, also
// in another protocol than before.
func TestMessagesInClusterBetweenReplies(t *testing.T) {
	t.Parallel()
	c := stack.PrivateRedisCluster(t, 2, 0)
	e := startCluster(t, c, nil)
	sub, pub := dial(t, e.addr), dial(t, e.addr)
	keys := []string{keyOf(t, c, c.Addresses()[0], "k"), keyOf(t, c, c.Addresses()[1], "k")}
	value := strings.Repeat("v", 100_000)
	for _, key := range keys {
		require.Equal(t, "+OK\r\n", pub.ask(t, "set", key, value))
	}
	sub.ask(t, "hello", "3")
	const rounds = 100
	sub.send(t, "get "+keys[0]+"\r\nsubscribe a\r\nssubscribe "+keys[1]+"\r\n")
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		for range rounds {
			_, _ = pub.Write([]byte("publish a m\r\nspublish " + keys[1] + " m\r\n"))
			_, _ = sub.Write([]byte("get " + keys[0] + "\r\nget " + keys[1] + "\r\n"))
		}
	}()
	counts := map[string]int{}
	for values := 0; values < 2*rounds+1; values = counts["$100000"] {
		head, _, _ := strings.Cut(sub.next(t), "\r\n")
		counts[head]++
	}
	<-sent
	assert.Equal(t, 0, counts["*3"])
	assert.NotZero(t, counts[">3"])
	require.Contains(t, sub.ask(t, "hello", "2"), "*14\r\n")
}

func TestShardChannelsMove(t *testing.T) {
	t.Parallel()
	c := stack.PrivateRedisCluster(t, 2, 0)
	e := startCluster(t, c, nil)
	stays, moves := keyOf(t, c, c.Addresses()[0], "s"), keyOf(t, c, c.Addresses()[1], "s")
	pub, subs := dial(t, e.addr), []*connection{dial(t, e.addr), dial(t, e.addr)}
	for i, sub := range subs {
		sub.ask(t, "hello", strconv.Itoa(2+i))
		sub.ask(t, "ssubscribe", stays)
		assert.Contains(t, sub.ask(t, "ssubscribe", moves), ":2\r\n")
	}
	moveKey(t, c, moves, c.Nodes()[0])
	moved := c.Nodes()[0].Client(t)
	require.Eventually(t, func() bool {
		n, err := moved.PubSubShardNumSub(t.Context(), moves).Result()
		return err == nil && n[moves] == int64(len(subs))
	}, await.Patience, time.Millisecond)
	assert.Equal(t, ":2\r\n", pub.ask(t, "spublish", moves, "m"))
	for i, sub := range subs {
		message := fmt.Sprintf("3\r\n$8\r\nsmessage\r\n$%d\r\n%s\r\n$1\r\nm\r\n", len(moves), moves)
		assert.Equal(t, string("*>"[i])+message, sub.next(t), "nothing else since")
		assert.Contains(t, sub.ask(t, "ssubscribe", moves), ":2\r\n")
		assert.Contains(t, sub.ask(t, "sunsubscribe", moves), ":1\r\n")
		assert.Contains(t, sub.ask(t, "sunsubscribe"), ":0\r\n")
	}
	assert.Equal(t, ":0\r\n", pub.ask(t, "spublish", moves, "m"))
	moveKey(t, c, moves, c.Nodes()[1])
	assert.Contains(t, subs[0].ask(t, "ssubscribe", moves), ":1\r\n", "a MOVED is followed")
}

func TestWatchInCluster(t *testing.T) { inBothModes(t, testWatchInCluster) }

func testWatchInCluster(t *testing.T, startCluster clusterStarter) {
	t.Helper()
	cl := stack.PrivateRedisCluster(t, 2, 0)
	e := startCluster(t, cl, nil)
	k, other := keyOf(t, cl, cl.Addresses()[0], "k"), keyOf(t, cl, cl.Addresses()[1], "k")
	c, d := dial(t, e.addr), dial(t, e.addr)
	asks := func(command string, want string) {
		t.Helper()
		assert.Equal(t, want, c.ask(t, strings.Fields(command)...), command)
	}
	for range 2 { // the connection serves again
		asks("watch "+k, "+OK\r\n")
		asks("set "+other+" 1", "+OK\r\n")
		asks("multi", "+OK\r\n")
		asks("set "+k+" 1", "+QUEUED\r\n")
		asks("exec", "*1\r\n+OK\r\n")
		asks("watch "+k, "+OK\r\n")
		d.ask(t, "set", k, "2")
		asks("get "+k, "$1\r\n2\r\n")
		asks("multi", "+OK\r\n")
		asks("set "+k+" 3", "+QUEUED\r\n")
		asks("exec", "*-1\r\n")
		asks("get "+k, "$1\r\n2\r\n")
	}
	for _, end := range []string{"unwatch", "multi discard", "multi exec", "reset"} {
		asks("watch "+k, "+OK\r\n")
		for _, command := range strings.Fields(end) {
			c.ask(t, command)
		}
		d.ask(t, "set", k, "2")
		asks("multi", "+OK\r\n")
		asks("set "+k+" 3", "+QUEUED\r\n")
		asks("exec", "*1\r\n+OK\r\n")
	}
	asks("watch "+k, "+OK\r\n")
	assert.Contains(t, c.ask(t, "hello", "3"), "%7\r\n")
	asks("multi", "+OK\r\n")
	asks("hgetall none{"+k+"}", "+QUEUED\r\n")
	asks("exec", "*1\r\n%0\r\n")
	asks("watch "+k, "+OK\r\n")
	asks("watch "+other, "-CROSSSLOT Keys in request don't hash to the same slot\r\n")
	asks("multi", "+OK\r\n")
	asks("get "+other, "-CROSSSLOT Keys in request don't hash to the same slot\r\n")
	asks("exec", "-EXECABORT Transaction discarded because of previous errors.\r\n")
	asks("watch "+other, "+OK\r\n")
	asks("multi", "+OK\r\n")
	asks("hgetall "+other+"{"+other+"}", "+QUEUED\r\n")
	d.ask(t, "set", other, "3")
	asks("exec", "_\r\n")
	asks("reset", "+RESET\r\n")

	c.send(t, fmt.Sprintf("set %s 1\r\nwatch %s\r\nget %s\r\nmulti\r\nincr %s\r\nexec\r\nget %s\r\n", k, k, k, k, k))
	for _, want := range []string{"+OK\r\n", "+OK\r\n", "$1\r\n1\r\n", "+OK\r\n", "+QUEUED\r\n", "*1\r\n:2\r\n", "$1\r\n2\r\n"} {
		assert.Equal(t, want, c.next(t))
	}
	c.send(t, fmt.Sprintf("watch %s\r\nset %s 5\r\nmulti\r\nincr %s\r\nexec\r\nget %s\r\n", k, k, k, k))
	for _, want := range []string{"+OK\r\n", "+OK\r\n", "+OK\r\n", "+QUEUED\r\n", "*-1\r\n", "$1\r\n5\r\n"} {
		assert.Equal(t, want, c.next(t), "own writes count")
	}
	// Redis takes longer to read a long value than what comes by another connection meanwhile.
	long := strings.Repeat("v", 16<<20)
	set := string(resp.AppendCommand(nil, "set", k, long))
	c.send(t, "watch "+k+"\r\n"+set+"multi\r\nstrlen "+k+"\r\nexec\r\n")
	for _, want := range []string{"+OK\r\n", "+OK\r\n", "+OK\r\n", "+QUEUED\r\n", "*-1\r\n"} {
		assert.Equal(t, want, c.next(t), "EXEC waits for earlier writes")
	}
	asks("del "+k, ":1\r\n")
	c.send(t, "watch "+k+"\r\nmulti\r\n"+set+"exec\r\nstrlen "+k+"\r\n")
	for _, want := range []string{"+OK\r\n", "+OK\r\n", "+QUEUED\r\n", "*1\r\n+OK\r\n", fmt.Sprintf(":%d\r\n", len(long))} {
		assert.Equal(t, want, c.next(t), "later commands wait for EXEC")
	}
}

func TestWatchedSlotMoves(t *testing.T) { inBothModes(t, testWatchedSlotMoves) }

func testWatchedSlotMoves(t *testing.T, startCluster clusterStarter) {
	t.Helper()
	cl := stack.PrivateRedisCluster(t, 2, 0)
	e := startCluster(t, cl, nil)
	c := dial(t, e.addr)
	for i, command := range []string{"get", "incr"} {
		k := keyOf(t, cl, cl.Addresses()[i], command) // it does not exist: Redis does not see it change
		require.Equal(t, "+OK\r\n", c.ask(t, "watch", k))
		moveKey(t, cl, k, cl.Nodes()[1-i])
		require.Equal(t, "+OK\r\n", c.ask(t, "multi"))
		require.Equal(t, "+QUEUED\r\n", c.ask(t, command, k))
		require.Equal(t, "*-1\r\n", c.ask(t, "exec"))
		require.Equal(t, "+OK\r\n", c.ask(t, "watch", k))
		require.Equal(t, "+OK\r\n", c.ask(t, "multi"))
		require.Equal(t, "+QUEUED\r\n", c.ask(t, command, k))
		require.Contains(t, c.ask(t, "exec"), "*1\r\n")
		// A second WATCH finds that the slot has moved.
		require.Equal(t, "+OK\r\n", c.ask(t, "watch", k))
		moveKey(t, cl, k, cl.Nodes()[i])
		require.Equal(t, "+OK\r\n", c.ask(t, "watch", k))
		require.Equal(t, "+OK\r\n", c.ask(t, "multi"))
		require.Equal(t, "+QUEUED\r\n", c.ask(t, command, k))
		require.Equal(t, "*-1\r\n", c.ask(t, "exec"))
	}
}

func TestBlockingInCluster(t *testing.T) {
	t.Parallel()
	cl := stack.PrivateRedisCluster(t, 2, 0)
	e := startCluster(t, cl, nil)
	c, d := dial(t, e.addr), dial(t, e.addr)
	for i, srv := range cl.Nodes() {
		k := keyOf(t, cl, cl.Addresses()[i], "k")
		for _, command := range []struct{ block, serve, want string }{
			{"blpop K 0", "rpush K x", "*2\r\n$KL\r\nK\r\n$1\r\nx\r\n"},
			{"blmove K {K} left left 0", "rpush K x", "$1\r\nx\r\n"},
			{"bzmpop 0 1 z{K} min", "zadd z{K} 1 x", "*2\r\n$ZL\r\nz{K}\r\n*1\r\n*2\r\n$1\r\nx\r\n$1\r\n1\r\n"},
			{"xread count 1 block 0 streams x{K} $", "xadd x{K} 1-1 a b", "*1\r\n*2\r\n$ZL\r\nx{K}\r\n*1\r\n*2\r\n$3\r\n1-1\r\n*2\r\n$1\r\na\r\n$1\r\nb\r\n"},
		} {
			fill := strings.NewReplacer("KL", strconv.Itoa(len(k)), "ZL", strconv.Itoa(len(k)+3), "K", k)
			c.send(t, fill.Replace(command.block)+"\r\nping\r\n")
			awaitBlocked(t, srv, 1)
			d.ask(t, strings.Fields(fill.Replace(command.serve))...)
			assert.Equal(t, fill.Replace(command.want), c.next(t), command.block)
			assert.Equal(t, "+PONG\r\n", c.next(t))
		}
		assert.Equal(t, "*-1\r\n", c.ask(t, "blpop", "none{"+k+"}", "0.001"))
		assert.Equal(t, "*-1\r\n", c.ask(t, "xread", "block", "1", "streams", "none{"+k+"}", "$"))
		assert.Contains(t, c.ask(t, "blpop", k, "-1"), "-ERR timeout is negative")
		assert.Contains(t, c.ask(t, "xread", "block", "-1", "streams", k, "$"), "-ERR timeout is negative")
		// It sees what the client itself has sent before.
		c.send(t, with(k, "rpush K y\r\nblpop K 0\r\nllen K\r\n"))
		assert.Equal(t, ":1\r\n", c.next(t))
		assert.Contains(t, c.next(t), "$1\r\ny\r\n")
		assert.Equal(t, ":0\r\n", c.next(t))
		c.send(t, with(k, "multi\r\nblpop K 0\r\nexec\r\n"))
		assert.Equal(t, []string{"+OK\r\n", "+QUEUED\r\n", "*1\r\n*-1\r\n"}, []string{c.next(t), c.next(t), c.next(t)})
	}
	assert.Contains(t, c.ask(t, "blpop", keyOf(t, cl, cl.Addresses()[0], "k"), keyOf(t, cl, cl.Addresses()[1], "k"), "0"), "-CROSSSLOT ")
}

func with(key, text string) string { return strings.ReplaceAll(text, "K", key) }

func TestBlockedSlotMoves(t *testing.T) {
	t.Parallel()
	cl := stack.PrivateRedisCluster(t, 2, 0)
	e := startCluster(t, cl, nil)
	from, to := cl.Nodes()[0], cl.Nodes()[1]
	k := keyOf(t, cl, from.Addr(), "k")
	pop, read, late, pusher := dial(t, e.addr), dial(t, e.addr), dial(t, e.addr), dial(t, e.addr)
	late.ask(t, "hello", "3")
	pop.send(t, with(k, "brpop K l{K} 3600\r\nping\r\n"))
	read.send(t, with(k, "xread block 3600000 streams x{K} 0\r\nping\r\n"))
	late.send(t, with(k, "blmpop 2 1 none{K} left\r\nping\r\n"))
	awaitBlocked(t, from, 3)
	log := to.Client(t)
	require.NoError(t, log.ConfigSet(t.Context(), "slowlog-log-slower-than", "0").Err())
	require.NoError(t, log.ConfigSet(t.Context(), "slowlog-max-len", "1000000").Err())
	moveKey(t, cl, k, to)
	awaitBlocked(t, from, 0)
	assert.Equal(t, "_\r\n", late.next(t))
	assert.Equal(t, "+PONG\r\n", late.next(t))
	awaitBlocked(t, to, 2)
	assert.Equal(t, ":1\r\n", pusher.ask(t, "rpush", "l{"+k+"}", "x"))
	assert.Contains(t, pop.next(t), "$1\r\nx\r\n")
	assert.Equal(t, "+PONG\r\n", pop.next(t))
	assert.Equal(t, "$3\r\n1-1\r\n", pusher.ask(t, "xadd", "x{"+k+"}", "1-1", "a", "b"))
	assert.Contains(t, read.next(t), "$3\r\n1-1\r\n")
	assert.Equal(t, "+PONG\r\n", read.next(t))
	entries, err := log.SlowLogGet(t.Context(), -1).Result()
	require.NoError(t, err)
	var left []string
	for _, entry := range entries {
		switch entry.Args[0] {
		case "brpop":
			left = append(left, entry.Args[3])
		case "xread":
			left = append(left, entry.Args[2])
		}
	}
	require.Len(t, left, 2)
	assert.Less(t, left[0], "3600")
	assert.Less(t, left[1], "3600000")
}

// TestBlockedDuringMove: a key that is gone from a slot that moves is found at the next primary.
func TestBlockedDuringMove(t *testing.T) {
	t.Parallel()
	cl := stack.PrivateRedisCluster(t, 2, 0)
	e := startCluster(t, cl, nil)
	from, to := cl.Nodes()[0], cl.Nodes()[1]
	k := keyOf(t, cl, from.Addr(), "k")
	slot := cluster.Slot([]byte(k))
	cl.StartMove(t, slot, to.Addr())
	pop, pusher := dial(t, e.addr), dial(t, e.addr)
	pop.send(t, with(k, "blpop K 0\r\n"))
	awaitBlocked(t, to, 1)
	assert.Equal(t, ":1\r\n", pusher.ask(t, "rpush", k, "x"))
	assert.Contains(t, pop.next(t), "$1\r\nx\r\n")
	cl.EndMove(t, slot)
}

func TestGoneWhileBlockedInCluster(t *testing.T) {
	t.Parallel()
	cl := stack.PrivateRedisCluster(t, 2, 0)
	e := startCluster(t, cl, nil)
	k := keyOf(t, cl, cl.Addresses()[0], "k")
	srv := cl.Nodes()[0].Client(t)
	connections := func() int {
		all, err := srv.ClientList(t.Context()).Result()
		require.NoError(t, err)
		return strings.Count(all, "name=sonic")
	}
	c, d := dial(t, e.addr), dial(t, e.addr)
	require.Equal(t, "$-1\r\n", d.ask(t, "get", k))
	before := connections()
	require.Equal(t, "+OK\r\n", c.ask(t, "watch", k))
	c.ask(t, "hello", "3")
	c.ask(t, "ssubscribe", k)
	require.Equal(t, before+2, connections())
	c.ask(t, "sunsubscribe", k)
	require.Eventually(t, func() bool { return connections() == before+1 }, await.Patience, time.Millisecond)
	c.ask(t, "ssubscribe", k)
	c.send(t, with(k, "blpop K 0\r\n"))
	awaitBlocked(t, cl.Nodes()[0], 1)
	require.Equal(t, before+3, connections())
	require.NoError(t, c.Close())
	require.Eventually(t, func() bool { return connections() == before }, await.Patience, time.Millisecond)
	require.Equal(t, ":1\r\n", d.ask(t, "rpush", k, "x"))
	require.Equal(t, ":1\r\n", d.ask(t, "llen", k), "nobody took it")
}

func TestUnblockInCluster(t *testing.T) {
	t.Parallel()
	cl := stack.PrivateRedisCluster(t, 2, 0)
	e := startCluster(t, cl, nil)
	k := keyOf(t, cl, cl.Addresses()[1], "k")
	c, d := dial(t, e.addr), dial(t, e.addr)
	id := strings.Trim(c.ask(t, "client", "id"), ":\r\n")
	for _, command := range []string{"blpop K 0\r\n", "xread block 0 streams K $\r\n"} {
		c.send(t, with(k, command))
		awaitBlocked(t, cl.Nodes()[1], 1)
		require.Equal(t, ":1\r\n", d.ask(t, "client", "unblock", id))
		require.Equal(t, "*-1\r\n", c.next(t))
		c.send(t, with(k, command))
		awaitBlocked(t, cl.Nodes()[1], 1)
		require.Equal(t, ":1\r\n", d.ask(t, "client", "unblock", id, "error"))
		require.Equal(t, "-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n", c.next(t))
		require.Equal(t, ":0\r\n", d.ask(t, "client", "unblock", id))
	}
	assert.Contains(t, d.ask(t, "client", "tracking", "on"), "-ERR Sonic refuses 'client|tracking' in front of a Redis Cluster: ")
	assert.Equal(t, "+OK\r\n", d.ask(t, "client", "tracking", "off"))
}

// TestOwnConnectionsFailover: the primary that a client's own connections lead to hands over to its
// replica.
func TestOwnConnectionsFailover(t *testing.T) {
	t.Parallel()
	cl := stack.PrivateRedisCluster(t, 3, 1)
	e := startCluster(t, cl, nil)
	subs, on := subscribeAll(t, e, cl, 3)
	from, to := cl.Nodes()[on], cl.Nodes()[3+on]
	k := keyOf(t, cl, from.Addr(), "k")
	pop, read, sub, watch, pub := dial(t, e.addr), dial(t, e.addr), dial(t, e.addr), dial(t, e.addr), dial(t, e.addr)
	require.Contains(t, sub.ask(t, "ssubscribe", k), ":1\r\n")
	require.Equal(t, "+OK\r\n", watch.ask(t, "watch", k))
	pop.send(t, with(k, "brpop l{K} 0\r\n"))
	read.send(t, with(k, "xread block 0 streams x{K} 0\r\n"))
	awaitBlocked(t, from, 2)
	require.NoError(t, to.Client(t).ClusterFailover(t.Context()).Err())
	awaitBlocked(t, to, 2)
	require.Equal(t, ":1\r\n", pub.ask(t, "rpush", "l{"+k+"}", "x"))
	require.Contains(t, pop.next(t), "$1\r\nx\r\n")
	require.Equal(t, "$3\r\n1-1\r\n", pub.ask(t, "xadd", "x{"+k+"}", "1-1", "a", "b"))
	require.Contains(t, read.next(t), "$3\r\n1-1\r\n")
	moved := to.Client(t)
	require.Eventually(t, func() bool {
		n, err := moved.PubSubShardNumSub(t.Context(), k).Result()
		return err == nil && n[k] == 1
	}, await.Patience, time.Millisecond)
	require.Equal(t, ":1\r\n", pub.ask(t, "spublish", k, "m"))
	require.Contains(t, sub.next(t), "smessage")
	for _, want := range []string{"*-1\r\n", "*1\r\n:1\r\n"} {
		require.Equal(t, "+OK\r\n", watch.ask(t, "multi"))
		require.Equal(t, "+QUEUED\r\n", watch.ask(t, "incr", k))
		require.Equal(t, want, watch.ask(t, "exec"))
	}
	assertEnded(t, e, subs, pub)
}

// TestOwnConnectionsLost: the primary that a client's own connections lead to ends.
func TestOwnConnectionsLost(t *testing.T) {
	t.Parallel()
	cl := stack.PrivateRedisCluster(t, 3, 1)
	e := startCluster(t, cl, nil)
	subs, on := subscribeAll(t, e, cl, 3)
	from, to := cl.Nodes()[on], cl.Nodes()[3+on]
	k := keyOf(t, cl, from.Addr(), "k")
	pop, read, watch, shard, pub := dial(t, e.addr), dial(t, e.addr), dial(t, e.addr), dial(t, e.addr), dial(t, e.addr)
	require.Contains(t, shard.ask(t, "ssubscribe", k), ":1\r\n")
	require.Equal(t, "+OK\r\n", watch.ask(t, "watch", k))
	pop.send(t, with(k, "brpop l{K} 0\r\nping\r\n"))
	read.send(t, with(k, "xread block 0 streams x{K} 0\r\n"))
	awaitBlocked(t, from, 2)
	require.NoError(t, from.Kill())
	assert.Contains(t, pop.next(t), "-ERR the connection to Redis was lost while this command ran")
	assert.Equal(t, "+PONG\r\n", pop.next(t))
	_, err := shard.reply()
	assert.ErrorIs(t, err, io.EOF)
	// WATCH waits for the next primary.
	require.Equal(t, "+OK\r\n", watch.ask(t, "multi"))
	require.Equal(t, "+QUEUED\r\n", watch.ask(t, "incr", k))
	require.Equal(t, "*-1\r\n", watch.ask(t, "exec"))
	require.Equal(t, "+OK\r\n", watch.ask(t, "watch", k))
	require.Equal(t, "+OK\r\n", watch.ask(t, "multi"))
	require.Equal(t, "+QUEUED\r\n", watch.ask(t, "incr", k))
	require.Equal(t, "*1\r\n:1\r\n", watch.ask(t, "exec"))
	awaitBlocked(t, to, 1)
	require.Equal(t, "$3\r\n1-1\r\n", pub.ask(t, "xadd", "x{"+k+"}", "1-1", "a", "b"))
	require.Contains(t, read.next(t), "$3\r\n1-1\r\n")
	require.Equal(t, "+OK\r\n", pub.ask(t, "set", k, "1"))
	assertEnded(t, e, subs, pub)
}

// subscribeAll returns clients with a subscription each, and which of the primaries they are on.
func subscribeAll(t *testing.T, e *endpoint, cl *stack.RedisCluster, primaries int) (subs []*connection, on int) {
	t.Helper()
	for range 3 {
		subs = append(subs, dial(t, e.addr))
	}
	for _, sub := range subs {
		require.Contains(t, sub.ask(t, "subscribe", "a"), ":1\r\n")
	}
	on = slices.IndexFunc(cl.Nodes()[:primaries], func(srv *stack.RedisServer) bool {
		n, err := srv.Client(t).PubSubNumSub(t.Context(), "a").Result()
		require.NoError(t, err)
		return n["a"] == int64(len(subs))
	})
	require.GreaterOrEqual(t, on, 0, "all are on one primary, so that PUBLISH counts them")
	return subs, on
}

// assertEnded: clients whose subscriptions may have missed messages notice, and PUBLISH counts the
// next ones.
func assertEnded(t *testing.T, e *endpoint, subs []*connection, pub *connection) {
	t.Helper()
	for _, sub := range subs {
		_, err := sub.reply()
		assert.ErrorIs(t, err, io.EOF)
	}
	next := dial(t, e.addr)
	require.Contains(t, next.ask(t, "subscribe", "a"), ":1\r\n")
	assert.Equal(t, ":1\r\n", pub.ask(t, "publish", "a", "m"))
	assert.Contains(t, next.next(t), "message")
}
