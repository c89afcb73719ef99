package target

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/test/await"
)

// issuer is a token endpoint.
type issuer struct {
	*receiver
	issued  atomic.Int64
	expires atomic.Int64 // expires_in of the next tokens
	fail    atomic.Pointer[func(http.ResponseWriter)]
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	i := &issuer{}
	i.expires.Store(3600)
	i.receiver = newReceiver(t, func(w http.ResponseWriter, r *http.Request) {
		if fail := i.fail.Load(); fail != nil {
			(*fail)(w)
			return
		}
		id, password, _ := r.BasicAuth()
		if id != "shop" || password != "client-secret-of-ours" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{
			"access_token": fmt.Sprintf("token-number-%d", i.issued.Add(1)), "token_type": "bearer", "expires_in": i.expires.Load(),
		})
	})
	return i
}

func (h *harness) withToken(url string, i *issuer) Target {
	return h.webhook(url, func(w *model.Webhook) {
		w.OAuth2 = &model.OAuth2{TokenURL: i.URL + "/token?hidden=in-the-url", ClientID: "shop", ClientSecret: "client-secret-of-ours", Scopes: []string{"a", "b"}}
	})
}

func TestOAuth2(t *testing.T) {
	h := newHarness(t, nil)
	i := newIssuer(t)
	accepted := atomic.Int64{}
	accepted.Store(1)
	r := newReceiver(t, nil)
	r.answer = func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != fmt.Sprintf("Bearer token-number-%d", accepted.Load()) {
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = w.Write([]byte("not with " + r.Header.Get("Authorization")))
		}
	}
	target := h.withToken(r.URL, i)

	// Many deliveries at once need one token.
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() { assert.Equal(t, Delivered, deliver(t, target, h.event("1")).Verdict) })
	}
	wg.Wait()
	assert.Equal(t, int64(1), i.count.Load())
	assert.Contains(t, i.last().body, "grant_type=client_credentials")
	assert.Contains(t, i.last().body, "scope=a+b")

	// One that is not accepted any more is fetched anew, in the same attempt.
	accepted.Store(2)
	before := r.count.Load()
	require.Equal(t, Delivered, deliver(t, target, h.event("1")).Verdict)
	assert.Equal(t, int64(2), i.count.Load())
	assert.Equal(t, before+2, r.count.Load())

	// Once: a receiver that takes none is asked twice.
	accepted.Store(-1)
	tokens := target.(*webhook).tokens
	tokens.mu.Lock()
	tokens.dropped = time.Time{}
	tokens.mu.Unlock()
	before = r.count.Load()
	result := deliver(t, target, h.event("1"))
	assert.Equal(t, Retry, result.Verdict)
	assert.Equal(t, 401, result.Status)
	assert.Equal(t, "not with Bearer <redacted>", result.Response)
	assert.Equal(t, before+2, r.count.Load())
	assert.Equal(t, int64(3), i.count.Load())

	// However many deliveries it refuses, that is not a request for a token each.
	began := time.Now()
	for range 50 {
		assert.Equal(t, 401, deliver(t, target, h.event("1")).Status)
	}
	assert.LessOrEqual(t, i.count.Load(), 4+int64(time.Since(began)/tokenPause))
}

func TestOAuth2TokensEnd(t *testing.T) {
	h := newHarness(t, nil)
	i := newIssuer(t)
	i.expires.Store(int64((tokenEarly + time.Second) / time.Second))
	r := newReceiver(t, nil)
	target := h.withToken(r.URL, i)
	require.Equal(t, Delivered, deliver(t, target, h.event("1")).Verdict)
	require.Eventually(t, func() bool {
		require.Equal(t, Delivered, deliver(t, target, h.event("1")).Verdict)
		return i.count.Load() == 2
	}, await.Patience, 10*time.Millisecond)
}

// TestOAuth2Fails: each failure of the token endpoint is another attempt's chance, is told without
// secrets, and is not asked for by each delivery anew.
func TestOAuth2Fails(t *testing.T) {
	for _, test := range []struct {
		name string
		fail func(http.ResponseWriter)
		text string
	}{
		{"500", func(w http.ResponseWriter) {
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = w.Write([]byte("client-secret-of-ours"))
		}, "token_url answered 500"},
		{"an error of the flow", func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusBadRequest)
			_, _ = w.Write([]byte(`{"error":"invalid_client","error_description":"client-secret-of-ours is wrong"}`))
		}, "token_url answered 400: invalid_client"},
		{"a long error code", func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusBadRequest)
			_, _ = fmt.Fprintf(w, `{"error":"%s client-secret-of-ours"}`, strings.Repeat("x", 85))
		}, "token_url answered 400"},
		{"a redirect", func(w http.ResponseWriter) {
			w.Header().Set("Location", "http://127.0.0.1:1/")
			w.WriteHeader(http.StatusFound)
		}, "token_url answered 302"},
		{"no JSON", func(w http.ResponseWriter) { _, _ = w.Write([]byte("hello")) }, "token_url"},
		{"no token", func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(`{"access_token":""}`))
		}, "token_url"},
		{"a token that is none", func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(`{"access_token":"a\r\nX-Injected: 1"}`))
		}, "cannot be in an HTTP header"},
		{"an answer without end", func(w http.ResponseWriter) {
			for {
				if _, err := w.Write(make([]byte, 64<<10)); err != nil {
					return
				}
			}
		}, "token_url"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			h := newHarness(t, nil)
			i := newIssuer(t)
			i.fail.Store(&test.fail)
			r := newReceiver(t, nil)
			target := h.withToken(r.URL, i)
			began := time.Now()
			result := deliver(t, target, h.event("1"))
			assert.Equal(t, Retry, result.Verdict)
			assert.Equal(t, ReasonToken, result.Reason)
			require.ErrorContains(t, result.Err, test.text)
			for _, hidden := range []string{"client-secret", "in-the-url"} {
				assert.NotContains(t, result.Err.Error(), hidden)
			}
			asked := i.count.Load()
			for range 10 {
				deliver(t, target, h.event("1"))
			}
			assert.LessOrEqual(t, i.count.Load(), asked*(1+int64(time.Since(began)/tokenPause)))
			assert.Zero(t, r.count.Load())

			i.fail.Store(nil)
			require.Eventually(t, func() bool { return deliver(t, target, h.event("1")).Verdict == Delivered }, await.Patience, 10*time.Millisecond)
		})
	}
}

func TestOAuth2IsGuardedAndBounded(t *testing.T) {
	names := newNames(t)
	names.set("127.0.0.1")
	h := newHarness(t, func(o *Options) {
		o.Config.Allow = []netip.Prefix{netip.MustParsePrefix("127.0.0.2/32")}
		o.Resolver = names.resolver()
	})
	i := newIssuer(t)
	r := newServerAt(t, "127.0.0.2:0")
	target := h.webhook(r.URL, func(w *model.Webhook) {
		w.OAuth2 = &model.OAuth2{TokenURL: strings.Replace(i.URL, "127.0.0.1", "token.example", 1), ClientID: "a", ClientSecret: "b"}
	})
	result := deliver(t, target, h.event("1"))
	assert.Equal(t, ReasonToken, result.Reason)
	assert.True(t, result.Unavailable)
	require.ErrorContains(t, result.Err, "127.0.0.1 is a loopback address")
	assert.Zero(t, i.count.Load())

	// A token endpoint that does not answer takes no longer than the attempt may.
	h = newHarness(t, nil)
	silent := rawServer(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	stuck := h.target(&model.Subscriber{
		Target: model.Target{Webhook: &model.Webhook{
			URL: r.URL, OAuth2: &model.OAuth2{TokenURL: silent, ClientID: "a", ClientSecret: "b"},
		}},
		Delivery: model.Delivery{Timeout: model.Duration(200 * time.Millisecond)},
	})
	result = deliver(t, stuck, h.event("1"))
	assert.Equal(t, ReasonTimeout, result.Reason, "%v", result.Err)
}
