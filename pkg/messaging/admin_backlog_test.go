package messaging_test

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/pkg/secret"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack"
)

// dialWith dials with cfg and closes at the end of the test.
func dialWith(t *testing.T, cfg messaging.Config) *messaging.Client {
	t.Helper()
	client, err := messaging.Dial(testContext(t), cfg)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), await.Patience)
		defer cancel()
		require.NoError(t, client.Close(ctx))
	})
	return client
}

func backlogOf(t *testing.T, c *messaging.Consumer) int64 {
	t.Helper()
	n, err := c.Backlog(testContext(t))
	require.NoError(t, err)
	return n
}

func TestBacklogFallsAsMessagesAreAcknowledged(t *testing.T) {
	t.Parallel()
	srv := stack.Pulsar(t)
	client := dialWith(t, messaging.Config{URL: srv.URL(), AdminURL: srv.AdminURL()})
	ns := srv.Namespace(t)
	for name, partitions := range map[string]int{"plain": 0, "partitioned": 3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			topic := srv.Topic(t, ns, partitions)
			c, err := client.Consumer(consumerConfig(topic, messaging.Shared))
			require.NoError(t, err)
			_, err = c.Backlog(testContext(t))
			require.ErrorContains(t, err, topic+": the subscription does not exist now")

			const n = 30
			publish(t, client, topic, n, false)
			allowed := make(chan struct{}, n)
			ctx, cancel := context.WithCancel(context.Background())
			r := &running{cancel: cancel, ended: make(chan error, 1)}
			go func() {
				r.ended <- c.Run(ctx, func(ctx context.Context, _ *messaging.Delivery) error {
					select {
					case <-allowed:
						return nil
					case <-ctx.Done():
						return ctx.Err()
					}
				})
			}()
			t.Cleanup(cancel)
			waits := func(want int64) {
				eventually(t, "backlog", func() bool { got, err := c.Backlog(ctx); return err == nil && got == want })
			}
			waits(n)
			for range 10 {
				allowed <- struct{}{}
			}
			waits(n - 10)
			for range n - 10 {
				allowed <- struct{}{}
			}
			waits(0)
			r.stop(t)
			publish(t, client, topic, 5, false)
			require.EqualValues(t, 5, backlogOf(t, c), "the consumer need not run")
		})
	}
}

func TestBacklogCountsABatchAsOne(t *testing.T) {
	t.Parallel()
	srv := stack.Pulsar(t)
	client := dialWith(t, messaging.Config{URL: srv.URL(), AdminURL: srv.AdminURL()})
	topic := srv.Topic(t, srv.Namespace(t), 0)
	c, err := client.Consumer(consumerConfig(topic, messaging.Exclusive))
	require.NoError(t, err)
	_, err = c.Drain(testContext(t), func(context.Context, *messaging.Delivery) error { return nil })
	require.NoError(t, err)
	publish(t, client, topic, 1000, true)
	n := backlogOf(t, c)
	require.Positive(t, n)
	require.Less(t, n, int64(500))
	require.Equal(t, srv.Stats(t, topic).Subscriptions["sub"].MsgBacklog, n)
}

// A copy that waits on the retry topic has been acknowledged on its own.
func TestBacklogCountsTheRetryTopic(t *testing.T) {
	t.Parallel()
	srv := stack.Pulsar(t)
	client := dialWith(t, messaging.Config{URL: srv.URL(), AdminURL: srv.AdminURL()})
	topic := srv.Topic(t, srv.Namespace(t), 0)
	publish(t, client, topic, 3, false)
	cfg := consumerConfig(topic, messaging.Shared)
	cfg.Retry.MinDelay, cfg.Retry.MaxDelay = time.Hour, time.Hour
	c, err := client.Consumer(cfg)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{cancel: cancel, ended: make(chan error, 1)}
	t.Cleanup(cancel)
	go func() {
		r.ended <- c.Run(ctx, func(context.Context, *messaging.Delivery) error { return io.ErrUnexpectedEOF })
	}()
	eventually(t, "all are on the retry topic", func() bool {
		sub, ok := srv.Stats(t, topic).Subscriptions["sub"]
		return ok && sub.MsgBacklog == 0
	})
	r.stop(t)
	require.EqualValues(t, 3, backlogOf(t, c))
}

func TestBacklogOfAPattern(t *testing.T) {
	t.Parallel()
	srv := stack.Pulsar(t)
	client := dialWith(t, messaging.Config{URL: srv.URL(), AdminURL: srv.AdminURL()})
	ns := srv.Namespace(t)
	plain, partitioned, other, unsubscribed := srv.Topic(t, ns, 0), srv.Topic(t, ns, 3), srv.Topic(t, ns, 0), srv.Topic(t, ns, 2)
	base := func(topic string) string { return strings.TrimPrefix(topic, "persistent://"+ns+"/") }
	nothing := func(context.Context, *messaging.Delivery) error { return nil }
	for _, topic := range []string{plain, partitioned, other} {
		c, err := client.Consumer(consumerConfig(topic, messaging.Failover))
		require.NoError(t, err)
		_, err = c.Drain(testContext(t), nothing)
		require.NoError(t, err)
		publish(t, client, topic, 7, false)
	}
	publish(t, client, unsubscribed, 7, false)

	cfg := consumerConfig("", messaging.Failover)
	cfg.Topics = nil
	cfg.Pattern = "persistent://" + ns + "/(" + strings.Join([]string{base(plain), base(partitioned), base(unsubscribed)}, "|") + ")"
	cfg.Retry.DeadLetterTopic = "persistent://" + ns + "/dead"
	c, err := client.Consumer(cfg)
	require.NoError(t, err)
	require.EqualValues(t, 14, backlogOf(t, c))

	cfg.Subscription = "nobody"
	c, err = client.Consumer(cfg)
	require.NoError(t, err)
	_, err = c.Backlog(testContext(t))
	require.ErrorContains(t, err, "the subscription does not exist now")

	cfg.Pattern = "persistent://" + ns + "/no-such-.*"
	c, err = client.Consumer(cfg)
	require.NoError(t, err)
	require.Zero(t, backlogOf(t, c))
}

func TestBacklogOfNoTopic(t *testing.T) {
	t.Parallel()
	srv := stack.Pulsar(t)
	client := dialWith(t, messaging.Config{URL: srv.URL(), AdminURL: srv.AdminURL()})
	c, err := client.Consumer(consumerConfig("persistent://"+srv.Namespace(t)+"/none", messaging.Exclusive))
	require.NoError(t, err)
	_, err = c.Backlog(testContext(t))
	require.ErrorContains(t, err, "404")
}

// adminServer answers requests to the admin API.
type adminServer struct {
	*httptest.Server
	mu     sync.Mutex
	tokens []string // of the requests
}

const oneWaits = `{"subscriptions":{"sub":{"msgBacklog":1}}}`

func newAdminServer(t *testing.T, secured *tls.Config, h http.HandlerFunc) *adminServer {
	t.Helper()
	s := &adminServer{}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.tokens = append(s.tokens, strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
		s.mu.Unlock()
		h(w, r)
	}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // handshakes that fail are part of the test
	if secured != nil {
		s.TLS = secured
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	return s
}

func (s *adminServer) seen() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.tokens...)
}

func answers(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

// asker is a consumer without brokers, which asking does not need.
func asker(t *testing.T, cfg messaging.Config) *messaging.Consumer {
	t.Helper()
	if cfg.URL == "" {
		cfg.URL = "pulsar://127.0.0.1:1"
	}
	c, err := dialWith(t, cfg).Consumer(consumerConfig(topic, messaging.Exclusive))
	require.NoError(t, err)
	return c
}

func TestBacklogWithoutFigure(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	for name, test := range map[string]struct {
		handler http.HandlerFunc
		kind    error
		says    string
	}{
		"a web page":        {answers(200, "<html>welcome</html>"), nil, "not the JSON of Pulsar's admin API"},
		"other JSON":        {answers(200, `["x"]`), nil, "not the JSON of Pulsar's admin API"},
		"nothing":           {answers(200, ""), nil, "not the JSON of Pulsar's admin API"},
		"too large":         {answers(200, oneWaits+strings.Repeat(" ", 4<<20)), nil, "larger than 4194304 bytes"},
		"no subscription":   {answers(200, `{"subscriptions":{"another":{"msgBacklog":1}}}`), nil, "the subscription does not exist now"},
		"no figure":         {answers(200, `{"subscriptions":{"sub":{}}}`), nil, "holds no msgBacklog"},
		"not authenticated": {answers(401, "who?"), messaging.ErrAuthentication, "401 Unauthorized"},
		"not permitted (401)": {answers(401, `{"reason":"Unauthorized to validateTopicOperation for operation [GET_STATS]"}`), messaging.ErrAuthorization,
			"401 Unauthorized: Unauthorized to validateTopicOperation"},
		"not permitted": {answers(403, "no"), messaging.ErrAuthorization, "403 Forbidden"},
		"not found":     {answers(404, `{"reason":"Topic not found"}`), nil, "404 Not Found: Topic not found"},
		"broken":        {answers(500, `{"reason":"out of luck\n at line 1"}`), nil, "500 Internal Server Error: out of luck"},
		"in circles": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, r.URL.Path, http.StatusTemporaryRedirect)
		}, nil, "too many redirects"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newAdminServer(t, nil, test.handler)
			n, err := asker(t, messaging.Config{AdminURL: s.URL}).Backlog(testContext(t))
			require.ErrorContains(t, err, test.says)
			require.ErrorContains(t, err, "messaging: backlog of subscription sub: "+topic)
			require.NotContains(t, err.Error(), "line 1")
			if test.kind != nil {
				require.ErrorIs(t, err, test.kind)
			}
			require.Zero(t, n)
		})
	}
	t.Run("nobody there", func(t *testing.T) {
		_, err := asker(t, messaging.Config{AdminURL: "http://" + l.Addr().String()}).Backlog(testContext(t))
		require.ErrorContains(t, err, "connection refused")
	})
	t.Run("no address", func(t *testing.T) {
		_, err := asker(t, messaging.Config{}).Backlog(testContext(t))
		require.ErrorIs(t, err, messaging.ErrNoAdminURL)
	})
}

// Whoever waits for an answer that does not come is let go by its context and by Close.
func TestBacklogIsGivenUp(t *testing.T) {
	t.Parallel() // it waits for a timeout
	asked := make(chan struct{}, 10)
	s := newAdminServer(t, nil, func(_ http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		<-r.Context().Done()
	})
	client := dialWith(t, messaging.Config{URL: "pulsar://127.0.0.1:1", AdminURL: s.URL})
	c, err := client.Consumer(consumerConfig(topic, messaging.Exclusive))
	require.NoError(t, err)

	ctx, cancel := context.WithCancel(testContext(t))
	ended := make(chan error, 1)
	go func() { _, err := c.Backlog(ctx); ended <- err }()
	<-asked
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)

	go func() { _, err := c.Backlog(testContext(t)); ended <- err }()
	<-asked
	require.NoError(t, client.Close(testContext(t)))
	require.ErrorIs(t, <-ended, messaging.ErrClosed)
	_, err = c.Backlog(testContext(t))
	require.ErrorIs(t, err, messaging.ErrClosed)

	t.Run("by itself", func(t *testing.T) {
		_, err := asker(t, messaging.Config{AdminURL: s.URL}).Backlog(testContext(t))
		require.ErrorContains(t, err, "no answer within 5s")
	})
}

// A broker sends us on to the one that serves the topic.
func TestBacklogOfAnotherBroker(t *testing.T) {
	t.Parallel()
	owner := newAdminServer(t, nil, answers(200, oneWaits))
	first := newAdminServer(t, nil, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, owner.URL+r.URL.Path, http.StatusTemporaryRedirect)
	})
	require.EqualValues(t, 1, backlogOf(t, asker(t, messaging.Config{AdminURL: first.URL})))
	require.Len(t, owner.seen(), 1)

	_, err := asker(t, messaging.Config{AdminURL: first.URL, Auth: messaging.Auth{Token: "t0ken"}}).Backlog(testContext(t))
	require.ErrorContains(t, err, "credentials go to admin_url only")
	require.NotContains(t, err.Error(), "t0ken")
	require.Equal(t, []string{"", "t0ken"}, first.seen())
	require.Len(t, owner.seen(), 1, "not asked with credentials, nor without")

	// To the same host they go along.
	var moved *adminServer
	moved = newAdminServer(t, nil, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("authoritative") == "" {
			http.Redirect(w, r, moved.URL+r.URL.Path+"?authoritative=true", http.StatusTemporaryRedirect)
			return
		}
		_, _ = io.WriteString(w, oneWaits)
	})
	require.EqualValues(t, 1, backlogOf(t, asker(t, messaging.Config{AdminURL: moved.URL, Auth: messaging.Auth{Token: "t0ken"}})))
	require.Equal(t, []string{"t0ken", "t0ken"}, moved.seen())
}

func TestBacklogCredentials(t *testing.T) {
	t.Parallel()
	t.Run("token file", func(t *testing.T) {
		s := newAdminServer(t, nil, answers(200, oneWaits))
		file := writeSecret(t, "one\n")
		c := asker(t, messaging.Config{AdminURL: s.URL + "/", Auth: messaging.Auth{TokenFile: file}})
		require.EqualValues(t, 1, backlogOf(t, c))
		require.NoError(t, os.WriteFile(file, []byte("two"), 0o600))
		require.EqualValues(t, 1, backlogOf(t, c))
		require.NoError(t, os.WriteFile(file, nil, 0o600))
		_, err := c.Backlog(testContext(t))
		require.ErrorIs(t, err, messaging.ErrAuthentication)
		require.ErrorContains(t, err, "is empty")
		require.Equal(t, []string{"one", "two"}, s.seen())
	})
	// A token that is refused is replaced by the next call, though it has not expired.
	t.Run("oauth2", func(t *testing.T) {
		is := newIssuer(t, newSigner())
		refuse := true
		s := newAdminServer(t, nil, func(w http.ResponseWriter, _ *http.Request) {
			if refuse { // requests come one after the other
				refuse = false
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			_, _ = io.WriteString(w, oneWaits)
		})
		c := asker(t, messaging.Config{AdminURL: s.URL, Auth: is.auth(t, clientSecret)})
		_, err := c.Backlog(testContext(t))
		require.ErrorIs(t, err, messaging.ErrAuthentication)
		require.EqualValues(t, 1, backlogOf(t, c))
		require.EqualValues(t, 1, backlogOf(t, c))
		first, second := <-is.tokens, <-is.tokens
		require.Equal(t, []string{first, second, second}, s.seen())
	})
	t.Run("wrong client secret", func(t *testing.T) {
		is := newIssuer(t, newSigner())
		s := newAdminServer(t, nil, answers(200, oneWaits))
		_, err := asker(t, messaging.Config{AdminURL: s.URL, Auth: is.auth(t, "wrong-staple")}).Backlog(testContext(t))
		require.ErrorIs(t, err, messaging.ErrAuthentication)
		require.NotContains(t, err.Error(), "wrong-staple")
		require.Empty(t, s.seen())
	})
}

func TestBacklogOverTLS(t *testing.T) {
	t.Parallel()
	ca, stranger := newAuthority(t), newAuthority(t)
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	cert, err := tls.LoadX509KeyPair(ca.issue(t, "broker", key, net.IPv4(127, 0, 0, 1)))
	require.NoError(t, err)
	clients := x509.NewCertPool()
	clients.AddCert(ca.cert)
	s := newAdminServer(t, &tls.Config{Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients},
		answers(200, oneWaits))
	const secure = "pulsar+ssl://127.0.0.1:1"
	own, trusted := ca.client(t, "orders"), messaging.TLS{CAFile: ca.file}

	require.EqualValues(t, 1, backlogOf(t, asker(t, messaging.Config{URL: secure, AdminURL: s.URL, TLS: trusted, Auth: own})))
	elsewhere := strings.Replace(s.URL, "127.0.0.1", "localhost", 1)
	require.EqualValues(t, 1, backlogOf(t, asker(t, messaging.Config{URL: secure, AdminURL: elsewhere, TLS: messaging.TLS{Insecure: true}, Auth: own})))
	for name, test := range map[string]struct {
		cfg  messaging.Config
		says string
	}{
		"no certificate":           {messaging.Config{AdminURL: s.URL, TLS: trusted, Auth: messaging.Auth{Token: secret.String("x")}}, "certificate required"},
		"a stranger's certificate": {messaging.Config{AdminURL: s.URL, TLS: trusted, Auth: stranger.client(t, "orders")}, "remote error"},
		"an untrusted broker":      {messaging.Config{AdminURL: s.URL, TLS: messaging.TLS{CAFile: stranger.file}, Auth: own}, "unknown authority"},
		"another host's":           {messaging.Config{AdminURL: elsewhere, TLS: trusted, Auth: own}, "localhost"},
	} {
		t.Run(name, func(t *testing.T) {
			test.cfg.URL = secure
			_, err := asker(t, test.cfg).Backlog(testContext(t))
			require.ErrorIs(t, err, messaging.ErrTLS)
			require.ErrorContains(t, err, test.says)
		})
	}

	// Each call reads the certificate's files again.
	rotated := messaging.Auth{CertFile: own.CertFile, KeyFile: own.KeyFile}
	c := asker(t, messaging.Config{URL: secure, AdminURL: s.URL, TLS: trusted, Auth: rotated})
	require.EqualValues(t, 1, backlogOf(t, c))
	require.NoError(t, os.WriteFile(rotated.CertFile, nil, 0o600))
	_, err = c.Backlog(testContext(t))
	require.ErrorIs(t, err, messaging.ErrAuthentication)
}
