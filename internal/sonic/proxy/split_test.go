package proxy_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/cluster"
	"github.com/aviaryhq/aviary/internal/sonic/proxy"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack"
)

// names returns n keys, which are in several slots.
func names(n int) string {
	var all strings.Builder
	for i := range n {
		fmt.Fprintf(&all, " k%d", i)
	}
	return all.String()
}

// TestSplit: commands whose keys are in several slots have the replies of a single Redis.
func TestSplit(t *testing.T) { inBothModes(t, testSplit) }

func testSplit(t *testing.T, startCluster clusterStarter) {
	t.Helper()
	bare := stack.PrivateRedis(t)
	e := startCluster(t, stack.PrivateRedisCluster(t, 3, 0), func(c *proxy.Config) { c.SplitMSET = true })
	for _, hello := range []string{"2", "3"} {
		pair := both{dial(t, bare.Addr()), dial(t, e.addr)}
		for _, c := range []*connection{pair.bare, pair.proxied} {
			c.ask(t, "HELLO", hello)
		}
		pair.sameUntil(t, strings.ReplaceAll("mset a 1 b 2 c 3 a 4 d \"x y\"\nmget a b none c a d\nget a\nmset b 5 c 6\nmget b c\nmset a 1 b\nmset a 1 b 2 c\nMGET\nMGET a\n"+
			"exists a b a none\ntouch a b none d\nrpush l 1\nmget a l b\nset e 5\ndel a a none\nunlink b c b\nexists a b c d\nget d\n"+
			"mget {x}1 {x}2\nmset {x}1 v {x}2 w\nmget {x}1 {x}2 d {x}1\nget {x}2\nmget"+names(300)+"\necho last\n", "\n", "\r\n"), "last")
	}
	c := dial(t, e.addr)
	for _, words := range []string{"rename a b", "sinter a b", "msetnx a 1 b 2", "lmove a b left left", "eval x 2 a b", "sort a store b", "copy a b", "bitop not a b", "xread streams a b 0 0"} {
		require.Equal(t, "-CROSSSLOT Keys in request don't hash to the same slot\r\n", c.ask(t, strings.Fields(words)...), words)
	}
	c.ask(t, "MULTI")
	require.Equal(t, "-CROSSSLOT Keys in request don't hash to the same slot\r\n", c.ask(t, "MGET", "a", "b"))
	require.Contains(t, c.ask(t, "EXEC"), "-EXECABORT")
}

// TestMSETOfSeveralSlots is refused unless the configuration allows to split it.
func TestMSETOfSeveralSlots(t *testing.T) { inBothModes(t, testMSETOfSeveralSlots) }

func testMSETOfSeveralSlots(t *testing.T, startCluster clusterStarter) {
	t.Helper()
	e := startCluster(t, stack.PrivateRedisCluster(t, 3, 0), nil)
	c := dial(t, e.addr)
	require.Equal(t, "-CROSSSLOT Keys in request don't hash to the same slot\r\n", c.ask(t, "MSET", "a", "1", "b", "2"))
	require.Equal(t, "+OK\r\n", c.ask(t, "MSET", "{a}1", "1", "{a}2", "2"))
	require.Equal(t, "*3\r\n$1\r\n1\r\n$-1\r\n$1\r\n2\r\n", c.ask(t, "MGET", "{a}1", "b", "{a}2"))
}

// TestFailedPart: if a part fails, the client gets its error, and the other parts have their effect.
func TestFailedPart(t *testing.T) { inBothModes(t, testFailedPart) }

func testFailedPart(t *testing.T, startCluster clusterStarter) {
	t.Helper()
	redis := stack.PrivateRedisCluster(t, 3, 0)
	e := startCluster(t, redis, func(c *proxy.Config) { c.SplitMSET = true })
	full := redis.Node(t, redis.Owner(t, cluster.Slot([]byte("b")))).Client(t)
	require.NotEqual(t, redis.Owner(t, cluster.Slot([]byte("a"))), redis.Owner(t, cluster.Slot([]byte("b"))))
	require.NoError(t, full.ConfigSet(t.Context(), "maxmemory", "1").Err())
	c := dial(t, e.addr)
	require.Contains(t, c.ask(t, "MSET", "a", "1", "b", "2"), "-OOM ")
	require.Equal(t, "*2\r\n$1\r\n1\r\n$-1\r\n", c.ask(t, "MGET", "a", "b"))
}

// TestSplitWhileSlotsMove: parts follow the slots.
func TestSplitWhileSlotsMove(t *testing.T) { inBothModes(t, testSplitWhileSlotsMove) }

func testSplitWhileSlotsMove(t *testing.T, startCluster clusterStarter) {
	t.Helper()
	redis := stack.PrivateRedisCluster(t, 3, 0)
	e := startCluster(t, redis, func(c *proxy.Config) { c.SplitMSET = true })
	c := dial(t, e.addr)
	require.Equal(t, "+OK\r\n", c.ask(t, "MSET", "{a}1", "1", "b", "2", "{a}2", "3", "c", "4"))
	want := "*4\r\n$1\r\n1\r\n$1\r\n2\r\n$1\r\n3\r\n$1\r\n4\r\n"
	slot := cluster.Slot([]byte("a"))
	for _, to := range redis.Addresses() {
		if to == redis.Owner(t, slot) {
			continue
		}
		redis.StartMove(t, slot, to)
		require.Equal(t, want, c.ask(t, "MGET", "{a}1", "b", "{a}2", "c"))
		require.Equal(t, 1, redis.MoveKeys(t, slot, 1))
		c.send(t, "mget {a}1 b {a}2 c\r\n") // the part of {a} has to wait, for its keys are at two primaries
		redis.EndMove(t, slot)
		reply, err := c.reply()
		require.NoError(t, err)
		require.Equal(t, want, reply)
	}
}

// TestCommandsBehindOneThatWaits: a command that waits for slots which move, and is tried again and
// again, gets no error when the client sends further ones meanwhile.
func TestCommandsBehindOneThatWaits(t *testing.T) { inBothModes(t, testCommandsBehindOneThatWaits) }

func testCommandsBehindOneThatWaits(t *testing.T, startCluster clusterStarter) {
	t.Helper()
	redis := stack.PrivateRedisCluster(t, 3, 0)
	e := startCluster(t, redis, func(c *proxy.Config) { c.SplitMSET = true })
	c := dial(t, e.addr)
	require.Equal(t, "+OK\r\n", c.ask(t, "MSET", "{a}1", "1", "{a}2", "2", "{b}1", "3", "{b}2", "4"))
	slots := []int{cluster.Slot([]byte("a")), cluster.Slot([]byte("b"))}
	from := make([]string, len(slots))
	for i, slot := range slots {
		from[i] = redis.Owner(t, slot)
		redis.StartMove(t, slot, redis.Nodes()[slices.IndexFunc(redis.Nodes(), func(srv *stack.RedisServer) bool { return srv.Addr() != from[i] })].Addr())
		require.Equal(t, 1, redis.MoveKeys(t, slot, 1))
	}
	nodes := map[string]*goredis.Client{}
	for _, address := range from {
		nodes[address] = redis.Node(t, address).Client(t)
	}
	refused := func(address string) (n int) {
		stats, err := nodes[address].Info(t.Context(), "errorstats").Result()
		require.NoError(t, err)
		if _, after, found := strings.Cut(stats, "errorstat_TRYAGAIN:count="); found {
			n, err = strconv.Atoi(strings.TrimSpace(strings.SplitN(after, "\n", 2)[0]))
			require.NoError(t, err)
		}
		return n
	}
	tried := func(times int, addresses ...string) {
		for _, address := range addresses {
			before := refused(address)
			require.Eventually(t, func() bool { return refused(address) >= before+times }, await.Patience, time.Millisecond)
		}
	}
	c.send(t, "mset {a}1 5 {b}1 6 {a}2 7 {b}2 8\r\n")
	tried(1, from...)
	c.send(t, "get {a}1\r\nset {b}2 9\r\nmget {b}2 {a}2\r\n")
	tried(3, from...)
	redis.EndMove(t, slots[0])
	tried(3, from[1])
	redis.EndMove(t, slots[1])
	for _, want := range []string{"+OK\r\n", "$1\r\n5\r\n", "+OK\r\n", "*2\r\n$1\r\n9\r\n$1\r\n7\r\n"} {
		reply, err := c.reply()
		require.NoError(t, err)
		require.Equal(t, want, reply)
	}
}

// TestSplitInOrder sends many commands at once, with several slots and with one, to a cluster and to
// a single Redis: the replies are the same, in the order of the commands.
func TestSplitInOrder(t *testing.T) { inBothModes(t, testSplitInOrder) }

func testSplitInOrder(t *testing.T, startCluster clusterStarter) {
	t.Helper()
	seed, rounds := random(t, 2000)
	source := rand.New(rand.NewPCG(seed, 0))
	e := startCluster(t, stack.PrivateRedisCluster(t, 3, 0), func(c *proxy.Config) { c.SplitMSET = true })
	pair := both{dial(t, stack.PrivateRedis(t).Addr()), dial(t, e.addr)}
	var text []byte
	for i := range rounds {
		words := []string{[]string{"mget", "mget", "del", "unlink", "exists", "touch", "mset", "get", "append", "dbsize", "echo", "strlen", "pubsub", "script"}[source.IntN(14)]}
		switch words[0] {
		case "get", "strlen":
			words = append(words, fmt.Sprint("k", source.IntN(20)))
		case "append":
			words = append(words, fmt.Sprint("k", source.IntN(20)), fmt.Sprint(i))
		case "echo":
			words = append(words, fmt.Sprint(i))
		case "dbsize":
		case "pubsub":
			words = append(words, "numsub", "a", "b")
		case "script":
			words = append(words, "exists", "a", "b")
		default:
			for range 1 + source.IntN(6) {
				words = append(words, fmt.Sprint("k", source.IntN(20)))
				if words[0] == "mset" {
					words = append(words, strings.Repeat("v", source.IntN(1000)))
				}
			}
		}
		text = resp.AppendCommand(text, words...)
	}
	pair.sameUntil(t, string(resp.AppendCommand(text, "ECHO", "last")), "last")
}
