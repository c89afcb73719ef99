package app

import (
	"context"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/test/await"
)

// TestAdminConnectionsAreBounded: a new connection closes the one that is idle longest, and every
// request is answered.
func TestAdminConnectionsAreBounded(t *testing.T) {
	rt := newRuntime("test", zap.NewNop(), time.Second)
	ln, err := Listen(t.Context(), rt.Log, "admin", "admin.listen", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	server := rt.adminServer()
	observe, idle := server.ConnState, make(chan struct{}, 1)
	server.ConnState = func(c net.Conn, state http.ConnState) {
		observe(c, state)
		if state == http.StateIdle {
			idle <- struct{}{}
		}
	}
	go func() { served <- Serve(ctx, ln, server, adminGrace) }()
	defer func() { cancel(); require.NoError(t, <-served) }()

	var dialer net.Dialer
	conns := make([]net.Conn, 3*adminConnections)
	ask := func(c net.Conn) {
		t.Helper()
		_, err := io.WriteString(c, "GET /-/healthy HTTP/1.1\r\nHost: x\r\n\r\n")
		require.NoError(t, err)
		answer := make([]byte, 12)
		_, err = io.ReadFull(c, answer)
		require.NoError(t, err)
		assert.Equal(t, "HTTP/1.1 200", string(answer))
		<-idle // the server knows that this connection waits for its next request
	}
	for i := range conns {
		conns[i], err = dialer.DialContext(t.Context(), "tcp", ln.Addr().String())
		require.NoError(t, err)
		defer func() { _ = conns[i].Close() }()
		ask(conns[i])
	}
	for i, c := range conns[:2*adminConnections] {
		require.NoError(t, c.SetReadDeadline(time.Now().Add(await.Patience)))
		_, err := io.Copy(io.Discard, c) // the rest of its answer, and the end
		require.NoError(t, err, "connection %d was closed by the server", i)
	}
	last := conns[len(conns)-1]
	require.NoError(t, last.SetReadDeadline(time.Now().Add(await.Patience)))
	rest := make([]byte, 1<<10)
	_, err = last.Read(rest)
	require.NoError(t, err)
	ask(last)
}
