package proxy_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"strconv"
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
	"github.com/aviaryhq/aviary/internal/sonic/script"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack"
)

// effects returns what the stream of effects of the slot of a key holds: entries, and all effects.
func effects(t *testing.T, servers *stack.RedisCluster, key string) (entries int, all string) {
	t.Helper()
	slot := cluster.Slot([]byte(key))
	client := servers.Node(t, servers.Owner(t, slot)).Client(t)
	list, err := client.XRange(t.Context(), script.SlotKeys(slot).Outbox, "-", "+").Result()
	require.NoError(t, err)
	var text strings.Builder
	for _, entry := range list {
		text.WriteString(entry.Values["e"].(string))
	}
	return len(list), text.String()
}

// other returns the address of another primary than the one that has a slot.
func other(t *testing.T, servers *stack.RedisCluster, slot int) string {
	t.Helper()
	if to := servers.Nodes()[0].Addr(); to != servers.Owner(t, slot) {
		return to
	}
	return servers.Nodes()[1].Addr()
}

// TestShardsRecordEffects: each kind of write has its effect in the stream of the slot of its keys.
func TestShardsRecordEffects(t *testing.T) {
	t.Parallel()
	servers := stack.PrivateRedisCluster(t, 3, 0)
	e := startShards(t, servers, func(cfg *proxy.Config) { cfg.SplitMSET = true })
	for _, hello := range []string{"2", "3"} {
		c := dial(t, e.addr)
		c.ask(t, "HELLO", hello)
		at := func(key, want string) {
			t.Helper()
			_, all := effects(t, servers, key)
			require.Contains(t, all, want+hello)
		}
		require.Equal(t, "+OK\r\n", c.ask(t, "SET", "a", "single"+hello))
		at("a", "single")
		large := strings.Repeat("x", 20<<10)
		require.Equal(t, "+OK\r\n", c.ask(t, "SET", "a", large+"alone"+hello))
		at("a", "alone")
		require.Equal(t, "+OK\r\n", c.ask(t, "MSET", "b", "split"+hello, "c", "split"+hello, "d", "split"+hello))
		for _, key := range []string{"b", "c", "d"} {
			at(key, "split")
		}
		require.Equal(t, ":3\r\n", c.ask(t, "DEL", "b", "c", "d", "none"))
		var text strings.Builder
		for i := range 200 {
			fmt.Fprintf(&text, "set k%d pipe%d;%s\r\n", i, i, hello)
		}
		for _, reply := range c.pipelined(t, 200, text.String()) {
			require.Equal(t, "+OK\r\n", reply)
		}
		for i := range 200 {
			at(fmt.Sprint("k", i), fmt.Sprintf("pipe%d;", i))
		}
		require.Equal(t, "+OK\r\n", c.ask(t, "MULTI"))
		require.Equal(t, "+QUEUED\r\n", c.ask(t, "SET", "{t}1", "tx"+hello))
		require.Equal(t, "+QUEUED\r\n", c.ask(t, "EVAL", "redis.call('SET', KEYS[1], ARGV[1]) return 7", "1", "{t}2", "txscript"+hello))
		require.Equal(t, "+QUEUED\r\n", c.ask(t, "GET", "{t}1"))
		require.Equal(t, "*3\r\n+OK\r\n:7\r\n$3\r\ntx"+hello+"\r\n", c.ask(t, "EXEC"))
		at("{t}1", "tx")
		at("{t}1", "txscript")
		require.Equal(t, ":8\r\n", c.ask(t, "EVAL", "redis.call('SET', KEYS[1], ARGV[1]) return 8", "1", "s", "script"+hello))
		at("s", "script")
		require.Contains(t, c.ask(t, "EVAL", "return redis.call('INCR', KEYS[1])", "1", "s"), "-ERR value is not an integer")
		require.Contains(t, c.ask(t, "EVALSHA", "0123456789012345678901234567890123456789", "1", "s"), "-NOSCRIPT")
		require.Equal(t, ":9\r\n", c.ask(t, "EVAL", "return 9", "0"))
		require.Equal(t, ":1\r\n", c.ask(t, "RPUSH", "l", "pushed"+hello))
		require.Equal(t, "*2\r\n$1\r\nl\r\n$7\r\npushed"+hello+"\r\n", c.ask(t, "BLPOP", "l", "0"))
		require.Contains(t, c.ask(t, "SET", "a"), "-ERR wrong number of arguments for 'set'")
		require.Contains(t, c.ask(t, "LMPOP", "x", "l", "LEFT"), "-ERR numkeys should be greater than 0")
		require.Contains(t, c.ask(t, "FLUSHALL"), "-ERR Sonic refuses 'flushall': flush is not supported in front of a Redis Cluster with other zones yet")
		require.Contains(t, c.ask(t, "FLUSHDB"), "flush is not supported in front of a Redis Cluster with other zones yet")
	}
}

// TestShardsHideTheirState: clients see no keys of Sonic, and not its library.
func TestShardsHideTheirState(t *testing.T) {
	t.Parallel()
	servers := stack.PrivateRedisCluster(t, 3, 0)
	e := startShards(t, servers, nil)
	c := dial(t, e.addr)
	require.Equal(t, "$-1\r\n", c.ask(t, "RANDOMKEY"))
	require.Equal(t, ":0\r\n", c.ask(t, "DBSIZE"))
	for i := range 300 {
		require.Equal(t, "+OK\r\n", c.ask(t, "SET", fmt.Sprint("k", i), "v"))
	}
	require.Equal(t, ":300\r\n", c.ask(t, "DBSIZE"))
	require.Len(t, elements(t, c.ask(t, "KEYS", "*")), 300)
	for i := 1; i < 300; i++ {
		require.Equal(t, ":1\r\n", c.ask(t, "DEL", fmt.Sprint("k", i)))
	}
	require.Equal(t, ":1\r\n", c.ask(t, "DBSIZE"))
	for range 10 {
		require.Equal(t, "$2\r\nk0\r\n", c.ask(t, "RANDOMKEY"))
	}
	require.Contains(t, c.ask(t, "GET", "{sonic:1}out"), "-NOPERM ")
	library := "#!lua name=lib\nredis.register_function('name', function(keys) return keys[1] end)"
	require.Equal(t, "+OK\r\n", c.ask(t, "FUNCTION", "FLUSH"))
	require.Equal(t, "$3\r\nlib\r\n", c.ask(t, "FUNCTION", "LOAD", library))
	require.Equal(t, "$1\r\na\r\n", c.ask(t, "FCALL", "name", "1", "a"))
	require.NotContains(t, c.ask(t, "FUNCTION", "LIST"), "sonic")
	require.Equal(t, "+OK\r\n", c.ask(t, "FUNCTION", "FLUSH"))
	require.Equal(t, "*0\r\n", c.ask(t, "FUNCTION", "LIST"))
	require.Equal(t, "+OK\r\n", c.ask(t, "SET", "a", "the library is there"))
}

// TestShardsHalfMoved: while a slot stays half moved, its writes wait and its reads do not. The
// replies of a client are in order, each write has one effect, and a script runs only when what it
// does can be recorded.
func TestShardsHalfMoved(t *testing.T) {
	t.Parallel()
	servers := stack.PrivateRedisCluster(t, 2, 0)
	e := startShards(t, servers, nil)
	c := dial(t, e.addr)
	for i := range 20 {
		require.Equal(t, "+OK\r\n", c.ask(t, "SET", fmt.Sprintf("{s}:%d", i), fmt.Sprint(i)))
	}
	slot := cluster.Slot([]byte("s"))
	to := other(t, servers, slot)
	servers.StartMove(t, slot, to)
	clients := map[string]*connection{}
	want := map[string]string{
		"set {s}:0 single;\r\nget {s}:0\r\nset elsewhere x\r\nget elsewhere\r\nincr {s}:n\r\nincr {s}:n\r\nget {s}:n\r\n":      "+OK $7 single; +OK $1 x :1 :2 $1 2",
		"multi\r\nset {s}:1 tx;\r\nget {s}:1\r\nexec\r\nget {s}:1\r\n":                                                         "+OK +QUEUED +QUEUED *2 +OK $3 tx; $3 tx;",
		"eval \"return redis.call('SET', KEYS[1], 'script;')\" 1 {s}:2\r\nget {s}:2\r\n":                                       "+OK $7 script;",
		"del {s}:3 {s}:4 elsewhere2\r\nexists {s}:3 {s}:4\r\n":                                                                 ":2 :0",
		"mset {s}:5 mset; {s}:6 mset2;\r\nmget {s}:5 {s}:6\r\n":                                                                "+OK *2 $5 mset; $6 mset2;",
		"multi\r\nset {s}:7 both;\r\neval \"return redis.call('SET', KEYS[1], 'txscript;')\" 1 {s}:8\r\nexec\r\nget {s}:8\r\n": "+OK +QUEUED +QUEUED *2 +OK +OK $9 txscript;",
		"rpush {s}:l a b\r\nblpop {s}:l 0\r\nlrange {s}:l 0 -1\r\n":                                                            ":2 *2 $5 {s}:l $1 a *1 $1 b",
	}
	for text := range want {
		clients[text] = dial(t, e.addr)
		clients[text].send(t, text)
	}
	reader := dial(t, e.addr)
	for i := range 20 { // which clients wait for is not executed meanwhile
		require.Equal(t, fmt.Sprintf("$%d\r\n%d\r\n", len(fmt.Sprint(i)), i), reader.ask(t, "GET", fmt.Sprintf("{s}:%d", i)))
	}
	servers.MoveKeys(t, slot, 10)
	for i := range 20 {
		require.Equal(t, fmt.Sprintf("$%d\r\n%d\r\n", len(fmt.Sprint(i)), i), reader.ask(t, "GET", fmt.Sprintf("{s}:%d", i)))
	}
	servers.EndMove(t, slot)
	for text, replies := range want {
		var got strings.Builder
		for range strings.Count(text, "\r\n") {
			reply, err := clients[text].reply()
			require.NoError(t, err)
			got.WriteString(reply)
		}
		require.Equal(t, replies, strings.Join(strings.Fields(got.String()), " "), text)
	}
	_, all := effects(t, servers, "{s}")
	for _, value := range []string{"single;", "\xa3tx;", "\xa7script;", "mset;", "mset2;", "both;", "txscript;"} {
		assert.Equal(t, 1, strings.Count(all, value), value)
	}
}

// TestShardsMoveUnderLoad moves slots while clients write. No client gets an error, counters are what
// was acknowledged, and each write has one effect.
func TestShardsMoveUnderLoad(t *testing.T) {
	t.Parallel()
	servers := stack.PrivateRedisCluster(t, 3, 0)
	e := startShards(t, servers, nil)
	const slots, clients = 8, 4
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var counted [clients]atomic.Int64
	var running sync.WaitGroup
	for n := range clients {
		c := e.client(t, 2+n%2)
		running.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				replies, err := c.Pipelined(context.Background(), func(p redis.Pipeliner) error {
					for slot := range slots {
						p.Incr(context.Background(), fmt.Sprintf("{%d}:n", slot))
						p.Set(context.Background(), fmt.Sprintf("{%d}:%d", slot, n), fmt.Sprintf("v%d:%d:%d;", slot, n, i), 0)
						p.Get(context.Background(), fmt.Sprintf("{%d}:%d", slot, n))
						p.Del(context.Background(), fmt.Sprintf("{%d}:none", slot), fmt.Sprintf("{%d}:none", (slot+1)%slots))
						p.Eval(context.Background(), "return redis.call('SET', KEYS[1], ARGV[1])", []string{fmt.Sprintf("{%d}:s%d", slot, n)}, fmt.Sprintf("s%d:%d:%d;", slot, n, i))
					}
					return nil
				})
				assert.NoError(t, err)
				for j := 2; j < len(replies); j += 5 {
					assert.Equal(t, fmt.Sprintf("v%d:%d:%d;", j/5, n, i), replies[j].(*redis.StringCmd).Val(), "a client reads what it has written")
				}
				counted[n].Add(1)
			}
		})
	}
	random := rand.New(rand.NewPCG(1, 1))
	for range 15 {
		slot := cluster.Slot(fmt.Append(nil, random.IntN(slots)))
		servers.MoveSlot(t, slot, servers.Nodes()[random.IntN(3)].Addr())
		before := counted[0].Load()
		require.Eventually(t, func() bool { return counted[0].Load() >= before+2 }, await.Patience, time.Millisecond, "the clients go on")
	}
	stop()
	running.Wait()
	c := e.client(t, 3)
	for slot := range slots {
		var total int64
		_, all := effects(t, servers, fmt.Sprint(slot))
		for n := range clients {
			total += counted[n].Load()
			for i := range counted[n].Load() {
				assert.Equal(t, 1, strings.Count(all, fmt.Sprintf("v%d:%d:%d;", slot, n, i)), "the effect of SET %d of client %d in slot %d", i, n, slot)
				assert.Equal(t, 1, strings.Count(all, fmt.Sprintf("s%d:%d:%d;", slot, n, i)), "the effect of script %d of client %d in slot %d", i, n, slot)
			}
		}
		got, err := c.Get(t.Context(), fmt.Sprintf("{%d}:n", slot)).Int64()
		require.NoError(t, err)
		assert.Equal(t, total, got)
		assert.EqualValues(t, total, strings.Count(all, fmt.Sprintf("{%d}:n", slot)), "effects of INCR in slot %d", slot)
	}
}

// TestShardsNotOpened: writes to a primary that no Sonic has opened since its restart wait until one
// has.
func TestShardsNotOpened(t *testing.T) {
	t.Parallel()
	servers := stack.PrivateRedisCluster(t, 3, 0)
	e := startShardsClosed(t, servers, nil)
	for _, srv := range servers.Nodes() {
		openPrimary(t, srv)
	}
	victim := servers.Nodes()[1]
	key, kept := keyOn(t, servers, victim.Addr()), keyOn(t, servers, servers.Nodes()[0].Addr())
	c := dial(t, e.addr)
	require.Equal(t, "+OK\r\n", c.ask(t, "SET", key, "before"))
	require.NoError(t, victim.Kill())
	require.NoError(t, victim.Start(t.Context()))
	require.Eventually(t, func() bool { return len(e.Unreachable()) == 0 }, await.Patience, time.Millisecond)
	texts := []string{
		"set @ single;\r\nget @\r\n", "multi\r\nset {@}1 tx;\r\nexec\r\n", "multi\r\nset {@}2 tx2;\r\npublish c m\r\nexec\r\n",
		"eval \"return redis.call('SET', KEYS[1], 'script;')\" 1 {@}3\r\n", "del {@}4\r\nincr {@}5\r\n", "mset {@}6 a {@}7 b\r\n", "blpop {@}8 0.001\r\n",
	}
	var clients []*connection
	for i := range texts {
		texts[i] = strings.ReplaceAll(texts[i], "@", key)
		clients = append(clients, dial(t, e.addr))
		clients[i].send(t, texts[i])
	}
	require.Equal(t, "+OK\r\n", dial(t, e.addr).ask(t, "SET", kept, "others do not wait"))
	require.Equal(t, "$-1\r\n", dial(t, e.addr).ask(t, "GET", key+"none")[:5])
	openPrimary(t, victim)
	for i, text := range texts {
		for range strings.Count(text, "\r\n") {
			reply, err := clients[i].reply()
			require.NoError(t, err)
			require.NotRegexp(t, "^-|\n-", reply, text)
		}
	}
	_, all := effects(t, servers, key)
	for _, value := range []string{"single;", "\xa3tx;", "tx2;", "script;"} {
		assert.Equal(t, 1, strings.Count(all, value), value)
	}
}

// TestShardsLackEffects: transactions wait while their slot may lack effects, and scripts while their
// primary takes no writes any more.
func TestShardsLackEffects(t *testing.T) {
	t.Parallel()
	servers := stack.PrivateRedisCluster(t, 2, 0)
	e := startShardsClosed(t, servers, nil)
	primary := servers.Node(t, servers.Owner(t, cluster.Slot([]byte("a"))))
	openPrimary(t, primary)
	c, other := dial(t, e.addr), dial(t, e.addr)
	const set = "return redis.call('SET', KEYS[1], ARGV[1])"
	require.Equal(t, "+OK\r\n", c.ask(t, "EVAL", set, "1", "{a}s", "first;"))
	direct := primary.Client(t)
	out := script.SlotKeys(cluster.Slot([]byte("a"))).Outbox
	lacks := strings.TrimSuffix(out, "out") + "recovery"
	require.NoError(t, direct.HSet(t.Context(), lacks, "", "1.1").Err())
	c.send(t, "multi\r\nset {a}1 tx;\r\nexec\r\n")
	awaitRefusal := func() {
		t.Helper()
		failed := func() (n int) {
			_, after, _ := strings.Cut(direct.Info(t.Context(), "commandstats").Val(), "cmdstat_fcall:")
			_, after, _ = strings.Cut(after, ",failed_calls=")
			_, err := fmt.Sscan(after, &n)
			assert.NoError(t, err)
			return n
		}
		before := failed()
		require.Eventually(t, func() bool { return failed() > before }, await.Patience, time.Millisecond)
	}
	awaitRefusal()
	require.NoError(t, direct.Del(t.Context(), lacks).Err())
	for _, want := range []string{"+OK\r\n", "+QUEUED\r\n", "*1\r\n+OK\r\n"} {
		reply, err := c.reply()
		require.NoError(t, err)
		require.Equal(t, want, reply)
	}
	require.NoError(t, direct.Do(t.Context(), "FCALL", "sonic_open_primary", 0, "a", "", "0-0", 1, "b", "lww").Err())
	other.send(t, "set {a}2 x\r\n")
	awaitRefusal()
	c.send(t, "eval \""+set+"\" 1 {a}s second;\r\n")
	awaitRefusal()
	require.Equal(t, "first;", direct.Get(t.Context(), "{a}s").Val())
	openPrimary(t, primary)
	reply, err := c.reply()
	require.NoError(t, err)
	require.Equal(t, "+OK\r\n", reply)
	_, all := effects(t, servers, "a")
	for _, value := range []string{"first;", "\xa3tx;", "second;"} {
		assert.Equal(t, 1, strings.Count(all, value), value)
	}
}

// TestShardsNeverOpened: writes wait for Backend.Wait at most.
func TestShardsNeverOpened(t *testing.T) {
	t.Parallel()
	servers := stack.PrivateRedisCluster(t, 1, 0)
	e := startShardsClosed(t, servers, func(cfg *proxy.Config) { cfg.Backend.Wait = 100 * time.Millisecond })
	c := dial(t, e.addr)
	const notOpened = "-LOADING Sonic has not opened this Redis yet, /zones of its admin port has the reason: the command was not run\r\n"
	require.Equal(t, notOpened, c.ask(t, "SET", "a", "1"))
	require.Equal(t, notOpened, c.ask(t, "DEL", "a", "b"))
	require.Equal(t, notOpened, c.ask(t, "EVAL", "return 1", "1", "a"))
	require.Equal(t, []string{notOpened, notOpened, "$-1\r\n"}, c.pipelined(t, 3, "set a 1\r\nset a 2\r\nget a\r\n"))
	c.ask(t, "MULTI")
	c.ask(t, "SET", "a", "1")
	require.Contains(t, c.ask(t, "EXEC"), notOpened)
	openPrimary(t, servers.Nodes()[0])
	require.Equal(t, "+OK\r\n", c.ask(t, "SET", "a", "1"))
}

// TestShardsWaitAtLittleCost: while a write is refused, what its client has sent behind it is not sent
// to Redis over and over, and replies of reads are not kept.
func TestShardsWaitAtLittleCost(t *testing.T) { //nolint:paralleltest // it measures memory
	const reads, size = 200, 1 << 20
	servers := stack.PrivateRedisCluster(t, 1, 0)
	e := startShardsClosed(t, servers, func(cfg *proxy.Config) { cfg.Backend.Wait = 2 * await.Patience })
	direct := servers.Nodes()[0].Client(t)
	require.NoError(t, direct.Set(t.Context(), "{a}big", strings.Repeat("x", size), 0).Err())
	calls := func(command string) int {
		_, after, _ := strings.Cut(direct.Info(t.Context(), "commandstats").Val(), "cmdstat_"+command+":calls=")
		number, _, _ := strings.Cut(after, ",")
		n, _ := strconv.Atoi(number)
		return n
	}
	c := dial(t, e.addr)
	c.send(t, "set {a}1 x\r\n"+strings.Repeat("get {a}big\r\n", reads)+"get {a}1\r\n")
	require.Eventually(t, func() bool { return calls("fcall") > 20 }, await.Patience, time.Millisecond)
	require.LessOrEqual(t, calls("get"), 2*(reads+1))
	var stats runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&stats)
	require.Less(t, stats.HeapAlloc, uint64(reads*size/4))
	openPrimary(t, servers.Nodes()[0])
	require.NoError(t, c.SetDeadline(time.Now().Add(await.Patience))) // of the answers, which begin now
	for i := range reads + 2 {
		reply, err := c.reply()
		require.NoError(t, err)
		require.NotContains(t, short(reply), "-", i)
	}
}

// TestShardsBlock: commands that block get elements while their slots move.
func TestShardsBlock(t *testing.T) {
	t.Parallel()
	servers := stack.PrivateRedisCluster(t, 2, 0)
	e := startShards(t, servers, nil)
	pusher := dial(t, e.addr)
	for _, hello := range []string{"2", "3"} {
		first, second := dial(t, e.addr), dial(t, e.addr)
		first.ask(t, "HELLO", hello)
		second.ask(t, "HELLO", hello)
		first.send(t, "blpop {l}none {l} 0\r\nget {l}x\r\n")
		e.awaitBlocked(t, 1)
		second.send(t, "blmove {l}2 {l}to left right 0\r\n")
		e.awaitBlocked(t, 2)
		slot := cluster.Slot([]byte("l"))
		servers.StartMove(t, slot, other(t, servers, slot))
		pusher.send(t, "rpush {l} a\r\n")
		servers.MoveKeys(t, slot, 100)
		servers.EndMove(t, slot)
		reply, err := pusher.reply()
		require.NoError(t, err)
		require.Equal(t, ":1\r\n", reply)
		reply, err = first.reply()
		require.NoError(t, err)
		require.Equal(t, "*2\r\n$3\r\n{l}\r\n$1\r\na\r\n", reply)
		_, err = first.reply()
		require.NoError(t, err)
		servers.MoveSlot(t, slot, other(t, servers, slot))
		require.Equal(t, ":2\r\n", pusher.ask(t, "RPUSH", "{l}2", "b", "c"))
		reply, err = second.reply()
		require.NoError(t, err)
		require.Equal(t, "$1\r\nb\r\n", reply)
		require.Equal(t, ":2\r\n", pusher.ask(t, "DEL", "{l}2", "{l}to"))
		require.Contains(t, []string{"*-1\r\n", "_\r\n"}, first.ask(t, "BLPOP", "{l}", "0.001"))
	}
	require.Equal(t, "-CROSSSLOT Keys in request don't hash to the same slot\r\n", pusher.ask(t, "BLPOP", "a", "b", "0"))
}

// TestShardsBlockUntilTimeout: a command that waits for its keys while their slot moves ends at its
// timeout, or with its client.
func TestShardsBlockUntilTimeout(t *testing.T) {
	t.Parallel()
	servers := stack.PrivateRedisCluster(t, 2, 0)
	e := startShards(t, servers, nil)
	slot := cluster.Slot([]byte("l"))
	from := servers.Node(t, servers.Owner(t, slot)).Client(t)
	c, leaves, last, pusher := dial(t, e.addr), dial(t, e.addr), dial(t, e.addr), dial(t, e.addr)
	served := func(tracked int) { // what was sent before waits in Redis' tracking when last is served
		t.Helper()
		last.send(t, "blpop {l}last 0\r\n")
		require.Eventually(t, func() bool {
			return strings.Contains(from.Info(t.Context(), "stats").Val(), fmt.Sprintf("tracking_total_keys:%d\r\n", tracked))
		}, await.Patience, time.Millisecond)
		require.Equal(t, ":1\r\n", pusher.ask(t, "RPUSH", "{l}last", "x"))
		_, err := last.reply()
		require.NoError(t, err)
	}
	served(1)
	c.send(t, "blpop {l} 0.5\r\n")
	leaves.send(t, "blpop {l} 0\r\n")
	e.awaitBlocked(t, 2)
	served(2)
	servers.StartMove(t, slot, other(t, servers, slot))
	require.NoError(t, from.Do(t.Context(), "CLIENT", "KILL", "TYPE", "normal").Err()) // Redis does not track the keys any more
	reply, err := c.reply()
	require.NoError(t, err)
	require.Equal(t, "*-1\r\n", reply)
	half, ok := leaves.Conn.(interface{ CloseWrite() error })
	require.True(t, ok)
	require.NoError(t, half.CloseWrite())
	_, err = leaves.reply()
	require.ErrorIs(t, err, io.EOF)
}
