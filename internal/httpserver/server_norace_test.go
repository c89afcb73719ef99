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
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestHeadersAreBounded: before anybody is known a connection takes little, whatever it sends.
func TestHeadersAreBounded(t *testing.T) {
	answered := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	server := NewServer(time.Minute, time.Second, nil, answered)
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	served := make(chan error, 1)
	go func() { served <- server.Serve(ln) }()
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
	before := heap()
	for range connections {
		dial(short.String()) // and never the end
	}
	// Until the last one was read the heap grows.
	most := before
	require.Never(t, func() bool { most = max(most, heap()); return most > before+connections*300<<10 }, 500*time.Millisecond, 50*time.Millisecond)
	assert.Greater(t, most, before+connections*50<<10, "they were read")
}
