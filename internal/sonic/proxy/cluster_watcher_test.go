package proxy_test

import (
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/cluster"
	"github.com/aviaryhq/aviary/internal/sonic/proxy"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack"
)

// gate forwards connections to a Redis. While it is shut, new ones wait.
type gate struct {
	net.Listener
	shut    chan struct{} // closed: it is open
	waiting atomic.Int32
}

func newGate(t *testing.T, to string, open int) *gate {
	t.Helper()
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	g := &gate{Listener: ln, shut: make(chan struct{})}
	t.Cleanup(func() { _ = ln.Close() })
	go func() {
		for i := 0; ; i++ {
			from, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = from.Close() }()
				if i >= open {
					g.waiting.Add(1)
					<-g.shut
				}
				server, err := new(net.Dialer).DialContext(t.Context(), "tcp", to)
				if err != nil {
					return
				}
				go func() {
					_, _ = io.Copy(server, from)
					_ = server.Close()
				}()
				_, _ = io.Copy(from, server)
			}()
		}
	}()
	return g
}

// TestBlockedWhileTheirSlotMovesBeforeTheyAreTracked: several clients wait for a key that is not read
// yet, because the connection for it is not up. When it is, the key is at another primary.
func TestBlockedWhileTheirSlotMovesBeforeTheyAreTracked(t *testing.T) {
	t.Parallel()
	former, next := stack.PrivateRedis(t), stack.PrivateRedis(t)
	openPrimary(t, former)
	openPrimary(t, next)
	g := newGate(t, former.Addr(), 1) // for the connection that clients share
	a, b := cluster.Primary{ID: "a", Address: g.Addr().String()}, cluster.Primary{ID: "b", Address: next.Addr()}
	slot := cluster.Slot([]byte("k"))
	m := new(settableMap)
	m.Store(cluster.NewMap([]cluster.Range{{First: 0, Last: cluster.Slots - 1, Primary: a}}))
	e := m.serve(t, func(cfg *proxy.Config) { cfg.SlotOutboxes, cfg.Zones = true, []string{"a", "b"} })
	c := dial(t, e.addr)
	require.Equal(t, "$-1\r\n", c.ask(t, "GET", "k"))
	blocked := []*connection{dial(t, e.addr), dial(t, e.addr), dial(t, e.addr)}
	for _, one := range blocked {
		one.send(t, "blpop k 0\r\n")
	}
	require.Eventually(t, func() bool { return g.waiting.Load() == 1 }, await.Patience, time.Millisecond)
	for range 10 { // rounds of the loop: the first tries are over
		require.Equal(t, "$-1\r\n", c.ask(t, "GET", "k"))
	}
	m.Store(cluster.NewMap([]cluster.Range{{First: 0, Last: cluster.Slots - 1, Primary: a}, {First: slot, Last: slot, Primary: b}}))
	e.ClusterChanged()
	require.Equal(t, "$-1\r\n", c.ask(t, "GET", "other"))
	close(g.shut)
	require.Equal(t, ":3\r\n", c.ask(t, "RPUSH", "k", "x", "x", "x"))
	for _, one := range blocked {
		require.Equal(t, "*2\r\n"+bulk("k")+bulk("x"), one.next(t))
	}
}
