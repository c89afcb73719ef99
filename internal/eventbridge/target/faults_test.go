package target

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/test/await"
)

// readRequest reads one request from a raw connection.
func readRequest(t testing.TB, conn net.Conn) *http.Request {
	t.Helper()
	r, err := http.ReadRequest(bufio.NewReader(conn))
	if err != nil {
		return nil
	}
	_, _ = io.Copy(io.Discard, r.Body)
	return r
}

// readWhole reads one request and its body from a raw connection.
func readWhole(conn net.Conn) (*http.Request, string) {
	r, err := http.ReadRequest(bufio.NewReader(conn))
	if err != nil {
		return nil, ""
	}
	body, _ := io.ReadAll(r.Body)
	return r, string(body)
}

func say(conn net.Conn, text string) { _, _ = io.WriteString(conn, text) }

// drip writes text piece by piece for as long as the connection lasts.
func drip(conn net.Conn, text string) {
	for {
		if _, err := io.WriteString(conn, text); err != nil {
			return
		}
		time.Sleep(10 * time.Millisecond) // the sender's pace
	}
}

// TestReceiversThatMisbehave is about answers that never end, do not come, or are no HTTP.
func TestReceiversThatMisbehave(t *testing.T) {
	h := newHarness(t, nil)
	for _, test := range []struct {
		name     string
		converse func(net.Conn)
		verdict  Verdict
		reason   string
		text     string
		timeout  time.Duration // 0: long where it is not waited for
	}{
		{name: "says nothing", converse: func(c net.Conn) { readRequest(t, c); _, _ = io.Copy(io.Discard, c) },
			reason: ReasonTimeout, text: "no answer within 300ms"},
		{name: "does not read", converse: func(c net.Conn) { drip(c, "") }, reason: ReasonTimeout, text: "no answer within 300ms"},
		{name: "closes", converse: func(net.Conn) {}, reason: ReasonConnection, text: "no answer: "},
		{name: "closes behind the request", converse: func(c net.Conn) { readRequest(t, c) }, reason: ReasonConnection, text: "no answer: EOF"},
		{name: "resets", converse: func(c net.Conn) { _ = c.(*net.TCPConn).SetLinger(0) }, reason: ReasonConnection, text: "reset by peer"},
		{name: "speaks no HTTP", converse: func(c net.Conn) { readRequest(t, c); say(c, "220 mail.example ESMTP\r\n") }, reason: ReasonConnection, text: "malformed HTTP"},
		{name: "speaks much that is no HTTP", converse: func(c net.Conn) { readRequest(t, c); say(c, strings.Repeat("x", 50<<10)+"\r\n\r\n") },
			reason: ReasonConnection, text: "malformed HTTP"},
		{name: "a long line in the head", converse: func(c net.Conn) {
			readRequest(t, c)
			say(c, "HTTP/1.1 200 OK\r\n"+strings.Repeat("\x01", 50<<10)+"\r\n\r\n")
		},
			reason: ReasonConnection, text: "malformed MIME header"},
		{name: "heads without end", converse: func(c net.Conn) {
			readRequest(t, c)
			say(c, "HTTP/1.1 200 OK\r\n")
			drip(c, "X-A: "+strings.Repeat("a", 8<<10)+"\r\n")
		},
			reason: ReasonConnection, text: "exceeded"},
		{name: "slow heads", converse: func(c net.Conn) { readRequest(t, c); say(c, "HTTP/1.1 200 OK\r\n"); drip(c, "X-A: a\r\n") }, reason: ReasonTimeout, text: "no answer within"},
		{name: "1xx without end", converse: func(c net.Conn) { readRequest(t, c); drip(c, "HTTP/1.1 103 Early Hints\r\n\r\n") }, reason: ReasonTimeout, text: "no answer"},
		{name: "switches protocols", converse: func(c net.Conn) {
			readRequest(t, c)
			say(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n")
			drip(c, "x")
		}, reason: ReasonStatus, text: "answered 101"},
		{name: "a body without end", converse: func(c net.Conn) {
			readRequest(t, c)
			say(c, "HTTP/1.1 200 OK\r\n\r\n")
			drip(c, strings.Repeat("b", 16<<10))
		}, verdict: Delivered},
		{name: "a slow body", converse: func(c net.Conn) {
			readRequest(t, c)
			say(c, "HTTP/1.1 500 Oh\r\nContent-Length: 100000\r\n\r\nit began")
			_, _ = io.Copy(io.Discard, c)
		}, reason: ReasonStatus, text: "answered 500", timeout: time.Second},
		{name: "a body that is cut off", converse: func(c net.Conn) {
			readRequest(t, c)
			say(c, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nit began")
		}, verdict: Delivered},
		{name: "a length that is none", converse: func(c net.Conn) { readRequest(t, c); say(c, "HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n") },
			reason: ReasonConnection, text: "Content-Length"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			timeout := await.Patience
			if test.reason == ReasonTimeout {
				timeout = 300 * time.Millisecond
			} else if test.timeout > 0 {
				timeout = test.timeout
			}
			target := h.withTimeout(rawServer(t, test.converse), timeout)
			result := deliver(t, target, h.event("1"))
			assert.Equal(t, test.verdict, result.Verdict, "%v", result.Err)
			assert.Equal(t, test.reason, result.Reason, "%v", result.Err)
			if test.name != "resets" { // perhaps before there is a connection
				assert.Equal(t, test.reason == ReasonTimeout, result.Unavailable, "a connection that breaks may be about the event")
			}
			if test.text != "" {
				require.ErrorContains(t, result.Err, test.text)
				assert.LessOrEqual(t, len(result.Err.Error()), maxErrorText+3)
			} else {
				require.NoError(t, result.Err)
			}
			assert.LessOrEqual(t, len(result.Response), responseKept)
		})
	}
}

// TestMemoryOfEndlessAnswers has receivers that send as fast as they can.
func TestMemoryOfEndlessAnswers(t *testing.T) {
	h := newHarness(t, nil)
	flood := bytes.Repeat([]byte("f"), 1<<20)
	url := rawServer(t, func(c net.Conn) {
		readRequest(t, c)
		say(c, "HTTP/1.1 503 Busy\r\nRetry-After: 3\r\n\r\n")
		for {
			if _, err := c.Write(flood); err != nil {
				return
			}
		}
	})
	target := h.withTimeout(url, await.Patience)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 20 {
		result := deliver(t, target, h.event("1"))
		require.Equal(t, 503, result.Status, "%v", result.Err)
		require.Equal(t, 3*time.Second, result.RetryAfter)
		require.Len(t, result.Response, responseKept)
	}
	runtime.ReadMemStats(&after)
	assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(8<<20))
}

func TestNobodyListens(t *testing.T) {
	h := newHarness(t, nil)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := listener.Addr().String()
	require.NoError(t, listener.Close())
	result := deliver(t, h.withTimeout("http://"+address, await.Patience), h.event("1"))
	assert.Equal(t, ReasonConnection, result.Reason)
	require.ErrorContains(t, result.Err, "connection refused")
	assert.Equal(t, Retry, result.Verdict)

	names := newNames(t)
	names.set("127.0.0.1")
	h = newHarness(t, func(o *Options) { o.Resolver = names.resolver(); _ = names.conn.Close() })
	result = deliver(t, h.withTimeout("http://gone.example/", time.Second), h.event("1"))
	assert.Equal(t, Retry, result.Verdict)
	require.Error(t, result.Err)
}

func TestStoppedByTheCaller(t *testing.T) {
	h := newHarness(t, nil)
	asked := make(chan struct{}, 1)
	target := h.withTimeout(rawServer(t, func(c net.Conn) {
		readRequest(t, c)
		asked <- struct{}{}
		_, _ = io.Copy(io.Discard, c)
	}), time.Minute)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-asked
		cancel()
	}()
	results := target.Deliver(ctx, []Delivery{h.event("1")})
	assert.Equal(t, Retry, results[0].Verdict)
	assert.Equal(t, ReasonStopped, results[0].Reason)
	assert.False(t, results[0].Unavailable)
}

// TestTLS shows that certificates are verified, always.
func TestTLS(t *testing.T) {
	h := newHarness(t, nil)
	authority := newAuthority(t)
	serve := func(change func(*tls.Config)) string {
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		server.TLS = &tls.Config{Certificates: []tls.Certificate{authority.issue(t, "127.0.0.1")}}
		if change != nil {
			change(server.TLS)
		}
		server.Config.ErrorLog = quiet()
		server.StartTLS()
		t.Cleanup(server.Close)
		return server.URL
	}
	trusting := &model.ClientTLS{CA: authority.pem}
	client := authority.issue(t, "eventbridge")
	certificate, key := pemOf(t, client)
	with := &model.ClientTLS{CA: authority.pem, Certificate: certificate, Key: key}
	other := newAuthority(t)
	strangersCertificate, strangersKey := pemOf(t, other.issue(t, "eventbridge"))
	stranger := &model.ClientTLS{CA: authority.pem, Certificate: strangersCertificate, Key: strangersKey}
	mutual := func(c *tls.Config) { c.ClientAuth, c.ClientCAs = tls.RequireAndVerifyClientCert, authority.pool }
	for _, test := range []struct {
		name   string
		server func(*tls.Config)
		client *model.ClientTLS
		text   string
	}{
		{"a trusted authority", nil, trusting, ""},
		{"an authority that is not trusted", nil, nil, "unknown authority"},
		{"another authority", nil, &model.ClientTLS{CA: other.pem}, "unknown authority"},
		{"a certificate of another name", func(c *tls.Config) { c.Certificates = []tls.Certificate{authority.issue(t, "shop.example")} }, trusting, "127.0.0.1"},
		{"an expired certificate", func(c *tls.Config) { c.Certificates = []tls.Certificate{authority.expired(t, "127.0.0.1")} }, trusting, "expired"},
		{"TLS 1.1", func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS10, tls.VersionTLS11 }, trusting, "protocol version"},
		{"mutual TLS", mutual, with, ""},
		{"mutual TLS without a certificate", mutual, trusting, "certificate required"},
		{"mutual TLS with a stranger's certificate", mutual, stranger, "TLS"},
	} {
		t.Run(test.name, func(t *testing.T) {
			target := h.webhook(serve(test.server), func(w *model.Webhook) { w.TLS = test.client })
			result := deliver(t, target, h.event("1"))
			if test.text == "" {
				require.Equal(t, Delivered, result.Verdict, "%v", result.Err)
				return
			}
			assert.Equal(t, Retry, result.Verdict)
			assert.Equal(t, ReasonTLS, result.Reason, "%v", result.Err)
			assert.True(t, result.Unavailable)
			require.ErrorContains(t, result.Err, test.text)
		})
	}
	t.Run("a server without TLS", func(t *testing.T) {
		plain := newReceiver(t, nil)
		result := deliver(t, h.webhook(strings.Replace(plain.URL, "http:", "https:", 1), nil), h.event("1"))
		assert.Equal(t, ReasonTLS, result.Reason, "%v", result.Err)
		assert.Zero(t, plain.count.Load())
	})
	t.Run("a client without TLS", func(t *testing.T) {
		result := deliver(t, h.webhook(strings.Replace(serve(nil), "https:", "http:", 1), nil), h.event("1"))
		assert.Equal(t, 400, result.Status)
	})
}

// TestProxiesOfTheEnvironmentAreNotUsed: they would connect to what the guard does not see.
func TestProxiesOfTheEnvironmentAreNotUsed(t *testing.T) {
	proxy := newReceiver(t, nil)
	t.Setenv("HTTP_PROXY", proxy.URL)
	t.Setenv("http_proxy", proxy.URL)
	h := newHarness(t, nil)
	names := newNames(t)
	names.set("127.0.0.1")
	h.resolver = names.resolver()
	h.shared = h.newTransport(nil, 4)
	r := newReceiver(t, nil)
	result := deliver(t, h.webhook(fmt.Sprintf("http://shop.example:%d/", r.Listener.Addr().(*net.TCPAddr).Port), nil), h.event("1"))
	require.Equal(t, Delivered, result.Verdict, "%v", result.Err)
	assert.Zero(t, proxy.count.Load())
}
