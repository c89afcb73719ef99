package target

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/secret"
)

const traced = `{"specversion":"1.0","id":"7","source":"/shop","type":"order.placed","subject":"a \"b\" %","time":"2026-11-22T10:00:00Z",` +
	`"traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01","tracestate":"a=1","urgent":true,"weight":5,"data":{"n":1}}`

func TestWebhookStructured(t *testing.T) {
	h := newHarness(t, nil)
	r := newReceiver(t, nil)
	target := h.webhook(r.URL+"/in?x=1", func(w *model.Webhook) {
		w.Headers = map[string]secret.String{"x-key": "abcdefgh", "User-Agent": "shop"}
		w.Bearer = "token-of-the-shop"
		w.SigningSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	})
	d := h.stored(traced)
	d.Hops = 2
	result := deliver(t, target, d)
	require.Equal(t, Delivered, result.Verdict, "%v", result.Err)
	assert.Equal(t, 200, result.Status)
	assert.Positive(t, result.Latency)
	require.NoError(t, result.Err)

	got := r.last()
	assert.JSONEq(t, traced, got.body)
	assert.Len(t, got.body, len(traced))
	assert.Equal(t, "application/cloudevents+json", got.head.Get("Content-Type"))
	assert.Equal(t, "abcdefgh", got.head.Get("X-Key"))
	assert.Equal(t, "shop", got.head.Get("User-Agent"))
	assert.Equal(t, "Bearer token-of-the-shop", got.head.Get("Authorization"))
	assert.Equal(t, "3", got.head.Get("Aviary-Hops"))
	assert.Equal(t, "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", got.head.Get("Traceparent"))
	assert.Equal(t, "a=1", got.head.Get("Tracestate"))
	assert.Equal(t, d.Event.WebhookID(), got.head.Get("Webhook-Id"))
	for _, absent := range []string{"X-Idempotency-Key", "Accept-Encoding", "Ce-Id"} {
		assert.NotContains(t, got.head, absent)
	}
	verifier, err := standardwebhooks.NewWebhook("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	require.NoError(t, err)
	require.NoError(t, verifier.Verify([]byte(got.body), got.head))

	// Another attempt has the same webhook-id.
	require.Equal(t, Delivered, deliver(t, target, d).Verdict)
	assert.Equal(t, got.head.Get("Webhook-Id"), r.last().head.Get("Webhook-Id"))
}

func TestWebhookBinary(t *testing.T) {
	h := newHarness(t, nil)
	r := newReceiver(t, nil)
	target := h.webhook(r.URL, func(w *model.Webhook) { w.Mode = "binary" })
	require.Equal(t, Delivered, deliver(t, target, h.stored(traced)).Verdict)
	got := r.last()
	assert.Equal(t, `{"n":1}`, got.body)
	for name, want := range map[string]string{
		"Content-Type": "application/json", "Ce-Specversion": "1.0", "Ce-Id": "7", "Ce-Source": "/shop", "Ce-Type": "order.placed",
		"Ce-Subject": "a%20%22b%22%20%25", "Ce-Time": "2026-11-22T10:00:00Z", "Ce-Urgent": "true", "Ce-Weight": "5", "Aviary-Hops": "1",
	} {
		assert.Equal(t, want, got.head.Get(name), name)
	}
	assert.NotContains(t, got.head, "Ce-Datacontenttype")

	for _, test := range []struct{ rest, contentType, body string }{
		{`,"datacontenttype":"text/plain","data":"a\nb"`, "text/plain", "a\nb"},
		{`,"datacontenttype":"image/png","data_base64":"iVBORw=="`, "image/png", "\x89PNG"},
		{``, "", ""},
	} {
		d := h.stored(`{"specversion":"1.0","id":"1","source":"/s","type":"t"` + test.rest + `}`)
		require.Equal(t, Delivered, deliver(t, target, d).Verdict)
		got := r.last()
		assert.Equal(t, test.body, got.body)
		assert.Equal(t, test.contentType, got.head.Get("Content-Type"))
	}
}

func TestWebhookWithTransformedBody(t *testing.T) {
	h := newHarness(t, nil)
	r := newReceiver(t, nil)
	for _, mode := range []string{"binary", "structured"} {
		target := h.webhook(r.URL, func(w *model.Webhook) { w.Mode, w.SigningSecret = mode, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw" })
		d := h.event("1")
		d.Body, d.ContentType = []byte("<a/>"), "application/xml"
		require.Equal(t, Delivered, deliver(t, target, d).Verdict)
		got := r.last()
		assert.Equal(t, "<a/>", got.body)
		assert.Equal(t, "application/xml", got.head.Get("Content-Type"))
		assert.Equal(t, "order.placed", got.head.Get("Ce-Type"))
		verifier, err := standardwebhooks.NewWebhook("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
		require.NoError(t, err)
		require.NoError(t, verifier.Verify([]byte(got.body), got.head))

		d.Body = []byte{}
		require.Equal(t, Delivered, deliver(t, target, d).Verdict)
		assert.Empty(t, r.last().body)
	}
	d := h.event("1")
	d.Body, d.ContentType = []byte("x"), "text/plain\r\nX-Injected: 1"
	result := deliver(t, h.webhook(r.URL, nil), d)
	assert.Equal(t, Refused, result.Verdict)
	assert.Equal(t, ReasonEvent, result.Reason)
	assert.Equal(t, int64(4), r.count.Load())
}

func TestWebhookBatch(t *testing.T) {
	h := newHarness(t, nil)
	r := newReceiver(t, nil)
	target := h.webhook(r.URL, func(w *model.Webhook) { w.Mode, w.SigningSecret = "batch", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw" })
	var batch []Delivery
	for i := range 8 {
		batch = append(batch, h.event(fmt.Sprintf("e%d", i)))
	}
	batch[3].Hops = 4
	for _, result := range target.Deliver(context.Background(), batch) {
		require.Equal(t, Delivered, result.Verdict, "%v", result.Err)
	}
	require.Equal(t, int64(1), r.count.Load())
	got := r.last()
	assert.Equal(t, "application/cloudevents-batch+json", got.head.Get("Content-Type"))
	assert.Equal(t, "5", got.head.Get("Aviary-Hops"))
	var events []map[string]any
	require.NoError(t, json.Unmarshal([]byte(got.body), &events))
	require.Len(t, events, 8)
	assert.Equal(t, "e7", events[7]["id"])
	verifier, err := standardwebhooks.NewWebhook("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	require.NoError(t, err)
	require.NoError(t, verifier.Verify([]byte(got.body), got.head))
	first := got.head.Get("Webhook-Id")
	target.Deliver(context.Background(), batch)
	assert.Equal(t, first, r.last().head.Get("Webhook-Id"))
	target.Deliver(context.Background(), batch[:1])
	assert.Equal(t, batch[0].Event.WebhookID(), r.last().head.Get("Webhook-Id"))

	// A batch that is too large for one request is several.
	before := r.count.Load()
	large := h.stored(`{"specversion":"1.0","id":"1","source":"/s","type":"t","data":"` + strings.Repeat("a", 400<<10) + `"}`)
	for _, result := range target.Deliver(context.Background(), []Delivery{large, large, large, large, large}) {
		assert.Equal(t, Delivered, result.Verdict)
	}
	assert.Equal(t, before+3, r.count.Load())
}

func TestStatuses(t *testing.T) {
	refused := map[int]bool{400: true, 406: true, 411: true, 413: true, 414: true, 415: true, 417: true, 422: true, 431: true, 508: true}
	unavailable := map[int]bool{429: true, 502: true, 503: true, 504: true}
	h := newHarness(t, nil)
	status := 0
	r := newReceiver(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", "/elsewhere")
		w.Header().Set("Retry-After", "7")
		w.WriteHeader(status)
	})
	target := h.webhook(r.URL, nil)
	var all []int
	for _, from := range []int{200, 300, 400, 500} {
		for s := from; s < from+32; s++ {
			all = append(all, s)
		}
	}
	all = append(all, 299, 399, 451, 499, 599, 600, 999)
	for _, status = range all {
		before := r.count.Load()
		result := deliver(t, target, h.event("1"))
		require.Equal(t, before+1, r.count.Load(), "%d: one request", status)
		require.Equal(t, status, result.Status)
		switch {
		case status < 300:
			require.Equal(t, Delivered, result.Verdict, status)
			require.NoError(t, result.Err)
			continue
		case status == 410:
			require.Equal(t, Gone, result.Verdict)
		case refused[status]:
			require.Equal(t, Refused, result.Verdict, status)
		default:
			require.Equal(t, Retry, result.Verdict, status)
		}
		require.Equal(t, unavailable[status], result.Unavailable, status)
		want := time.Duration(0)
		if unavailable[status] {
			want = 7 * time.Second
		}
		require.Equal(t, want, result.RetryAfter, status)
		require.ErrorContains(t, result.Err, fmt.Sprintf("the webhook answered %d", status))
		if status < 400 {
			require.Equal(t, ReasonRedirect, result.Reason)
		} else {
			require.Equal(t, ReasonStatus, result.Reason)
		}
	}
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	for header, want := range map[string]time.Duration{
		"": 0, "0": 0, "1": time.Second, " 120 ": 2 * time.Minute, "3600": time.Hour, "3601": time.Hour, "99999999999999999999999": time.Hour,
		"-1": 0, "1.5": 0, "soon": 0,
		"Sun, 22 Nov 2026 10:00:30 GMT": 30 * time.Second, "Sun, 22 Nov 2026 09:00:00 GMT": 0, "Mon, 22 Nov 2027 10:00:00 GMT": time.Hour,
		"Sunday, 22-Nov-26 10:01:00 GMT": time.Minute, "Sun Nov 22 10:00:02 2026": 2 * time.Second,
	} {
		assert.Equal(t, want, retryAfter(header, now), "%q", header)
	}
}

func TestResponsesAreKeptWithoutSecrets(t *testing.T) {
	h := newHarness(t, nil)
	r := newReceiver(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = fmt.Fprintf(w, "you sent %s and %s\x00\x1b[31m \xff %s", r.Header.Get("Authorization"), r.Header.Get("X-Key"), strings.Repeat("é", 2000))
	})
	target := h.webhook(r.URL, func(w *model.Webhook) {
		w.Headers = map[string]secret.String{"X-Key": "Basic c2VjcmV0LW9mLW1pbmU="}
		w.Bearer = "another-secret-of-mine"
	})
	result := deliver(t, target, h.event("1"))
	assert.True(t, strings.HasPrefix(result.Response, "you sent Bearer <redacted> and "), result.Response)
	assert.NotContains(t, result.Response, "secret")
	assert.NotContains(t, result.Response, "c2VjcmV0")
	assert.LessOrEqual(t, len(result.Response), responseKept)
	assert.NotContains(t, result.Response, "\x00")
	assert.NotContains(t, result.Response, "\x1b")

	// A secret at the end of what is read is cut in two.
	r.answer = func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = w.Write([]byte(strings.Repeat("\x01", responseSeen-10) + "another-secret-of-mine" + strings.Repeat("x", 100)))
	}
	assert.NotContains(t, deliver(t, target, h.event("1")).Response, "another")

	// So is one that was not sent whole in time.
	r.answer = func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = w.Write([]byte("You sent another-secret-of-"))
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}
	assert.NotContains(t, deliver(t, target, h.event("1")).Response, "another")

	// What cannot be shown is no way to hide one.
	status := http.StatusInternalServerError
	r.answer = func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = w.Write([]byte("another-se\x01cret\xff-of-mine"))
	}
	assert.Equal(t, "<redacted>", deliver(t, target, h.event("1")).Response)

	// Nothing is kept of the answer to an event that is delivered.
	status = http.StatusOK
	assert.Empty(t, deliver(t, target, h.event("1")).Response)
}

// TestURLsAreSecret: what follows the host in the URL of a webhook, or of its tokens, may be a
// token, as for many chats. Receivers send it back, also in answers that net/http cannot read.
func TestURLsAreSecret(t *testing.T) {
	hidden := []string{"T0000000", "XXXXXXXXXXXXXXXX", "a%20token", "a token", "a+token", "services"}
	check := func(result Result) {
		t.Helper()
		require.Error(t, result.Err)
		for _, secret := range hidden {
			assert.NotContains(t, result.Response+result.Err.Error(), secret)
		}
	}
	h := newHarness(t, nil)
	const behind = "/services/T0000000/XXXXXXXXXXXXXXXX?key=a%20token%20of%20mine"
	url := rawServer(t, func(c net.Conn) {
		r := readRequest(t, c)
		say(c, "HTTP/1.1 404 No\r\nLocation: "+r.RequestURI+"\r\nConnection: close\r\n\r\nCannot POST "+r.RequestURI+" XXXXXXXXXXXXXXXX "+r.FormValue("key"))
	})
	result := deliver(t, h.webhook(strings.TrimSuffix(url, "/")+behind, nil), h.event("1"))
	check(result)
	assert.Equal(t, "Cannot POST <redacted> <redacted> <redacted>", result.Response)

	url = rawServer(t, func(c net.Conn) { say(c, "HTTP/1.1 9999 "+readRequest(t, c).RequestURI+"\r\n\r\n") })
	check(deliver(t, h.webhook(strings.TrimSuffix(url, "/")+behind, nil), h.event("1")))
	url = rawServer(t, func(c net.Conn) { say(c, readRequest(t, c).RequestURI+"\r\n\r\n") })
	check(deliver(t, h.webhook(strings.TrimSuffix(url, "/")+behind, nil), h.event("1")))

	check(deliver(t, h.webhook("http://127.0.0.1:1"+behind, nil), h.event("1")))
	for _, answer := range []string{"HTTP/1.1 9999 %s\r\n\r\n", "HTTP/1.1 400 No\r\n\r\n%s", "%s", "HTTP/1.1 400 No\r\nContent-Type: application/json\r\n\r\n{\"error\":\"%s\"}"} {
		url = rawServer(t, func(c net.Conn) { say(c, fmt.Sprintf(answer, readRequest(t, c).RequestURI)) })
		check(deliver(t, h.webhook("http://shop.example/", func(w *model.Webhook) {
			w.OAuth2 = &model.OAuth2{TokenURL: strings.TrimSuffix(url, "/") + behind, ClientID: "aviary", ClientSecret: "a secret"}
		}), h.event("1")))
	}
}

func TestConnectionsAreUsedAgain(t *testing.T) {
	h := newHarness(t, nil)
	addresses := map[string]bool{}
	r := newReceiver(t, func(w http.ResponseWriter, r *http.Request) {
		addresses[r.RemoteAddr] = true
		_, _ = w.Write([]byte(strings.Repeat("a", 50<<10)))
	})
	target := h.webhook(r.URL, nil)
	for range 5 {
		require.Equal(t, Delivered, deliver(t, target, h.event("1")).Verdict)
	}
	assert.Len(t, addresses, 1)
}

// TestConnectionsThatTheReceiverHasClosed shows that a delivery on a connection which was closed
// meanwhile is sent again on another.
func TestConnectionsThatTheReceiverHasClosed(t *testing.T) {
	h := newHarness(t, nil)
	r := newReceiver(t, nil)
	target := h.webhook(r.URL, nil)
	for range 20 {
		result := deliver(t, target, h.event("1"))
		require.Equal(t, Delivered, result.Verdict, "%v", result.Err)
		r.CloseClientConnections()
	}
}
