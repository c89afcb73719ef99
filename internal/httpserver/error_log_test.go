package httpserver

import (
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// TestFailedHandshakesDoNotFillTheLog: anybody can cause them.
func TestFailedHandshakesDoNotFillTheLog(t *testing.T) {
	core, logged := observer.New(zap.DebugLevel)
	server := NewServer(time.Minute, time.Second, nil, http.NotFoundHandler())
	_ = Serve(zap.New(core), server, "")
	fake := httptest.NewTLSServer(nil) // for its certificate
	server.TLSConfig = fake.TLS.Clone()
	fake.Close()
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	served := make(chan error, 1)
	go func() { served <- server.Serve(tls.NewListener(ln, server.TLSConfig)) }()
	for range 20 {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", ln.Addr().String())
		require.NoError(t, err)
		_, err = conn.Write([]byte("not TLS\r\n\r\n"))
		require.NoError(t, err)
		_, _ = conn.Read(make([]byte, 100)) // until it is refused
		_ = conn.Close()
	}
	require.NoError(t, server.Close())
	<-served
	assert.Equal(t, 1, logged.Len())
}
