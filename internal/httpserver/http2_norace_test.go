//go:build !race

// The race detector takes several times the memory.

package httpserver

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/aviaryhq/aviary/test/await"
)

// TestHTTP2ConnectionsAreBounded: an unknown sender opens all streams that a connection may have,
// with the largest headers, sends bodies that nobody reads, and takes no answers.
func TestHTTP2ConnectionsAreBounded(t *testing.T) {
	var refused atomic.Int64
	server := httptest.NewUnstartedServer(nil)
	server.Config = NewServer(time.Hour, time.Second, nil, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = io.WriteString(w, "who is it?")
		refused.Add(1)
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)

	var headers bytes.Buffer
	encoder := hpack.NewEncoder(&headers)
	encoder.SetMaxDynamicTableSize(0)
	size := uint32(0)
	for i := 0; ; i++ {
		field := hpack.HeaderField{Name: fmt.Sprintf("%x", i)}
		switch i {
		case 0:
			field = hpack.HeaderField{Name: ":method", Value: "POST"}
		case 1:
			field = hpack.HeaderField{Name: ":scheme", Value: "https"}
		case 2:
			field = hpack.HeaderField{Name: ":path", Value: "/"}
		}
		if size += field.Size(); size > maxHeader {
			break
		}
		require.NoError(t, encoder.WriteField(field))
	}
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc + m.StackInuse
	}
	const connections = 20
	before := heap()
	streams := 0
	for range connections {
		conn, err := (&tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}}).DialContext(t.Context(), "tcp", server.Listener.Addr().String())
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		require.NoError(t, conn.SetDeadline(time.Now().Add(await.Patience)))
		_, err = io.WriteString(conn, http2.ClientPreface)
		require.NoError(t, err)
		framer := http2.NewFramer(conn, conn)
		require.NoError(t, framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}))
		most, window, perStream := uint32(0), 65535, 65535
		ping := func() { // what was sent before it is handled when it comes back
			require.NoError(t, framer.WritePing(false, [8]byte{}))
			for {
				frame, err := framer.ReadFrame()
				require.NoError(t, err)
				switch f := frame.(type) {
				case *http2.SettingsFrame:
					if f.IsAck() {
						continue
					}
					most, _ = f.Value(http2.SettingMaxConcurrentStreams)
					if v, ok := f.Value(http2.SettingInitialWindowSize); ok {
						perStream = int(v)
					}
					require.NoError(t, framer.WriteSettingsAck())
				case *http2.WindowUpdateFrame:
					if f.StreamID == 0 {
						window += int(f.Increment)
					}
				case *http2.PingFrame:
					return
				case *http2.RSTStreamFrame, *http2.GoAwayFrame:
					t.Fatalf("%v", f)
				}
			}
		}
		ping()
		for i := range most {
			require.NoError(t, framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*i + 1, BlockFragment: headers.Bytes(), EndHeaders: true}))
			n := min(perStream, window)
			window -= n
			for ; n > 0; n -= min(n, 16<<10) {
				require.NoError(t, framer.WriteData(2*i+1, false, make([]byte, min(n, 16<<10))))
			}
		}
		ping()
		streams += int(most)
		require.Eventually(t, func() bool { return refused.Load() == int64(streams) }, await.Patience, time.Millisecond)
		ping()
	}
	after := heap()
	assert.Less(t, after, before+connections*450<<10)
	assert.Greater(t, after, before+connections*150<<10, "it is kept")
}
