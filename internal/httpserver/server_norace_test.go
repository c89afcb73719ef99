//go:build !race

// The race detector takes several times the memory.

package httpserver

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/await"
)

// TestHeadersAreBounded: before anybody is known a connection takes little, whatever it sends.
func TestHeadersAreBounded(t *testing.T) {
	answered := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	server := NewServer(time.Hour, time.Second, nil, answered)
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var read atomic.Int64
	served := make(chan error, 1)
	go func() { served <- server.Serve(counting{ln, &read}) }()
	t.Cleanup(func() {
		require.NoError(t, server.Close())
		<-served
	})
	dial := func(text string) net.Conn {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", ln.Addr().String())
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		_, err = conn.Write([]byte(text))
		require.NoError(t, err)
		return conn
	}
	status := func(conn net.Conn) int {
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		return resp.StatusCode
	}
	const begin = "GET / HTTP/1.1\r\nHost: x\r\n"
	assert.Equal(t, http.StatusNoContent, status(dial(begin+"A: "+strings.Repeat("x", 15<<10)+"\r\n\r\n")))
	assert.Equal(t, http.StatusRequestHeaderFieldsTooLarge, status(dial(begin+"A: "+strings.Repeat("x", 24<<10)+"\r\n\r\n")))

	var short strings.Builder
	short.WriteString(begin)
	for i := 0; short.Len() < maxHeader-100; i++ {
		fmt.Fprintf(&short, "%x:\r\n", i)
	}
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	const connections = 50
	before, sent := heap(), read.Load()+int64(connections*short.Len())
	for range connections {
		dial(short.String()) // and never the end
	}
	require.Eventually(t, func() bool { return read.Load() == sent }, await.Patience, time.Millisecond, "all is read")
	after := heap()
	assert.Less(t, after, before+connections*300<<10)
	assert.Greater(t, after, before+connections*50<<10, "it is kept")
}

// counting counts what is read from the connections of a listener.
type counting struct {
	net.Listener
	read *atomic.Int64
}

func (l counting) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	return countingConn{conn, l.read}, err
}

type countingConn struct {
	net.Conn
	read *atomic.Int64
}

func (c countingConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.read.Add(int64(n))
	return n, err
}
