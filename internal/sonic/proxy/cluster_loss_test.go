package proxy_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zaptest"

	"github.com/aviaryhq/aviary/internal/sonic/cluster"
	"github.com/aviaryhq/aviary/internal/sonic/proxy"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/upstream"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack"
)

// settableMap is a map of a cluster that the test sets.
type settableMap struct{ atomic.Pointer[cluster.Map] }

func (m *settableMap) Map() *cluster.Map { return m.Load() }
func (m *settableMap) Refresh()          {}

// serve starts a proxy with the map. Its primaries may be any Redis.
func (m *settableMap) serve(t *testing.T, changes ...func(*proxy.Config)) *endpoint {
	t.Helper()
	cfg := proxy.Config{Backend: upstream.Config{DialTimeout: await.Patience, Wait: await.Patience}, Cluster: m}
	for _, change := range changes {
		change(&cfg)
	}
	p, err := proxy.New(cfg, zaptest.NewLogger(t), prometheus.NewRegistry())
	require.NoError(t, err)
	return &endpoint{p, serve(t, p), nil}
}

// TestReadsOfALostPrimary: a read is sent again, unless its client has sent a write behind it: it
// would see what that wrote.
func TestReadsOfALostPrimary(t *testing.T) {
	t.Parallel()
	srv := stack.PrivateRedis(t, stack.Conf(map[string]string{"appendonly": "yes", "appendfsync": "always"}))
	m := new(settableMap)
	m.Store(cluster.NewMap([]cluster.Range{{First: 0, Last: cluster.Slots - 1, Primary: cluster.Primary{ID: "a", Address: srv.Addr()}}}))
	addr := m.serve(t).addr
	writes, reads := dial(t, addr), dial(t, addr)
	require.Equal(t, "+OK\r\n", writes.ask(t, "SET", "a", "1"))
	require.Equal(t, "$1\r\n1\r\n", reads.ask(t, "GET", "a"))
	require.NoError(t, srv.Pause())
	writes.send(t, "get a\r\nset a 2\r\nget a\r\n")
	reads.send(t, "get a\r\nget b\r\n")
	awaitUnread(t, srv)
	require.NoError(t, srv.Kill())
	require.NoError(t, srv.Start(t.Context()))
	for range 2 {
		got, err := writes.reply()
		require.NoError(t, err)
		assert.Contains(t, got, "-ERR the connection to Redis was lost while this command ran")
	}
	for c, want := range map[*connection][]string{writes: {"$1\r\n1\r\n"}, reads: {"$1\r\n1\r\n", "$-1\r\n"}} {
		for _, text := range want {
			got, err := c.reply()
			require.NoError(t, err)
			assert.Equal(t, text, got)
		}
	}
}

// TestCommandsForAFormerPrimary: what was not sent to a primary goes to the new one at once, when the
// former one is lost after its slots have moved. Clients that it made wait go on.
func TestCommandsForAFormerPrimary(t *testing.T) {
	t.Parallel()
	former, other := stack.PrivateRedis(t), stack.PrivateRedis(t)
	a, b := cluster.Primary{ID: "a", Address: former.Addr()}, cluster.Primary{ID: "b", Address: other.Addr()}
	slot := cluster.Slot([]byte("a"))
	m := new(settableMap)
	m.Store(cluster.NewMap([]cluster.Range{{First: 0, Last: cluster.Slots - 1, Primary: b}, {First: slot, Last: slot, Primary: a}}))
	e := m.serve(t)
	large, small, third := dial(t, e.addr), dial(t, e.addr), dial(t, e.addr)
	require.Equal(t, "+OK\r\n", small.ask(t, "SET", "a", "there"))
	require.Equal(t, "+OK\r\n", small.ask(t, "SET", "b", "here"))
	require.NoError(t, former.Pause())
	large.send(t, string(resp.AppendCommand(nil, "SET", "a", strings.Repeat("x", 32<<20)))+"get b\r\n")
	awaitUnread(t, former)
	small.send(t, "append a 1\r\nget b\r\n")
	require.Equal(t, "+PONG\r\n", third.ask(t, "PING")) // the proxy has read the commands before
	m.Store(cluster.NewMap([]cluster.Range{{First: 0, Last: cluster.Slots - 1, Primary: b}}))
	e.ClusterChanged()
	require.Equal(t, "$-1\r\n", third.ask(t, "GET", "a"))
	require.NoError(t, former.Kill())
	got, err := large.reply()
	require.NoError(t, err)
	assert.Contains(t, got, "-ERR the connection to Redis was lost while this command ran")
	got, err = small.reply()
	require.NoError(t, err)
	assert.Equal(t, ":1\r\n", got)
	for _, c := range []*connection{large, small} {
		got, err = c.reply()
		require.NoError(t, err)
		assert.Equal(t, "$4\r\nhere\r\n", got)
	}
}

// TestFullPrimaryOfAPart: a client waits while a primary has too much to receive, also if this is not
// the one of the last part of its command.
func TestFullPrimaryOfAPart(t *testing.T) {
	t.Parallel()
	full, other := stack.PrivateRedis(t), stack.PrivateRedis(t)
	a, b := cluster.Primary{ID: "a", Address: full.Addr()}, cluster.Primary{ID: "b", Address: other.Addr()}
	slot := cluster.Slot([]byte("a"))
	m := new(settableMap)
	m.Store(cluster.NewMap([]cluster.Range{{First: 0, Last: cluster.Slots - 1, Primary: b}, {First: slot, Last: slot, Primary: a}}))
	e := m.serve(t)
	c, third := dial(t, e.addr), dial(t, e.addr)
	require.Equal(t, ":0\r\n", c.ask(t, "DEL", "a", "b"))
	require.NoError(t, full.Pause())
	c.send(t, string(resp.AppendCommand(nil, "DEL", "{a}"+strings.Repeat("x", 32<<20), "b"))+"set b 1\r\n")
	awaitUnread(t, full)
	direct := other.Client(t)
	for range 10 { // rounds of the loop
		require.Equal(t, "+PONG\r\n", third.ask(t, "PING"))
		require.Zero(t, direct.Exists(t.Context(), "b").Val())
	}
	require.NoError(t, full.Resume())
	for _, want := range []string{":0\r\n", "+OK\r\n"} {
		got, err := c.reply()
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}

// TestFunctionFlushWhilePrimariesChange: a primary that has listed its libraries is lost, and its slots
// move, before another one has answered. The client gets its answer all the same.
func TestFunctionFlushWhilePrimariesChange(t *testing.T) {
	t.Parallel()
	lost, stays := stack.PrivateRedis(t), stack.PrivateRedis(t)
	a, b := cluster.Primary{ID: "a", Address: lost.Addr()}, cluster.Primary{ID: "b", Address: stays.Addr()}
	m := new(settableMap)
	m.Store(cluster.NewMap([]cluster.Range{{First: 0, Last: 99, Primary: a}, {First: 100, Last: cluster.Slots - 1, Primary: b}}))
	e := m.serve(t, func(cfg *proxy.Config) { cfg.SlotOutboxes, cfg.Zones = true, []string{"a", "b"} })
	c, other := dial(t, e.addr), dial(t, e.addr)
	require.Contains(t, c.ask(t, "FUNCTION", "LOAD", "#!lua name=one\nredis.register_function('one', function() return 1 end)"), "one")
	require.NoError(t, stays.Pause())
	c.send(t, "function flush\r\n")
	direct := lost.Client(t)
	require.Eventually(t, func() bool {
		return strings.Contains(direct.Info(t.Context(), "commandstats").Val(), "function|list")
	}, await.Patience, time.Millisecond)
	require.NoError(t, lost.Kill())
	require.Eventually(t, func() bool { return e.Unreachable()[lost.Addr()] != nil }, await.Patience, time.Millisecond)
	m.Store(cluster.NewMap([]cluster.Range{{First: 0, Last: cluster.Slots - 1, Primary: b}}))
	e.ClusterChanged()
	require.Equal(t, "+PONG\r\n", other.ask(t, "PING"))
	require.NoError(t, stays.Resume())
	got, err := c.reply()
	require.NoError(t, err)
	assert.Equal(t, "+OK\r\n", got)
	assert.Equal(t, "*0\r\n", c.ask(t, "FUNCTION", "LIST"))
}
