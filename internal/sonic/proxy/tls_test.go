package proxy_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zaptest"

	"github.com/aviaryhq/aviary/internal/sonic/proxy"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/upstream"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack"
)

// TestTLS encrypts both sides, with certificates of both ends.
func TestTLS(t *testing.T) {
	t.Parallel()
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
	go func() { popped <- c.BLPop(t.Context(), await.Patience, "l").Val() }()
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

// TestDeafClientsOfTLS are disconnected like others: nothing of them is left, and the endpoint
// ends.
func TestDeafClientsOfTLS(t *testing.T) {
	t.Parallel()
	srv := opened(t, stack.Secured())
	s := srv.Security()
	server, err := tls.LoadX509KeyPair(strings.Replace(s.CertFile, "client", "server", 1), strings.Replace(s.KeyFile, "client", "server", 1))
	require.NoError(t, err)
	p, err := proxy.New(proxy.Config{
		Backend: upstream.Config{Address: srv.Addr()}, TLS: &tls.Config{Certificates: []tls.Certificate{server}, MinVersion: tls.VersionTLS12},
		DrainTimeout: 500 * time.Millisecond,
	}, zaptest.NewLogger(t), prometheus.NewRegistry())
	require.NoError(t, err)
	var lc net.ListenConfig
	ln, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- p.Serve(ctx, ln) }()

	require.NoError(t, srv.Client(t).Set(t.Context(), "a", strings.Repeat("x", 8<<20), 0).Err())
	plain := dial(t, ln.Addr().String())
	deaf := tls.Client(plain.Conn, &tls.Config{InsecureSkipVerify: true}) // it looks at nothing
	_, err = deaf.Write([]byte(strings.Repeat("get a\r\n", 4)))
	require.NoError(t, err)
	one := make([]byte, 1)
	_, err = deaf.Read(one)
	require.NoError(t, err, "replies come")
	cancel()
	select {
	case err := <-ended:
		require.NoError(t, err)
	case <-time.After(await.Patience):
		require.Fail(t, "the endpoint waits for a client that does not read")
	}
}
