package nightingale

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/klauspost/compress/snappy"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/app"
	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/httpserver"
	"github.com/aviaryhq/aviary/internal/nightingale/tenant"
	"github.com/aviaryhq/aviary/pkg/secret"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/e2e/nightingale/writetest"
)

// served is a receiver behind the real server, with all that guards it.
type served struct {
	*double
	address  string
	accepted atomic.Int64 // connections
}

func serveDouble(t *testing.T, change func(*Config)) *served {
	t.Helper()
	var cfg Config
	d := newDouble(t, func(c *Config) {
		if change != nil {
			change(c)
		}
		cfg = *c
	})
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &served{double: d, address: ln.Addr().String()}
	server := newServer(cfg, d.metrics, d.receiver.handler)
	count := server.ConnState
	server.ConnState = func(conn net.Conn, state http.ConnState) {
		count(conn, state)
		if state == http.StateNew {
			s.accepted.Add(1)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- app.ServeWith(ctx, httpserver.LimitConnections(ln, cfg.Limits.Connections), server, await.Patience, httpserver.Serve(zap.NewNop(), server, cfg.HTTP.WebConfigFile))
	}()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-ended, "the stop is graceful")
	})
	return s
}

// send posts a request; err is that of the connection.
func (s *served) send(t *testing.T, client *http.Client, url string, prepare func(*http.Request)) (status int, header http.Header, err error) {
	t.Helper()
	body := snappy.Encode(nil, writetest.Marshal(t, writetest.Request(1, 2)))
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+s.address+"/api/v1/write", strings.NewReader(string(body)))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/x-protobuf")
	if prepare != nil {
		prepare(req)
	}
	defer client.CloseIdleConnections()
	resp, err := client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, resp.Header, err
}

// authority issues certificates.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	pem         []byte
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	certificate, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return &authority{certificate, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

func (a *authority) issue(t *testing.T, name string, usage x509.ExtKeyUsage) (certificate, key []byte) {
	t.Helper()
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{usage},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}, a.certificate, own.Public(), a.key)
	require.NoError(t, err)
	encoded, err := x509.MarshalECPrivateKey(own)
	require.NoError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: encoded})
}

func (a *authority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.certificate)
	return pool
}

func (a *authority) client(t *testing.T, certificates ...tls.Certificate) *http.Client {
	t.Helper()
	return &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: a.pool(), Certificates: certificates, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true,
	}}
}

func writeFiles(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	return dir
}

func TestServerSpeaksTLS(t *testing.T) {
	ca := newAuthority(t)
	certificate, key := ca.issue(t, "localhost", x509.ExtKeyUsageServerAuth)
	dir := writeFiles(t, map[string]string{
		"cert.pem": string(certificate), "key.pem": string(key),
		"web.yml": "tls_server_config: {cert_file: cert.pem, key_file: key.pem}\n",
	})
	s := serveDouble(t, func(c *Config) { c.HTTP.WebConfigFile = filepath.Join(dir, "web.yml") })
	status, _, err := s.send(t, ca.client(t), "https://", nil)
	require.NoError(t, err)
	assert.Equal(t, http.StatusNoContent, status)
	conn, err := tls.Dial("tcp", s.address, &tls.Config{RootCAs: ca.pool(), NextProtos: []string{"h2", "http/1.1"}, MinVersion: tls.VersionTLS12})
	require.NoError(t, err)
	assert.Equal(t, "http/1.1", conn.ConnectionState().NegotiatedProtocol, "one request at a time on a connection")
	require.NoError(t, conn.Close())
	_, _, err = s.send(t, newAuthority(t).client(t), "https://", nil)
	require.Error(t, err, "another authority's")
	status, _, err = s.send(t, new(http.Client), "http://", nil)
	require.NoError(t, err)
	assert.Equal(t, http.StatusBadRequest, status, "without TLS")
	assert.Len(t, s.published(), 1)
}

func TestServerAsksForClientCertificates(t *testing.T) {
	ca := newAuthority(t)
	certificate, key := ca.issue(t, "localhost", x509.ExtKeyUsageServerAuth)
	dir := writeFiles(t, map[string]string{
		"cert.pem": string(certificate), "key.pem": string(key), "ca.pem": string(ca.pem),
		"web.yml": "tls_server_config: {cert_file: cert.pem, key_file: key.pem, client_auth_type: RequireAndVerifyClientCert, client_ca_file: ca.pem}\n",
	})
	s := serveDouble(t, func(c *Config) { c.HTTP.WebConfigFile = filepath.Join(dir, "web.yml") })
	own, err := tls.X509KeyPair(ca.issue(t, "sender", x509.ExtKeyUsageClientAuth))
	require.NoError(t, err)
	status, _, err := s.send(t, ca.client(t, own), "https://", nil)
	require.NoError(t, err)
	assert.Equal(t, http.StatusNoContent, status)
	_, _, err = s.send(t, ca.client(t), "https://", nil)
	require.Error(t, err, "no certificate")
	foreign, err := tls.X509KeyPair(newAuthority(t).issue(t, "sender", x509.ExtKeyUsageClientAuth))
	require.NoError(t, err)
	_, _, err = s.send(t, ca.client(t, foreign), "https://", nil)
	require.Error(t, err, "another authority's certificate")
	assert.Len(t, s.published(), 1)
}

// waiter's password is "fly", hashed with bcrypt.
const waiterPassword = "$2a$04$6UfK2SAyYFuxds42/drrCukH6SgTLDAs7L9poSYi3/8dgaYgDqgtK"

func TestServerTakesBasicAuthentication(t *testing.T) {
	dir := writeFiles(t, map[string]string{"web.yml": "basic_auth_users: {waiter: '" + waiterPassword + "'}\n"})
	s := serveDouble(t, func(c *Config) { c.HTTP.WebConfigFile = filepath.Join(dir, "web.yml") })
	for _, test := range []struct {
		user, password string
		status         int
	}{{"waiter", "fly", 204}, {"waiter", "soup", 401}, {"cook", "fly", 401}, {"", "", 401}} {
		status, header, err := s.send(t, new(http.Client), "http://", func(r *http.Request) {
			if test.user != "" {
				r.SetBasicAuth(test.user, test.password)
			}
		})
		require.NoError(t, err)
		assert.Equal(t, test.status, status, "%s %s", test.user, test.password)
		if status == http.StatusUnauthorized {
			assert.Equal(t, "Basic", header.Get("WWW-Authenticate"))
		}
	}
	assert.Len(t, s.published(), 1)
}

func TestServerTakesBearerTokens(t *testing.T) {
	dir := writeFiles(t, map[string]string{"tokens": "second\nthird\n"})
	s := serveDouble(t, func(c *Config) {
		c.HTTP.BearerTokens = []secret.String{"first"}
		c.HTTP.BearerTokenFile = filepath.Join(dir, "tokens")
	})
	for authorization, want := range map[string]int{
		"Bearer first": 204, "bearer second": 204, "Bearer third": 204,
		"Bearer fourth": 401, "Bearer firs": 401, "Bearer ": 401, "Bearer": 401, "Basic first": 401, "first": 401, "": 401, "Bearer second\tthird": 401,
	} {
		status, header, err := s.send(t, new(http.Client), "http://", func(r *http.Request) { r.Header.Set("Authorization", authorization) })
		require.NoError(t, err)
		assert.Equal(t, want, status, "%q", authorization)
		if want == http.StatusUnauthorized {
			assert.Equal(t, `Bearer realm="nightingale"`, header.Get("WWW-Authenticate"))
		}
	}
	assert.InDelta(t, 8, testutil.ToFloat64(s.metrics.requests.WithLabelValues("401")), 0)
	assert.InDelta(t, 8, testutil.ToFloat64(s.metrics.refused.WithLabelValues("unauthorized")), 0)
}

func TestServerRefusesToStartUnguarded(t *testing.T) {
	dir := writeFiles(t, map[string]string{
		"wrong.yml": "tls_server_config: {cert_file: none.pem, key_file: none.pem}\n",
		"users.yml": "basic_auth_users: {waiter: '" + waiterPassword + "'}\n",
		"empty":     "\n",
	})
	for name, c := range map[string]tenant.AccessConfig{
		"no file":          {WebConfigFile: filepath.Join(dir, "none.yml")},
		"no certificate":   {WebConfigFile: filepath.Join(dir, "wrong.yml")},
		"users and tokens": {WebConfigFile: filepath.Join(dir, "users.yml"), BearerTokens: []secret.String{"a"}},
		"no token file":    {BearerTokenFile: filepath.Join(dir, "none")},
		"empty token file": {BearerTokenFile: filepath.Join(dir, "empty")},
	} {
		assert.ErrorContains(t, c.Check(), "http.", name)

		cfg := DefaultConfig()
		cfg.HTTP.AccessConfig = c
		faults := config.Validate(cfg) // by -config.check, too
		require.Len(t, faults, 1, name)
		assert.Contains(t, faults[0].Path, "http.", name)
		cfg.Tail = true
		assert.Empty(t, config.Validate(cfg), "it serves nobody")
	}
}

// TestServerBoundsConnections: a sender too many waits until another one goes.
func TestServerBoundsConnections(t *testing.T) {
	s := serveDouble(t, func(c *Config) { c.Limits.Connections = 2 })
	dial := func() net.Conn {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", s.address)
		require.NoError(t, err)
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	first := dial()
	dial()
	require.Eventually(t, func() bool { return testutil.ToFloat64(s.metrics.connections) == 2 }, await.Patience, time.Millisecond)
	answered := make(chan error, 1)
	go func() {
		resp, err := http.Post("http://"+s.address+"/api/v1/write", "application/x-protobuf", nil)
		if err == nil {
			err = resp.Body.Close()
		}
		answered <- err
	}()
	select {
	case err := <-answered:
		t.Fatal("it did not wait: ", err)
	case <-time.After(50 * time.Millisecond):
	}
	require.NoError(t, first.Close())
	require.NoError(t, <-answered)
}

func TestServerBoundsHeaders(t *testing.T) {
	t.Parallel()
	s := serveDouble(t, nil)
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", s.address)
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, head+"X-Long: "+strings.Repeat("x", 2*64<<10)+"\r\n\r\n")
	require.NoError(t, err)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	defer resp.Body.Close()
	assert.Equal(t, http.StatusRequestHeaderFieldsTooLarge, resp.StatusCode)
	status, _, err := s.send(t, new(http.Client), "http://", nil)
	require.NoError(t, err)
	assert.Equal(t, http.StatusNoContent, status)
}

// TestServerGivesUpOnSlowHeaders: a sender that trickles holds its connection for a
// bounded time.
func TestServerGivesUpOnSlowHeaders(t *testing.T) {
	t.Parallel()
	s := serveDouble(t, func(c *Config) { c.Limits.ReadTimeout = 100 * time.Millisecond })
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", s.address)
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "POST /api/v1/write HTTP/1.1\r\nHost: x\r\nX-")
	require.NoError(t, err)
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(await.Patience)))
	_, err = io.ReadAll(conn)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "the server closes it")
	require.Eventually(t, func() bool { return testutil.ToFloat64(s.metrics.connections) == 0 }, await.Patience, time.Millisecond)
}

// TestServerAnswersStrangersAtOnce: the body of a sender without a token is not waited for.
func TestServerAnswersStrangersAtOnce(t *testing.T) {
	s := serveDouble(t, func(c *Config) {
		c.Limits.ReadTimeout = 10 * await.Patience
		c.HTTP.BearerTokens = []secret.String{"first"}
	})
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", s.address)
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, head+"Content-Length: 1000\r\n\r\n")
	require.NoError(t, err)
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(await.Patience)))
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	defer resp.Body.Close()
	assert.Equal(t, http.StatusUnauthorized, resp.StatusCode)
}

// TestServerGivesUpOnSlowBodies: a sender that trickles holds its connection for a
// bounded time, also one that may not write, and one that asks for what there is not.
func TestServerGivesUpOnSlowBodies(t *testing.T) {
	t.Parallel()
	dir := writeFiles(t, map[string]string{"web.yml": "basic_auth_users: {waiter: '" + waiterPassword + "'}\n"})
	for name, test := range map[string]struct {
		change  func(*Config)
		request string
		status  int
	}{
		"taken":     {nil, "POST /api/v1/write", http.StatusServiceUnavailable},
		"no token":  {func(c *Config) { c.HTTP.BearerTokens = []secret.String{"first"} }, "POST /api/v1/write", http.StatusUnauthorized},
		"no user":   {func(c *Config) { c.HTTP.WebConfigFile = filepath.Join(dir, "web.yml") }, "POST /api/v1/write", http.StatusUnauthorized},
		"no path":   {nil, "POST /nothing", http.StatusNotFound},
		"no method": {nil, "PUT /api/v1/write", http.StatusMethodNotAllowed},
	} {
		for framing, body := range map[string]string{"sized": "Content-Length: 1000\r\n\r\nabc", "chunked": "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"} {
			t.Run(name+", "+framing, func(t *testing.T) {
				t.Parallel()
				s := serveDouble(t, func(c *Config) {
					c.Limits.ReadTimeout = 100 * time.Millisecond
					if test.change != nil {
						test.change(c)
					}
				})
				text := exchange(t, s.address, test.request+" HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-protobuf\r\n"+body)
				assert.Contains(t, text, "HTTP/1.1 "+strconv.Itoa(test.status)+" ")
				require.Eventually(t, func() bool { return testutil.ToFloat64(s.metrics.connections) == 0 }, await.Patience, time.Millisecond)
			})
		}
	}
}

// TestServerGivesUpOnSendersThatReadNoAnswers: one that sends requests and reads no
// answer holds its connection for a bounded time, whether it may write or not.
func TestServerGivesUpOnSendersThatReadNoAnswers(t *testing.T) {
	t.Parallel()
	dial := func(t *testing.T, s *served) net.Conn {
		t.Helper()
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", s.address)
		require.NoError(t, err)
		t.Cleanup(func() { conn.Close() })
		// With a smaller one, the system drops what arrives past it, acknowledgements
		// included, and both sides wait for ever longer until they send again.
		require.NoError(t, conn.(*net.TCPConn).SetReadBuffer(64<<10))
		return conn
	}
	// flood writes until the server has closed the connection, which the client's side
	// may hear of much later.
	flood := func(t *testing.T, s *served, conn net.Conn, text string) {
		t.Helper()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for err := error(nil); err == nil; {
				_, err = io.WriteString(conn, text)
			}
		}()
		open := func() float64 { return testutil.ToFloat64(s.metrics.connections) }
		// A connection that the system lets stand still before the answers fill it is
		// idle for the server, which ends it after two minutes.
		require.Eventually(t, func() bool { return s.accepted.Load() > 0 && open() == 0 }, 2*time.Minute+await.Patience, time.Millisecond)
		require.NoError(t, conn.SetDeadline(time.Now()))
		<-ended
	}
	bound := func(c *Config) {
		c.Limits.ReadTimeout, c.RequestTimeout = 100*time.Millisecond, 100*time.Millisecond
		c.HTTP.BearerTokens = []secret.String{"first"}
	}
	for name, request := range map[string]string{
		"no token": "POST /api/v1/write HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
		"no path":  "GET /nothing HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer first\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serveDouble(t, bound)
			flood(t, s, dial(t, s), strings.Repeat(request, 1000))
		})
	}
}
