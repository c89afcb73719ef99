package sonic_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack"
)

func TestUsersOfTheConfiguration(t *testing.T) {
	t.Parallel()
	file := write(t, "from the file\n")
	s := run(t, stack.PrivateRedis(t), `
users:
  - {name: default, password: hidden}
  - {name: reader, password_file: `+file+`, read_only: true, keys: ["pub:", "open:"]}
`)
	s.open(t)
	as := func(name, password string) *redis.Client {
		return s.client(t, func(o *redis.Options) { o.Username, o.Password = name, password })
	}
	ctx := t.Context()
	require.ErrorContains(t, as("", "").Get(ctx, "a").Err(), "NOAUTH")
	require.ErrorContains(t, as("", "wrong").Get(ctx, "a").Err(), "WRONGPASS")
	require.ErrorContains(t, as("nobody", "hidden").Get(ctx, "a").Err(), "WRONGPASS")
	require.NoError(t, as("", "hidden").Set(ctx, "pub:a", "1", 0).Err())
	require.NoError(t, as("default", "hidden").Set(ctx, "b", "1", 0).Err())
	reader := as("reader", "from the file")
	require.Equal(t, "1", reader.Get(ctx, "pub:a").Val())
	require.ErrorContains(t, reader.Get(ctx, "b").Err(), "NOPERM")
	require.ErrorContains(t, reader.Set(ctx, "pub:a", "2", 0).Err(), "NOPERM")

	_, shown := s.page(t, "/-/config")
	assert.Contains(t, shown, "<redacted>")
	assert.NotContains(t, shown, "hidden")
	for _, line := range s.log.All() {
		assert.NotContains(t, line.Message, "hidden")
	}
}

// TestEncryption of both sides, each with a certificate of the client.
func TestEncryption(t *testing.T) {
	t.Parallel()
	srv := stack.PrivateRedis(t, stack.Secured(), stack.Conf(map[string]string{"tls-auth-clients": "yes"}))
	k := srv.Security()
	server, serverKey := strings.Replace(k.CertFile, "client", "server", 1), strings.Replace(k.KeyFile, "client", "server", 1)
	s := run(t, srv, `
tls: {cert_file: `+server+`, key_file: `+serverKey+`, client_ca_file: `+k.CAFile+`}
redis: {tls: {ca_file: `+k.CAFile+`, cert_file: `+k.CertFile+`, key_file: `+k.KeyFile+`, server_name: localhost}}
`, "SONIC_REDIS_URL=rediss://"+k.TLS)
	s.open(t)
	own, err := tls.LoadX509KeyPair(k.CertFile, k.KeyFile)
	require.NoError(t, err)
	known := &tls.Config{RootCAs: pool(t, k.CAFile), Certificates: []tls.Certificate{own}, ServerName: "localhost", MinVersion: tls.VersionTLS12}
	ask := func(change func(*tls.Config)) error {
		conf := known.Clone()
		change(conf)
		return s.client(t, func(o *redis.Options) { o.TLSConfig = conf }).Set(t.Context(), "a", "1", 0).Err()
	}
	require.NoError(t, ask(func(*tls.Config) {}))
	require.ErrorContains(t, ask(func(c *tls.Config) { c.Certificates = nil }), "certificate required")
	require.ErrorContains(t, ask(func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS10, tls.VersionTLS11 }), "protocol version")
	require.Error(t, s.client(t, nil).Ping(t.Context()).Err(), "not encrypted")
}

// TestRedisThatIsNotTrusted is not connected to, unless insecure says so.
func TestRedisThatIsNotTrusted(t *testing.T) {
	t.Parallel()
	srv := stack.PrivateRedis(t, stack.Secured())
	s := run(t, srv, "{}", "SONIC_REDIS_URL=rediss://"+srv.Security().TLS)
	require.Eventually(t, func() bool {
		for _, e := range s.log.All() {
			if text, _ := e.ContextMap()["error"].(string); strings.Contains(text, "unknown authority") {
				return true
			}
		}
		return false
	}, await.Patience, 10*time.Millisecond)

	careless := run(t, srv, "redis: {tls: {insecure: true}}", "SONIC_REDIS_URL=rediss://"+srv.Security().TLS)
	require.NoError(t, careless.client(t, nil).Exists(t.Context(), "a").Err())
}

// TestCertificatesAreReadAgain while the endpoint runs. Files that are of no use change nothing.
func TestCertificatesAreReadAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	certFile, keyFile := dir+"/cert.pem", dir+"/key.pem"
	issue(t, 1, certFile, keyFile)
	s := run(t, stack.PrivateRedis(t), "tls: {cert_file: "+certFile+", key_file: "+keyFile+"}")
	serial := func() int64 {
		t.Helper()
		// It looks at what it is shown.
		d := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}
		conn, err := d.DialContext(t.Context(), "tcp", s.address(t, "redis"))
		require.NoError(t, err)
		defer func() { _ = conn.Close() }()
		secured, ok := conn.(*tls.Conn)
		require.True(t, ok)
		return secured.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
	}
	require.Equal(t, int64(1), serial())
	require.NoError(t, os.WriteFile(certFile, []byte("half a certif"), 0o600))
	require.Equal(t, int64(1), serial())
	require.Equal(t, int64(1), serial())
	require.Equal(t, 1, s.log.FilterMessageSnippet("cannot use").Len(), "said once")
	issue(t, 2, certFile, keyFile)
	require.Equal(t, int64(2), serial())
}

// TestOpenAddressesAreSaid: Redis would refuse clients there.
func TestOpenAddressesAreSaid(t *testing.T) {
	t.Parallel()
	srv := stack.PrivateRedis(t)
	for text, want := range map[string]string{
		"{}":                                 "everybody who reaches this address",
		"users: [{name: a, password: b}]":    "without encryption",
		"listen: '127.0.0.1:0'\nusers: []\n": "",
	} {
		listen := []string{"SONIC_LISTEN=:0"}
		if want == "" {
			listen = nil
		}
		s := run(t, srv, text, listen...)
		s.address(t, "redis")
		require.Eventually(t, func() bool { return s.log.FilterMessage("connected to Redis").Len() == 1 }, await.Patience, time.Millisecond)
		said := s.log.FilterMessageSnippet("keep the address private")
		if want == "" {
			assert.Zero(t, said.Len())
			continue
		}
		require.Equal(t, 1, said.Len(), text)
		assert.Contains(t, said.All()[0].Message, want)
	}
}

// TestAZoneThatIsAloneIsSaid: it stores nothing in Pulsar, so its writes are answered while that is
// unavailable.
func TestAZoneThatIsAloneIsSaid(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{"ack: published": 1, "ack: published\nzones: [default, b]": 0, "ack: local": 0} {
		s := run(t, stack.PrivateRedis(t), text)
		s.address(t, "redis")
		require.Eventually(t, func() bool { return s.log.FilterMessage("connected to Redis").Len() == 1 }, await.Patience, time.Millisecond)
		require.Equal(t, want, s.log.FilterMessageSnippet("ack: published has no effect, because zones names no other zone").Len(), text)
		if want == 1 {
			require.NoError(t, s.redis.Client(t).Do(t.Context(), "FCALL", "sonic_open", "1", "{sonic:0}out", "a", "1", "0-0", "", "0", "lww").Err())
			require.NoError(t, s.client(t, nil).Set(t.Context(), "a", 1, 0).Err())
		}
	}
}

func pool(t *testing.T, file string) *x509.CertPool {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	p := x509.NewCertPool()
	require.True(t, p.AppendCertsFromPEM(text))
	return p
}

// issue writes a certificate that has signed itself.
func issue(t *testing.T, serial int64, certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	of := &x509.Certificate{
		SerialNumber: big.NewInt(serial), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{{127, 0, 0, 1}},
	}
	certificate, err := x509.CreateCertificate(rand.Reader, of, of, key.Public(), key)
	require.NoError(t, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600))
	require.NoError(t, os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate}), 0o600))
}
