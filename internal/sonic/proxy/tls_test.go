package proxy_test

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/proxy"
	"github.com/aviaryhq/aviary/test/stack"
)

// TestTLS encrypts both sides, with certificates of both ends.
func TestTLS(t *testing.T) {
	srv := opened(t, stack.Secured())
	s := srv.Security()
	authority, err := os.ReadFile(s.CAFile)
	require.NoError(t, err)
	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM(authority))
	own, err := tls.LoadX509KeyPair(s.CertFile, s.KeyFile)
	require.NoError(t, err)
	server, err := tls.LoadX509KeyPair(strings.Replace(s.CertFile, "client", "server", 1), strings.Replace(s.KeyFile, "client", "server", 1))
	require.NoError(t, err)
	client := &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{own}, ServerName: "localhost", MinVersion: tls.VersionTLS12}
	e := start(t, srv, func(c *proxy.Config) {
		c.Backend.Address, c.Backend.TLS = s.TLS, client
		c.TLS = &tls.Config{
			Certificates: []tls.Certificate{server}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: roots, MinVersion: tls.VersionTLS12,
		}
	})
	c := redis.NewClient(&redis.Options{Addr: e.addr, TLSConfig: client, MaxRetries: -1})
	defer func() { _ = c.Close() }()
	value := strings.Repeat("x", 1<<20)
	require.NoError(t, c.Set(t.Context(), "a", value, 0).Err())
	require.Equal(t, value, c.Get(t.Context(), "a").Val())
	popped := make(chan []string, 1)
	go func() { popped <- c.BLPop(t.Context(), patience, "l").Val() }()
	e.awaitTracked(t, 1)
	require.NoError(t, srv.Client(t).RPush(t.Context(), "l", "x").Err())
	require.Equal(t, []string{"l", "x"}, <-popped)
	stranger := redis.NewClient(&redis.Options{Addr: e.addr, TLSConfig: &tls.Config{RootCAs: roots, ServerName: "localhost", MinVersion: tls.VersionTLS12}, MaxRetries: -1})
	defer func() { _ = stranger.Close() }()
	require.Error(t, stranger.Ping(t.Context()).Err(), "no certificate")
	plain := dial(t, e.addr)
	plain.send(t, "ping\r\n")
	reply, _ := plain.reply()
	require.NotContains(t, reply, "PONG")
}
