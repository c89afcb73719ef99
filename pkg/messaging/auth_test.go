package messaging_test

import (
	"bytes"
	"cmp"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/pkg/secret"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack"
)

const (
	clientID     = "aviary-test"
	clientSecret = "correct-horse-battery-staple"
)

// authority signs certificates, and is not known to anybody else.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "Aviary test authority"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return &authority{cert: cert, key: key, file: writePEM(t, "CERTIFICATE", der)}
}

// issue returns the files of a certificate for name, which is a role or, with an
// address, a server.
func (a *authority) issue(t *testing.T, name string, key crypto.Signer, addresses ...net.IP) (certFile, keyFile string) {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		IPAddresses: addresses,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	require.NoError(t, err)
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	return writePEM(t, "CERTIFICATE", der), writePEM(t, "PRIVATE KEY", raw)
}

// client returns what a client with a certificate for role needs.
func (a *authority) client(t *testing.T, role string) messaging.Auth {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	cert, keyFile := a.issue(t, role, key)
	return messaging.Auth{CertFile: cert, KeyFile: keyFile}
}

func writePEM(t *testing.T, kind string, der []byte) string {
	t.Helper()
	return writeSecret(t, string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})))
}

func writeSecret(t *testing.T, content string) string {
	t.Helper()
	f := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(f, []byte(content), 0o600))
	return f
}

// signer makes JSON web tokens, HS256.
type signer []byte

func newSigner() signer {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	return key
}

func (s signer) token(role string, life time.Duration) string {
	body, _ := json.Marshal(map[string]any{"sub": role, "exp": time.Now().Add(life).Unix(), "jti": base64.RawURLEncoding.EncodeToString(newSigner())})
	text := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"HS256","typ":"JWT"}`)) + "." + base64.RawURLEncoding.EncodeToString(body)
	mac := hmac.New(sha256.New, s)
	mac.Write([]byte(text))
	return text + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// issuer is an OpenID issuer of tokens for client credentials.
type issuer struct {
	*httptest.Server
	caFile   string
	issued   atomic.Int64
	lifetime atomic.Int64 // of tokens, in seconds
	tokens   chan string  // what was issued
}

func newIssuer(t *testing.T, sign signer) *issuer {
	t.Helper()
	is := &issuer{tokens: make(chan string, 1000)}
	is.lifetime.Store(3600)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /tenant/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]string{"issuer": is.URL + "/tenant", "token_endpoint": is.URL + "/token"})
	})
	mux.HandleFunc("POST /token", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.PostFormValue("grant_type") != "client_credentials" || r.PostFormValue("client_id") != clientID ||
			r.PostFormValue("client_secret") != clientSecret {
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = w.Write([]byte(`{"error":"invalid_client","error_description":"no such client, or not its secret"}`))
			return
		}
		if r.PostFormValue("audience") != "urn:pulsar:test" || r.PostFormValue("scope") != "produce consume extra" {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = fmt.Fprintf(w, `{"error":"invalid_scope","error_description":"%s, %s"}`, r.PostFormValue("audience"), r.PostFormValue("scope"))
			return
		}
		is.issued.Add(1)
		seconds := is.lifetime.Load()
		token := sign.token("orders", time.Duration(seconds)*time.Second)
		is.tokens <- token
		_ = json.NewEncoder(w).Encode(map[string]any{"access_token": token, "token_type": "Bearer", "expires_in": seconds})
	})
	is.Server = httptest.NewUnstartedServer(mux)
	is.Config.ErrorLog = log.New(io.Discard, "", 0) // clients that do not trust it are part of the test
	is.StartTLS()
	t.Cleanup(is.Close)
	is.caFile = writePEM(t, "CERTIFICATE", is.Certificate().Raw)
	return is
}

func (is *issuer) auth(t *testing.T, clientSecret string) messaging.Auth {
	t.Helper()
	key, err := json.Marshal(map[string]string{
		"type": "client_credentials", "client_id": clientID, "client_secret": clientSecret,
		"issuer_url": is.URL + "/tenant", "scope": "extra",
	})
	require.NoError(t, err)
	return messaging.Auth{OAuth2: messaging.OAuth2{
		Audience: "urn:pulsar:test", Scope: "produce consume", KeyFile: writeSecret(t, string(key)), CAFile: is.caFile,
	}}
}

// silentIssuer takes requests and answers none.
func silentIssuer(t *testing.T) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	t.Cleanup(s.Close)
	return s.URL
}

// secureBroker is a Pulsar that wants tokens on its plain port, and client
// certificates as well as, in them or in a token, a role on its TLS port.
type secureBroker struct {
	*stack.PulsarServer
	ca     *authority
	sign   signer
	port   int // of TLS; the certificate is for 127.0.0.1 and nothing else
	secure string
}

func newSecureBroker(t *testing.T) *secureBroker {
	t.Helper()
	b := &secureBroker{ca: newAuthority(t), sign: newSigner()}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	cert, keyFile := b.ca.issue(t, "broker", key, net.IPv4(127, 0, 0, 1))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	b.port = l.Addr().(*net.TCPAddr).Port
	require.NoError(t, l.Close())
	b.secure = "pulsar+ssl://127.0.0.1:" + strconv.Itoa(b.port)
	admin := b.sign.token("admin", time.Hour)
	const providers = "org.apache.pulsar.broker.authentication.AuthenticationProvider"
	starting.Lock()
	defer starting.Unlock()
	b.PulsarServer = stack.PrivatePulsar(t, stack.Token(admin), stack.Memory("-Xms128m -Xmx512m -XX:MaxDirectMemorySize=512m"),
		stack.Conf(map[string]string{
			"brokerServicePortTls":                 strconv.Itoa(b.port),
			"tlsCertificateFilePath":               cert,
			"tlsKeyFilePath":                       keyFile,
			"tlsTrustCertsFilePath":                b.ca.file,
			"tlsRequireTrustedClientCertOnConnect": "true",
			"authenticationEnabled":                "true",
			"authenticationProviders":              providers + "Tls," + providers + "Token",
			"authenticationRefreshCheckSeconds":    "1",
			"tokenSecretKey":                       "data:;base64," + base64.StdEncoding.EncodeToString(b.sign),
			"authorizationEnabled":                 "true",
			"superUserRoles":                       "admin,orders",
			"brokerClientAuthenticationPlugin":     "org.apache.pulsar.client.impl.auth.AuthenticationToken",
			"brokerClientAuthenticationParameters": "token:" + admin,
		}))
	t.Cleanup(func() { assert.NoError(t, b.Kill()) }) // nobody needs its orderly end, which takes seconds
	return b
}

// transcript collects what a client logs, at every level, and the errors it
// returns.
type transcript struct {
	mu   sync.Mutex
	text bytes.Buffer
	more *sync.Cond
	warn chan struct{} // closed at the first warning
	once sync.Once
}

func newTranscript() *transcript {
	tr := &transcript{warn: make(chan struct{})}
	tr.more = sync.NewCond(&tr.mu)
	return tr
}

// until waits for a text to be logged.
func (tr *transcript) until(t *testing.T, text string) {
	t.Helper()
	ctx := testContext(t)
	defer context.AfterFunc(ctx, tr.more.Broadcast)()
	tr.mu.Lock()
	defer tr.mu.Unlock()
	for !bytes.Contains(tr.text.Bytes(), []byte(text)) {
		require.NoError(t, ctx.Err(), "waiting for %q", text)
		tr.more.Wait()
	}
}

func (tr *transcript) Write(p []byte) (int, error) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	defer tr.more.Broadcast()
	if bytes.Contains(p, []byte(`"level":"warn"`)) {
		tr.once.Do(func() { close(tr.warn) })
	}
	return tr.text.Write(p)
}

func (tr *transcript) String() string {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return tr.text.String()
}

func (tr *transcript) logger() *zap.Logger {
	return zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()), zapcore.AddSync(tr), zap.DebugLevel))
}

// holds reports whether a secret, or a part of a token that would do, was written.
func (tr *transcript) holds(secret string) bool {
	for part := range strings.SplitSeq(secret, ".") {
		if strings.Contains(tr.String(), strings.TrimSpace(part)) {
			return true
		}
	}
	return false
}

func (tr *transcript) requireNone(t *testing.T, secrets ...string) {
	t.Helper()
	for _, s := range secrets {
		require.False(t, tr.holds(s), "a secret was written: %s", tr)
	}
}

// A relay takes TLS connections in front of a broker's plain port, like a load
// balancer.
type relay struct {
	net.Listener
	to    string
	wg    sync.WaitGroup
	mu    sync.Mutex
	conns map[net.Conn]struct{}
}

// newRelay listens on one loopback address with the certificate of another.
func newRelay(t *testing.T, ca *authority, address, certified net.IP, to string) *relay {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	cert, err := tls.LoadX509KeyPair(ca.issue(t, "relay", key, certified))
	require.NoError(t, err)
	l, err := tls.Listen("tcp", net.JoinHostPort(address.String(), "0"), &tls.Config{Certificates: []tls.Certificate{cert}})
	require.NoError(t, err)
	r := &relay{Listener: l, to: strings.TrimPrefix(to, "pulsar://"), conns: make(map[net.Conn]struct{})}
	r.wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			r.wg.Go(func() { r.pass(in) })
		}
	})
	t.Cleanup(func() {
		assert.NoError(t, l.Close())
		r.cut()
		r.wg.Wait()
	})
	return r
}

func (r *relay) pass(in net.Conn) {
	defer in.Close()
	out, err := net.Dial("tcp", r.to)
	if err != nil {
		return
	}
	r.mu.Lock()
	r.conns[in] = struct{}{}
	r.mu.Unlock()
	r.wg.Go(func() {
		_, _ = io.Copy(in, out)
		in.Close()
	})
	_, _ = io.Copy(out, in)
	out.Close()
}

// cut closes every connection.
func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.conns {
		c.Close()
		delete(r.conns, c)
	}
}

func dialSecure(t *testing.T, cfg messaging.Config, tr *transcript, opts ...messaging.Option) *messaging.Client {
	t.Helper()
	cfg.OperationTimeout = cmp.Or(cfg.OperationTimeout, await.Patience)
	cfg.ConnectTimeout = cmp.Or(cfg.ConnectTimeout, await.Patience)
	client, err := messaging.Dial(testContext(t), cfg, append(opts, messaging.WithLogger(tr.logger()))...)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, client.Close(testContext(t))) })
	return client
}

func secureTopic(t *testing.T) string {
	t.Helper()
	return "persistent://public/default/" + strings.NewReplacer("/", "-", ",", "-", "_", "-").Replace(t.Name())
}

// requirePublishes opens a publisher with cfg and publishes.
func requirePublishes(t *testing.T, cfg messaging.Config, secrets ...string) {
	t.Helper()
	tr := newTranscript()
	p, err := dialSecure(t, cfg, tr).Publisher(testContext(t), secureTopic(t), messaging.Business())
	require.NoError(t, err)
	require.NoError(t, p.Publish(testContext(t), &messaging.Record{Payload: []byte("x")}))
	require.NoError(t, p.Close(testContext(t)))
	tr.requireNone(t, secrets...)
}

// requireBacklog asks for a backlog with cfg, and with a token that is refused.
func requireBacklog(t *testing.T, b *secureBroker, cfg messaging.Config, adminURL string, secrets ...string) {
	t.Helper()
	cfg.AdminURL = adminURL
	tr := newTranscript()
	client := dialSecure(t, cfg, tr)
	topic := b.Topic(t, "public/default", 2)
	consumer, err := client.Consumer(consumerConfig(topic, messaging.Exclusive))
	require.NoError(t, err)
	_, err = consumer.Drain(testContext(t), func(context.Context, *messaging.Delivery) error { return nil })
	require.NoError(t, err)
	publish(t, client, topic, 4, false)
	n, err := consumer.Backlog(testContext(t))
	require.NoError(t, err)
	require.EqualValues(t, 4, n)

	for token, want := range map[string]error{
		newSigner().token("orders", time.Hour): messaging.ErrAuthentication,
		b.sign.token("guest", time.Hour):       messaging.ErrAuthorization,
	} {
		cfg.Auth = messaging.Auth{Token: secret.String(token)}
		consumer, err := dialSecure(t, cfg, tr).Consumer(consumerConfig(topic, messaging.Exclusive))
		require.NoError(t, err)
		_, err = consumer.Backlog(testContext(t))
		require.ErrorIs(t, err, want)
		_, _ = tr.Write([]byte(err.Error()))
		secrets = append(secrets, token)
	}
	tr.requireNone(t, secrets...)
}

// A refusal is a client that must not get through, and what is said about it.
type refusal struct {
	name    string
	cfg     messaging.Config
	kind    error
	says    string
	secrets []string
}

// check opens a publisher in the background: that goes on until its context ends,
// with one warning and an error that says why. A lack of permission ends it at once.
func (r refusal) check(t *testing.T, wg *sync.WaitGroup) {
	t.Helper()
	tr := newTranscript()
	client := dialSecure(t, r.cfg, tr)
	topic := secureTopic(t) + "-" + strings.ReplaceAll(r.name, " ", "-")
	wg.Go(func() {
		ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
		defer cancel()
		go func() {
			select {
			case <-tr.warn:
				time.AfterFunc(2*time.Second, cancel) // it tries again meanwhile, and says nothing
			case <-ctx.Done():
			}
		}()
		_, err := client.Publisher(ctx, topic, messaging.Business())
		if errors.Is(r.kind, messaging.ErrAuthorization) {
			assert.ErrorIs(t, err, r.kind, r.name)
			assert.ErrorContains(t, err, r.says, r.name)
			assert.NoError(t, ctx.Err(), r.name)
			_, _ = tr.Write([]byte(err.Error()))
			for _, s := range r.secrets {
				assert.False(t, tr.holds(s), "%s: a secret was written: %s", r.name, tr)
			}
			return
		}
		t.Logf("%s: %v", r.name, err)
		if !assert.ErrorIs(t, err, context.Canceled, r.name) {
			return
		}
		assert.ErrorContains(t, err, r.says, r.name)
		if r.kind != nil {
			assert.ErrorIs(t, err, r.kind, r.name)
		}
		assert.Equal(t, 1, strings.Count(tr.String(), `"level":"warn"`), "%s: said once: %s", r.name, tr)
		_, _ = tr.Write([]byte(err.Error()))
		for _, s := range r.secrets {
			assert.False(t, tr.holds(s), "%s: a secret was written: %s", r.name, tr)
		}
	})
}

var (
	host2 = net.IPv4(127, 0, 0, 2)
	host3 = net.IPv4(127, 0, 0, 3)
)

func TestAuthentication(t *testing.T) {
	t.Parallel()
	b := newSecureBroker(t)
	is := newIssuer(t, b.sign)
	other := newSigner()
	stranger := newAuthority(t)
	plain := func(a messaging.Auth) messaging.Config { return messaging.Config{URL: b.URL(), Auth: a} }
	secure := func(a messaging.Auth) messaging.Config {
		return messaging.Config{URL: b.secure, TLS: messaging.TLS{CAFile: b.ca.file}, Auth: a}
	}

	t.Run("accepted", func(t *testing.T) {
		t.Run("token", func(t *testing.T) {
			t.Parallel()
			token := b.sign.token("orders", time.Hour)
			requirePublishes(t, plain(messaging.Auth{Token: secret.String(token + "\n")}), token)
		})
		t.Run("token file", func(t *testing.T) {
			t.Parallel()
			token := b.sign.token("orders", time.Hour)
			requirePublishes(t, plain(messaging.Auth{TokenFile: writeSecret(t, "\t"+token+"\r\n")}), token)
		})
		t.Run("oauth2", func(t *testing.T) {
			t.Parallel()
			requirePublishes(t, plain(is.auth(t, clientSecret)), clientSecret)
		})
		t.Run("client certificate", func(t *testing.T) {
			t.Parallel()
			requirePublishes(t, secure(b.ca.client(t, "orders")))
		})
		t.Run("admin", func(t *testing.T) {
			t.Parallel()
			token := b.sign.token("orders", time.Hour)
			requireBacklog(t, b, plain(messaging.Auth{Token: secret.String(token)}), b.AdminURL(), token)
			requireBacklog(t, b, plain(is.auth(t, clientSecret)), b.AdminURL(), clientSecret)
		})
		t.Run("permissions", func(t *testing.T) {
			t.Parallel()
			requirePermissions(t, b)
		})
		// Each host's certificate is for that host.
		t.Run("several hosts", func(t *testing.T) {
			t.Parallel()
			one, two := newRelay(t, b.ca, host2, host2, b.URL()), newRelay(t, b.ca, host3, host3, b.URL())
			cfg := secure(messaging.Auth{Token: secret.String(b.sign.token("orders", time.Hour))})
			cfg.URL = "pulsar+ssl://" + one.Addr().String() + "," + two.Addr().String()
			tr := newTranscript()
			_, err := dialSecure(t, cfg, tr).Publisher(testContext(t), secureTopic(t), messaging.Business())
			require.NoError(t, err)
			require.NotContains(t, tr.String(), `"level":"warn"`)
			require.Contains(t, tr.String(), one.Addr().String()+`","local_addr`)
			require.Contains(t, tr.String(), two.Addr().String()+`","local_addr`, "both were connected to")
		})
		t.Run("unverified", func(t *testing.T) {
			t.Parallel()
			cfg := secure(b.ca.client(t, "orders"))
			cfg.URL = fmt.Sprintf("pulsar+ssl://localhost:%d", b.port)
			cfg.TLS = messaging.TLS{Insecure: true}
			requirePublishes(t, cfg)
		})
	})

	t.Run("refused", func(t *testing.T) {
		var wg sync.WaitGroup
		defer wg.Wait()
		for name, token := range map[string]string{
			"token of another signer": other.token("orders", time.Hour),
			"expired token":           b.sign.token("orders", -time.Hour),
			"no token at all":         "pasted-the-wrong-thing",
			"malformed token":         "eyJhbGciOiJIUzI1NiJ9.c2VjcmV0LWluLWEtdG9rZW4.AAAA",
		} {
			refusal{name, plain(messaging.Auth{Token: secret.String(token)}), messaging.ErrAuthentication,
				"Failed to authenticate", []string{token}}.check(t, &wg)
		}
		guest, orders := b.sign.token("guest", time.Hour), b.sign.token("orders", time.Hour)
		untrusted, silent := is.auth(t, clientSecret), is.auth(t, clientSecret)
		untrusted.OAuth2.CAFile = stranger.file
		silent.OAuth2.IssuerURL = silentIssuer(t)
		mute := plain(silent)
		mute.OperationTimeout, mute.ConnectTimeout = time.Second, time.Second
		foreign, named := secure(b.ca.client(t, "orders")), secure(b.ca.client(t, "orders"))
		foreign.TLS.CAFile = stranger.file
		named.URL = fmt.Sprintf("pulsar+ssl://localhost:%d", b.port)
		for _, r := range []refusal{
			{"no credentials", plain(messaging.Auth{}), messaging.ErrAuthentication, "Failed to authenticate", nil},
			{"role without permission", plain(messaging.Auth{Token: secret.String(guest)}), messaging.ErrAuthorization,
				"AuthorizationError", []string{guest}},
			{"wrong client secret", plain(is.auth(t, "wrong-staple")), messaging.ErrAuthentication,
				"401 Unauthorized invalid_client", []string{"wrong-staple"}},
			{"issuer not trusted", plain(untrusted), messaging.ErrAuthentication,
				"certificate signed by unknown authority", []string{clientSecret}},
			{"silent issuer", mute, nil, "issuer of tokens does not answer", []string{clientSecret}},
			{"no client certificate", secure(messaging.Auth{Token: secret.String(orders)}), messaging.ErrTLS,
				"tls: certificate required", []string{orders}},
			{"client certificate of a stranger", secure(stranger.client(t, "orders")), messaging.ErrTLS, "remote error: tls: ", nil},
			{"untrusted broker", foreign, messaging.ErrTLS, "certificate signed by unknown authority", nil},
			{"broker with another name", named, messaging.ErrTLS, "wanted to match localhost", nil},
		} {
			r.check(t, &wg)
		}
	})

	// A host that shows the certificate of another host of the URL is not trusted.
	t.Run("certificate of another host", func(t *testing.T) {
		one, two := newRelay(t, b.ca, host2, host2, b.URL()), newRelay(t, b.ca, host3, host2, b.URL())
		cfg := secure(messaging.Auth{Token: secret.String(b.sign.token("orders", time.Hour))})
		cfg.URL = "pulsar+ssl://" + one.Addr().String() + "," + two.Addr().String()
		tr := newTranscript()
		client := dialSecure(t, cfg, tr)
		ctx, cancel := context.WithCancel(testContext(t))
		opened := make(chan struct{})
		go func() {
			defer close(opened)
			_, _ = client.Publisher(ctx, secureTopic(t), messaging.Business()) // the hosts take turns: either outcome
		}()
		defer func() {
			cancel()
			<-opened
		}()
		tr.until(t, "certificate is valid for 127.0.0.2, not 127.0.0.3")
		require.NotContains(t, tr.String(), two.Addr().String()+`","local_addr`)
	})

	t.Run("changed", func(t *testing.T) {
		// Every connection uses the file's present token, be it good or bad.
		t.Run("token file", func(t *testing.T) {
			t.Parallel()
			bad, good := other.token("orders", time.Hour), b.sign.token("orders", time.Hour)
			file := writeSecret(t, good)
			change := func(token string) {
				require.NoError(t, os.WriteFile(file+".new", []byte(token), 0o600))
				require.NoError(t, os.Rename(file+".new", file))
			}
			r := newRelay(t, b.ca, host2, host2, b.URL())
			cfg := secure(messaging.Auth{TokenFile: file})
			cfg.URL = "pulsar+ssl://" + r.Addr().String()
			tr := newTranscript()
			p, err := dialSecure(t, cfg, tr).Publisher(testContext(t), secureTopic(t), messaging.Business())
			require.NoError(t, err)
			require.NoError(t, p.Publish(testContext(t), &messaging.Record{Payload: []byte("1")}))
			require.NotContains(t, tr.String(), "authentication failed")

			change(bad)
			require.NoError(t, p.Publish(testContext(t), &messaging.Record{Payload: []byte("2")}), "the connection stays")
			r.cut()
			tr.until(t, "authentication failed")
			change(good)
			require.NoError(t, p.Publish(testContext(t), &messaging.Record{Payload: []byte("3")}))
			tr.requireNone(t, bad, good)
		})
		// The broker asks for another token when one expires: the connection stays.
		t.Run("oauth2 token expires", func(t *testing.T) {
			t.Parallel()
			is := newIssuer(t, b.sign)
			is.lifetime.Store(2)
			reg := prometheus.NewPedanticRegistry()
			tr := newTranscript()
			client := dialSecure(t, plain(is.auth(t, clientSecret)), tr, messaging.WithRegisterer(reg))
			p, err := client.Publisher(testContext(t), secureTopic(t), messaging.Business())
			require.NoError(t, err)
			first := []string{<-is.tokens}
			is.lifetime.Store(3600)
			first = append(first, <-is.tokens)
			require.NoError(t, p.Publish(testContext(t), &messaging.Record{Payload: []byte("x")}))
			tr.requireNone(t, append(first, clientSecret)...)
			require.NotContains(t, tr.String(), "producer lost")
			require.EqualValues(t, 2, is.issued.Load())
		})
	})
}

func TestNoAuthentication(t *testing.T) {
	t.Parallel()
	srv := stack.Pulsar(t)
	cfg := messaging.Config{URL: srv.URL()}
	p, err := dialSecure(t, cfg, newTranscript()).Publisher(testContext(t), srv.Topic(t, srv.Namespace(t), 0), messaging.Business())
	require.NoError(t, err)
	require.NoError(t, p.Publish(testContext(t), &messaging.Record{Payload: []byte("x")}))
	require.NoError(t, p.Close(testContext(t)))
}
