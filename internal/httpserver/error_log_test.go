package httpserver

import (
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// TestConnectionErrorsAreLoggedRarely: one in ten seconds, with how many there were; panics always.
func TestConnectionErrorsAreLoggedRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logged := observer.New(zap.DebugLevel)
		log := errorLog(zap.New(core))
		for range 100 {
			log.Print("http: TLS handshake error from 192.0.2.1:1: EOF")
		}
		require.Equal(t, 1, logged.Len())
		log.Print("http: panic serving 192.0.2.1:1: oh")
		require.Equal(t, 1, logged.FilterLevelExact(zap.ErrorLevel).Len())
		time.Sleep(connectionErrorInterval)
		log.Print("http: TLS handshake error from 192.0.2.1:1: EOF")
		last := logged.All()[logged.Len()-1]
		assert.Equal(t, "http: TLS handshake error from 192.0.2.1:1: EOF", last.ContextMap()["text"])
		assert.EqualValues(t, 99, last.ContextMap()["left_out"])
	})
}

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
