package proxy_test

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/proxy"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack"
)

// elements returns the elements of a reply that are strings.
func elements(t *testing.T, reply string) (all []string) {
	t.Helper()
	for _, part := range resp.Elements([]byte(reply)) {
		all = append(all, string(resp.Text(part)))
	}
	return all
}

// TestKeysOfAllPrimaries compares commands about all keys with those of a single Redis.
func TestKeysOfAllPrimaries(t *testing.T) {
	t.Parallel()
	redis := stack.PrivateRedisCluster(t, 3, 0)
	e := startCluster(t, redis, func(c *proxy.Config) { c.Flush = proxy.FlushZone })
	pair := both{dial(t, stack.PrivateRedis(t).Addr()), dial(t, e.addr)}
	pair.sameUntil(t, strings.ReplaceAll("dbsize\nkeys *\nrandomkey\nscan x\nscan -\nscan 0 nosuch\nscan 0 count x\nscan 0 count 0\nflushdb x\nflushall async sync\necho last\n", "\n", "\r\n"), "last")
	c := dial(t, e.addr)
	require.Equal(t, []string{"", ""}, elements(t, c.ask(t, "MGET", "a", "b")))
	want := map[string]bool{}
	for i := range 500 {
		name := fmt.Sprint("k", i)
		want[name] = true
		require.Equal(t, "+OK\r\n", c.ask(t, "SET", name, "v"))
	}
	require.Equal(t, ":500\r\n", c.ask(t, "DBSIZE"))
	require.Equal(t, "+OK\r\n", c.ask(t, "SET", "other", "v"))
	require.ElementsMatch(t, slices.Collect(maps.Keys(want)), elements(t, c.ask(t, "KEYS", "k*")))
	require.Len(t, elements(t, c.ask(t, "KEYS", "*")), 501)
	require.Contains(t, c.ask(t, "RANDOMKEY"), "\r\n")
	for _, options := range [][]string{nil, {"COUNT", "7"}, {"MATCH", "k*"}, {"MATCH", "k*", "COUNT", "1000", "TYPE", "string"}} {
		found, cursor := map[string]bool{}, "0"
		for {
			reply := c.ask(t, append([]string{"SCAN", cursor}, options...)...)
			parts := resp.Elements([]byte(reply))
			require.Len(t, parts, 2, reply)
			for _, key := range elements(t, string(parts[1])) {
				found[key] = true
			}
			if cursor = string(resp.Text(parts[0])); cursor == "0" {
				break
			}
		}
		delete(found, "other")
		require.Equal(t, want, found, options)
	}
	require.Equal(t, "*2\r\n$1\r\n0\r\n*0\r\n", c.ask(t, "SCAN", "5"), "a primary that there is not")

	for _, words := range [][]string{{"FLUSHDB"}, {"FLUSHALL", "SYNC"}} {
		require.Equal(t, "+OK\r\n", c.ask(t, words...))
		require.Equal(t, ":0\r\n", c.ask(t, "DBSIZE"))
		require.Equal(t, "$-1\r\n", c.ask(t, "RANDOMKEY"))
		require.Equal(t, "+OK\r\n", c.ask(t, "SET", "a", "1"))
		require.Equal(t, "$1\r\na\r\n", c.ask(t, "RANDOMKEY"), "the only key")
	}
	c.ask(t, "MULTI")
	for _, name := range []string{"SCAN 0", "KEYS *", "DBSIZE", "RANDOMKEY", "FLUSHALL", "SCRIPT FLUSH", "FUNCTION FLUSH"} {
		require.Contains(t, c.ask(t, strings.Fields(name)...), "inside a transaction", name)
	}
}

// TestHiddenKeysOfAllPrimaries: keys of Sonic, which a next version may have in a cluster, are not
// shown.
func TestHiddenKeysOfAllPrimaries(t *testing.T) {
	t.Parallel()
	redis := stack.PrivateRedisCluster(t, 3, 0)
	e := startCluster(t, redis, nil)
	for _, srv := range redis.Nodes() {
		node := srv.Client(t)
		for i := range 20 { // one of them is of a slot of this primary
			_ = node.Set(t.Context(), fmt.Sprintf("{sonic:%d}x", i), "v", 0).Err()
		}
		require.NotZero(t, node.DBSize(t.Context()).Val())
	}
	c := dial(t, e.addr)
	require.Equal(t, "*0\r\n", c.ask(t, "KEYS", "*"))
	require.Equal(t, "$-1\r\n", c.ask(t, "RANDOMKEY"))
	for i := range 3 {
		require.Contains(t, c.ask(t, "SCAN", strconv.Itoa(i), "COUNT", "1000"), "*0\r\n")
	}
	require.Contains(t, c.ask(t, "FLUSHALL"), "-ERR Sonic refuses 'flushall'")
}

// TestOutputOfAllPrimaries: replies together may not exceed the limit of one.
func TestOutputOfAllPrimaries(t *testing.T) { inBothModes(t, testOutputOfAllPrimaries) }

func testOutputOfAllPrimaries(t *testing.T, startCluster clusterStarter) {
	t.Helper()
	e := startCluster(t, stack.PrivateRedisCluster(t, 3, 0), func(c *proxy.Config) { c.Limits.OutputBytes = 1 << 16 })
	c := dial(t, e.addr)
	value := strings.Repeat("v", 1<<15)
	for _, key := range []string{"a", "b", "c"} {
		require.Equal(t, "+OK\r\n", c.ask(t, "SET", key, value))
	}
	require.Len(t, elements(t, c.ask(t, "MGET", "a", "none")), 2)
	c.send(t, "mget a b c\r\n")
	_, err := c.reply()
	require.Error(t, err)
}

// TestScriptsOfAllPrimaries: scripts and libraries are known to all primaries.
func TestScriptsOfAllPrimaries(t *testing.T) {
	t.Parallel()
	redis := stack.PrivateRedisCluster(t, 3, 0)
	e := startCluster(t, redis, nil)
	c := dial(t, e.addr)
	node := redis.Nodes()[1].Client(t)
	sha := elements(t, "*1\r\n"+c.ask(t, "SCRIPT", "LOAD", "return KEYS[1]"))[0]
	const none = "0123456789012345678901234567890123456789"
	for _, key := range []string{"a", "b", "c"} {
		require.Equal(t, "$1\r\n"+key+"\r\n", c.ask(t, "EVALSHA", sha, "1", key))
	}
	require.Equal(t, "*2\r\n:1\r\n:0\r\n", c.ask(t, "SCRIPT", "EXISTS", sha, none))
	require.NoError(t, node.ScriptFlush(t.Context()).Err())
	require.Equal(t, "*2\r\n:0\r\n:0\r\n", c.ask(t, "SCRIPT", "EXISTS", sha, none), "one primary lacks it")
	require.Equal(t, "+OK\r\n", c.ask(t, "SCRIPT", "FLUSH"))
	require.Equal(t, []bool{false}, redis.Nodes()[0].Client(t).ScriptExists(t.Context(), sha).Val())
	require.Contains(t, c.ask(t, "SCRIPT", "LOAD", "return ("), "-ERR Error compiling script")

	library := "#!lua name=lib\nredis.register_function('name', function(keys) return keys[1] end)"
	require.Equal(t, "$3\r\nlib\r\n", c.ask(t, "FUNCTION", "LOAD", library))
	for _, key := range []string{"a", "b", "c"} {
		require.Equal(t, "$1\r\n"+key+"\r\n", c.ask(t, "FCALL", "name", "1", key))
	}
	require.Contains(t, c.ask(t, "FUNCTION", "LOAD", library), "-ERR Library 'lib' already exists")
	require.Contains(t, c.ask(t, "FUNCTION", "LIST"), "$3\r\nlib\r\n")
	require.NoError(t, node.FunctionDelete(t.Context(), "lib").Err())
	require.Contains(t, c.ask(t, "FUNCTION", "LOAD", library), "-ERR Library 'lib' already exists", "on the other primaries")
	require.NoError(t, node.FunctionDelete(t.Context(), "lib").Err())
	require.Equal(t, "+OK\r\n", c.ask(t, "FUNCTION", "DELETE", "lib"))
	require.Equal(t, "-ERR Library not found\r\n", c.ask(t, "FUNCTION", "DELETE", "lib"))
	require.Equal(t, "$3\r\nlib\r\n", c.ask(t, "FUNCTION", "LOAD", library))
	require.Contains(t, c.ask(t, "FUNCTION", "FLUSH", "x"), "-ERR FUNCTION FLUSH only supports SYNC|ASYNC option")
	require.Equal(t, "+OK\r\n", c.ask(t, "FUNCTION", "FLUSH"))
	for _, srv := range redis.Nodes() {
		require.Equal(t, []any{}, srv.Client(t).Do(t.Context(), "FUNCTION", "LIST").Val())
	}
}

// TestSubscribersOfAllPrimaries: PUBSUB knows the subscribers at all primaries.
func TestSubscribersOfAllPrimaries(t *testing.T) { inBothModes(t, testSubscribersOfAllPrimaries) }

func testSubscribersOfAllPrimaries(t *testing.T, startCluster clusterStarter) {
	t.Helper()
	redis := stack.PrivateRedisCluster(t, 3, 0)
	e := startCluster(t, redis, nil)
	for i, srv := range redis.Nodes() {
		c := dial(t, srv.Addr())
		c.ask(t, "SUBSCRIBE", "all")
		c.ask(t, "SUBSCRIBE", fmt.Sprint("one", i))
		c.ask(t, "PSUBSCRIBE", "a*")
	}
	var shards []string
	for _, srv := range redis.Nodes() {
		c := dial(t, srv.Addr())
		for _, shard := range []string{"a", "b", "c"} {
			if strings.HasPrefix(c.ask(t, "SSUBSCRIBE", shard), "*3") {
				shards = append(shards, shard)
			}
		}
	}
	require.Len(t, shards, 3)
	for _, hello := range []string{"2", "3"} {
		c := dial(t, e.addr)
		c.ask(t, "HELLO", hello)
		require.ElementsMatch(t, []string{"all", "one0", "one1", "one2"}, elements(t, c.ask(t, "PUBSUB", "CHANNELS")))
		require.ElementsMatch(t, []string{"one0", "one1", "one2"}, elements(t, c.ask(t, "PUBSUB", "CHANNELS", "one*")))
		require.Equal(t, "*6\r\n$3\r\nall\r\n:3\r\n$4\r\nnone\r\n:0\r\n$4\r\none2\r\n:1\r\n", c.ask(t, "PUBSUB", "NUMSUB", "all", "none", "one2"))
		require.Equal(t, "*0\r\n", c.ask(t, "PUBSUB", "NUMSUB"))
		require.Equal(t, ":3\r\n", c.ask(t, "PUBSUB", "NUMPAT"))
		require.ElementsMatch(t, []string{"a", "b", "c"}, elements(t, c.ask(t, "PUBSUB", "SHARDCHANNELS")))
		require.Equal(t, "*4\r\n$1\r\nb\r\n:1\r\n$1\r\nx\r\n:0\r\n", c.ask(t, "PUBSUB", "SHARDNUMSUB", "b", "x"))
	}
}

// TestNoClusterIsSeen: clients see a single Redis.
func TestNoClusterIsSeen(t *testing.T) { inBothModes(t, testNoClusterIsSeen) }

func testNoClusterIsSeen(t *testing.T, startCluster clusterStarter) {
	t.Helper()
	e := startCluster(t, stack.PrivateRedisCluster(t, 3, 0), nil)
	for _, hello := range []string{"2", "3"} {
		c := dial(t, e.addr)
		c.ask(t, "HELLO", hello)
		for _, words := range []string{"INFO", "INFO everything"} {
			info := c.ask(t, strings.Fields(words)...)
			require.Contains(t, info, "\r\nredis_mode:standalone\r\n")
			require.Contains(t, info, "\r\ncluster_enabled:0\r\n")
			require.Contains(t, info, "\r\nconnected_clients:")
		}
		c.ask(t, "MULTI")
		c.ask(t, "INFO", "cluster")
		require.Contains(t, c.ask(t, "EXEC"), "\r\ncluster_enabled:0\r\n")
		pair := both{dial(t, stack.PrivateRedis(t).Addr()), c}
		pair.bare.ask(t, "HELLO", hello)
		pair.sameUntil(t, strings.ReplaceAll("asking\nasking x\nreadonly\nreadwrite\ncluster\ncluster info\ncluster slots\ncluster keyslot a\ncluster nosuch\ncluster help\n"+
			"slowlog reset\nlatency reset\nmemory purge\nconfig get cluster-enabled\nconfig get CLUSTER-Enabled\nobject encoding none\ncommand getkeys mget a b\nmemory usage none\nselect 0\nselect x\nrole\nmulti\nconfig get cluster-enabled\nexec\n"+
			"multi\ncluster info\ncluster reset hard\nreadonly\nasking\nget none\nexec\ncopy {a}1 {a}2 db 0\necho last\n", "\n", "\r\n"), "last")
	}
}

// TestAllPrimariesWhileOneFails: commands about all keys go to the replica that takes over.
func TestAllPrimariesWhileOneFails(t *testing.T) { inBothModes(t, testAllPrimariesWhileOneFails) }

func testAllPrimariesWhileOneFails(t *testing.T, startCluster clusterStarter) {
	t.Helper()
	redis := stack.PrivateRedisCluster(t, 3, 1)
	e := startCluster(t, redis, nil)
	c := dial(t, e.addr)
	for i := range 100 {
		require.Equal(t, "+OK\r\n", c.ask(t, "SET", fmt.Sprint("k", i), "v"))
	}
	for _, srv := range redis.Nodes()[3:] {
		require.Eventually(t, func() bool {
			n, err := srv.Client(t).DBSize(t.Context()).Result()
			require.NoError(t, err)
			return n > 0
		}, await.Patience, time.Millisecond)
	}
	require.Equal(t, ":100\r\n", c.ask(t, "DBSIZE"))
	require.NoError(t, redis.Nodes()[0].Kill())
	require.Equal(t, ":100\r\n", c.ask(t, "DBSIZE"))
	require.Len(t, elements(t, c.ask(t, "KEYS", "*")), 100)
}
