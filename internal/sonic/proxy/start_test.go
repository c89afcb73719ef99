package proxy_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zaptest"

	"github.com/aviaryhq/aviary/internal/sonic/proxy"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/upstream"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
	"github.com/aviaryhq/aviary/internal/sonic/script"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/leak"
	"github.com/aviaryhq/aviary/test/stack"
)

func TestMain(m *testing.M) { leak.Main(m.Run) }

// endpoint is a proxy that runs before a Redis of its own, which a Sonic with one other zone has
// opened.
type endpoint struct {
	*proxy.Proxy
	addr  string
	redis *stack.RedisServer
}

// opened returns a Redis with the library, ready for writes.
func opened(t *testing.T, opts ...stack.Option) *stack.RedisServer {
	t.Helper()
	srv := stack.PrivateRedis(t, opts...)
	open(t, srv)
	return srv
}

func open(t *testing.T, srv *stack.RedisServer) {
	t.Helper()
	client := srv.Client(t)
	require.NoError(t, script.Load(t.Context(), client))
	require.NoError(t, client.Do(t.Context(), "FCALL", "sonic_open", "1", "{sonic:0}out", "a", "1", "0-0", "", "1", "b", "lww").Err())
	require.NoError(t, client.Close())
}

// awaitUnread waits until the kernel holds bytes that a paused Redis has not read.
func awaitUnread(t *testing.T, srv *stack.RedisServer) {
	t.Helper()
	_, port, err := net.SplitHostPort(srv.Addr())
	require.NoError(t, err)
	number, err := strconv.ParseUint(port, 10, 16)
	require.NoError(t, err)
	local := fmt.Sprintf(":%04X", number)
	require.Eventually(t, func() bool {
		table, err := os.ReadFile("/proc/net/tcp")
		require.NoError(t, err)
		for line := range strings.Lines(string(table)) {
			// sl local_address rem_address st tx_queue:rx_queue, see proc_net_tcp of the kernel
			f := strings.Fields(line)
			if len(f) > 4 && strings.HasSuffix(f[1], local) && f[3] == "01" && !strings.HasSuffix(f[4], ":00000000") {
				return true
			}
		}
		return false
	}, await.Patience, time.Millisecond)
}

func start(t *testing.T, srv *stack.RedisServer, change func(*proxy.Config)) *endpoint {
	t.Helper()
	cfg := proxy.Config{Backend: upstream.Config{Address: srv.Addr(), DialTimeout: await.Patience, Wait: await.Patience}, Zones: []string{"a", "b"}}
	if change != nil {
		change(&cfg)
	}
	p, err := proxy.New(cfg, zaptest.NewLogger(t), prometheus.NewRegistry())
	require.NoError(t, err)
	return &endpoint{p, serve(t, p), srv}
}

// serve runs the proxy until the test ends. It returns its address.
func serve(t *testing.T, p *proxy.Proxy) string {
	t.Helper()
	var lc net.ListenConfig
	ln, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Serve(ctx, ln) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-ended)
	})
	return ln.Addr().String()
}

// awaitReady waits until the proxy has a connection to Redis.
func (e *endpoint) awaitReady(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool { return e.Ready() == nil }, await.Patience, time.Millisecond)
}

// inTime tries something until it was done in time: a busy machine may be too late for a time
// limit of the test's configuration.
func inTime(t *testing.T, try func() bool) {
	t.Helper()
	for end := time.Now().Add(await.Patience); !try(); {
		require.True(t, time.Now().Before(end), "it is never done in time")
	}
}

// client returns a stock client of the endpoint, which sends nothing twice.
func (e *endpoint) client(t *testing.T, protocol int) *redis.Client {
	t.Helper()
	c := redis.NewClient(&redis.Options{Addr: e.addr, Protocol: protocol, MaxRetries: -1, DisableIdentity: true, ReadTimeout: await.Patience})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// connection speaks the protocol itself.
type connection struct {
	net.Conn
	in *bufio.Reader
}

func dial(t *testing.T, addr string) *connection {
	t.Helper()
	var d net.Dialer
	conn, err := d.DialContext(t.Context(), "tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(await.Patience)))
	return &connection{conn, bufio.NewReaderSize(conn, 1<<16)}
}

func (c *connection) send(t *testing.T, text string) {
	t.Helper()
	_, err := c.Write([]byte(text))
	require.NoError(t, err)
}

// reply reads one reply as it came.
func (c *connection) reply() (string, error) {
	var scan resp.Scanner
	var reply []byte
	for {
		if _, err := c.in.Peek(1); err != nil {
			return string(reply), err
		}
		b, err := c.in.Peek(c.in.Buffered())
		if err != nil {
			return string(reply), err
		}
		n, done, err := scan.Scan(b)
		if err != nil {
			return string(b), err
		}
		reply = append(reply, b[:n]...)
		_, _ = c.in.Discard(n)
		if done {
			return string(reply), nil
		}
		if n == 0 {
			if _, err := c.in.Peek(len(b) + 1); err != nil {
				return string(append(reply, b...)), err
			}
		}
	}
}

// ask sends a command and returns the reply as it came.
func (c *connection) ask(t *testing.T, words ...string) string {
	t.Helper()
	c.send(t, string(resp.AppendCommand(nil, words...)))
	reply, err := c.reply()
	require.NoError(t, err)
	return reply
}
