package nightingale

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/aviaryhq/aviary/internal/httpserver/refusal"
	"github.com/aviaryhq/aviary/internal/nightingale/remotewrite"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/e2e/nightingale/writetest"

	writev2 "github.com/prometheus/prometheus/prompb/io/prometheus/write/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestWriteRefusesVersion2 sends what cannot be read at all; what is wrong with
// single series is in TestChecklist.
func TestWriteRefusesVersion2(t *testing.T) {
	valid := writetest.MarshalV2(t, writetest.RequestV2(2, 3))
	field := func(data ...byte) []byte { // a series
		return append(append(writetest.MarshalV2(t, &writev2.Request{Symbols: []string{"", "__name__", "m"}}), 5<<3|2, byte(len(data))), data...)
	}
	for _, test := range []struct {
		name   string
		body   []byte
		status int
		says   string
	}{
		{"truncated", valid[:len(valid)-3], 400, "cannot decode"},
		{"random", []byte{4<<3 | 2, 0, 0x2a, 0x03, 0xff, 0xff, 0xff}, 400, "cannot decode"},
		{"a version 1 body", writetest.Marshal(t, writetest.Request(2, 3)), 400, "1.0"},
		{"symbols that are no strings", []byte{4 << 3, 1}, 400, "wire type"},
		{"a series that is no message", []byte{4<<3 | 2, 0, 5 << 3, 1}, 400, "wire type"},
		{"a reference cut short", field(1<<3|2, 1, 0x80), 400, "reference"},
		{"a reference beyond 32 bits", field(1<<3|2, 5, 0x80, 0x80, 0x80, 0x80, 0x10), 400, "reference"},
		{"a reference beyond 64 bits", field(1<<3|2, 11, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01), 400, "reference"},
		{"references that are doubles", field(1<<3|1, 0, 0, 0, 0, 0, 0, 0, 0), 400, "reference"},
		{"a value that is no double", field(2<<3|2, 2, 1<<3, 1), 400, "wire type"},
		{"too many series", writetest.MarshalV2(t, writetest.RequestV2(51, 2)), 413, "50 series"},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := newDouble(t, func(c *Config) { c.Limits.Series = 50 })
			a := d.write(t, contentV2, test.body)
			assert.Equal(t, test.status, a.status, a.text)
			assert.Contains(t, a.text, test.says)
			assert.LessOrEqual(t, len(a.text), refusal.MaxAnswer+10)
			assert.Equal(t, "0/0/0", a.written())
			assert.Empty(t, a.header.Get("Retry-After"), "a retry would fail again")
			assert.Empty(t, d.published())
			assert.Equal(t, http.StatusNoContent, d.write(t, contentV2, valid).status)
			assert.Zero(t, d.receiver.budget.Used())
		})
	}
}

func TestServerRefusesOversizedHeaders(t *testing.T) {
	d := newDouble(t, nil)
	cfg := DefaultConfig()
	cfg.Limits = remotewrite.DefaultLimits()
	server := newServer(cfg, d.metrics, d.receiver.route)
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	served := make(chan error, 1)
	go func() { served <- server.Serve(ln) }()
	t.Cleanup(func() {
		require.NoError(t, server.Close())
		require.ErrorIs(t, <-served, http.ErrServerClosed)
	})
	for size, status := range map[int]int{8 << 10: http.StatusNoContent, 32 << 10: http.StatusRequestHeaderFieldsTooLarge} {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", ln.Addr().String())
		require.NoError(t, err)
		require.NoError(t, conn.SetDeadline(time.Now().Add(await.Patience)))
		// A body of nothing, compressed.
		_, err = fmt.Fprintf(conn, "%sX-Long: %s\r\nContent-Length: 1\r\n\r\n\x00", head, strings.Repeat("x", size))
		require.NoError(t, err)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		assert.Equal(t, status, resp.StatusCode)
		require.NoError(t, conn.Close())
	}
	assert.Equal(t, http.StatusNoContent, d.v2(t, writetest.RequestV2(1, 2)).status)
}
