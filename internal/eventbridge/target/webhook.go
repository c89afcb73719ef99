package target

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/aviaryhq/aviary/internal/eventbridge/event"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/webhooksig"
)

const (
	userAgent = "Aviary-Eventbridge"
	// maxBatchBytes bounds the body of one batch. A single event is sent whatever its size is.
	maxBatchBytes = 1 << 20
)

// webhook delivers by HTTP POST.
type webhook struct {
	blank      *http.Request      // requests are copies of it
	mode       string             // empty: structured
	structured http.Header        // headers of events in mode structured
	fixed      http.Header        // headers of each request; its lists are shared
	signer     *webhooksig.Signer // nil: requests are not signed
	tokens     *tokens            // nil: no OAuth2
	transport  *http.Transport
	own        bool        // no other subscriber uses the transport
	renew      atomic.Bool // the next request closes its connection, because an old one was in use
	timeout    time.Duration
	secrets    secrets // of the subscriber; the OAuth2 token is not in it
}

func (f *Factory) checkWebhook(t *model.Target) (faults model.FaultList) {
	c := t.Webhook
	if err := f.guard.checkURL(c.URL); err != nil {
		faults.Add("/url", "%s", err)
	}
	if _, err := webhooksig.New(c.SigningSecret); err != nil {
		faults.Add("/signing_secret", "%s", err)
	}
	if _, err := clientTLS(c.TLS); err != nil {
		faults.Add("/tls", "%s", err)
	}
	if c.OAuth2 != nil {
		if err := f.guard.checkURL(c.OAuth2.TokenURL); err != nil {
			faults.Add("/oauth2/token_url", "%s", err)
		}
	}
	return faults
}

func (f *Factory) openWebhook(s *model.Subscriber, timeout time.Duration) (Target, error) {
	c := s.Target.Webhook
	u, err := url.Parse(c.URL)
	if err != nil {
		return nil, errors.New("the URL cannot be read")
	}
	w := &webhook{
		blank: &http.Request{
			Method: http.MethodPost, URL: u, Host: u.Host, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Body: http.NoBody,
		},
		structured: http.Header{"Content-Type": {event.MediaType}},
		mode:       c.Mode, timeout: timeout, transport: f.shared,
		fixed: http.Header{"User-Agent": {userAgent}},
	}
	w.secrets.addURL(u)
	for name, value := range c.Headers {
		w.fixed[http.CanonicalHeaderKey(name)] = []string{value.Reveal()}
		w.secrets.add(value.Reveal())
	}
	if c.Bearer != "" {
		w.fixed["Authorization"] = []string{"Bearer " + c.Bearer.Reveal()}
		w.secrets.add(c.Bearer.Reveal())
	}
	// net/http may send a request again on another connection, if the receiver had just closed the
	// first one: receivers recognise copies by webhook-id. This key without a value allows that,
	// and is not sent.
	w.fixed["X-Idempotency-Key"] = nil
	if w.signer, err = webhooksig.New(c.SigningSecret); err != nil {
		return nil, fmt.Errorf("signing_secret: %w", err)
	}
	if c.TLS != nil {
		settings, err := clientTLS(c.TLS)
		if err != nil {
			return nil, fmt.Errorf("tls: %w", err)
		}
		w.transport, w.own = f.newTransport(settings, min(max(s.Delivery.Concurrency, 1), idleConnections)), true
	}
	if c.OAuth2 != nil {
		w.tokens = newTokens(c.OAuth2, w.transport)
		w.secrets.add(c.OAuth2.ClientSecret.Reveal())
		if u, err := url.Parse(c.OAuth2.TokenURL); err == nil {
			w.secrets.addURL(u)
		}
	}
	return w, nil
}

// Close closes the connections that no other subscriber uses, and cancels a token request.
func (w *webhook) Close(context.Context) error {
	if w.tokens != nil {
		w.tokens.cancel()
	}
	if w.own {
		w.transport.CloseIdleConnections()
	}
	return nil
}

// Deliver posts the events in their order, in mode batch as many in one request as fit.
func (w *webhook) Deliver(ctx context.Context, batch []Delivery) []Result {
	results := make([]Result, 0, len(batch))
	for len(batch) > 0 {
		n := w.requestSize(batch)
		results = w.deliver(ctx, batch[:n], results)
		batch = batch[n:]
	}
	return results
}

// requestSize returns how many of batch, from the first on, go into one request.
func (w *webhook) requestSize(batch []Delivery) int {
	if w.mode != model.ModeBatch {
		return 1
	}
	size := 0
	for i := range batch {
		if size += len(batch[i].Event.JSON) + 1; size > maxBatchBytes && i > 0 {
			return i
		}
	}
	return len(batch)
}

// deliver posts batch in one request and appends a result for each event to results. If the answer
// may be about only some events, deliver posts the halves separately. If the last of results is
// final, deliver posts nothing and repeats it.
func (w *webhook) deliver(ctx context.Context, batch []Delivery, results []Result) []Result {
	var result Result
	if done := len(results); done > 0 && results[done-1].final() {
		result = results[done-1]
	} else {
		result = w.post(ctx, batch)
	}
	if len(batch) > 1 && result.mayBeOfOneEvent(batch) {
		half := len(batch) / 2
		return w.deliver(ctx, batch[half:], w.deliver(ctx, batch[:half], results))
	}
	for range batch {
		results = append(results, result)
	}
	return results
}

// final reports whether the result holds for all events: the destination takes none, or the caller
// has stopped.
func (r *Result) final() bool {
	return r.Unavailable || r.Verdict == Gone || r.Reason == ReasonStopped
}

// mayBeOfOneEvent reports whether a single event may have caused the result of a batch: if the
// batch is refused, or if it fails and one of the events has failed before.
func (r *Result) mayBeOfOneEvent(batch []Delivery) bool {
	retried := slices.ContainsFunc(batch, func(d Delivery) bool { return d.Retried })
	return r.Verdict == Refused || r.Verdict == Retry && !r.final() && retried
}

// batchID returns the webhook-id of a batch: that of its only event, or one derived from those of
// all its events.
func batchID(batch []Delivery) string {
	if len(batch) == 1 {
		return batch[0].Event.WebhookID()
	}
	sum := sha256.New()
	for i := range batch {
		sum.Write([]byte(batch[i].Event.WebhookID()))
	}
	return "evt_" + base64.RawURLEncoding.EncodeToString(sum.Sum(nil)[:18])
}

// request is what differs between the requests of a webhook.
type request struct {
	id    string
	hops  int
	head  http.Header // headers of the mode
	body  []byte
	trace event.Trace
}

// request makes the request for a batch in mode batch, or for one event otherwise. An error is
// about the event.
func (w *webhook) request(batch []Delivery) (request, error) {
	d := &batch[0]
	switch {
	case w.mode == model.ModeBatch:
		hops, events := 0, make([]event.Event, len(batch))
		for i := range batch {
			hops, events[i] = max(hops, batch[i].Hops), batch[i].Event
		}
		head := http.Header{}
		return request{id: batchID(batch), hops: hops, head: head, body: event.WriteBatch(head, events)}, nil
	case w.mode != model.ModeBinary && d.Body == nil:
		return request{id: d.Event.WebhookID(), hops: d.Hops, head: w.structured, body: d.Event.JSON, trace: traceOf(&d.Event)}, nil
	}
	head := make(http.Header, 16)
	body, err := d.Event.WriteBinary(head)
	if err != nil {
		return request{}, err
	}
	if d.Body != nil {
		body = d.Body
		head.Set("Content-Type", d.ContentType)
	}
	for name, values := range head {
		if !httpguts.ValidHeaderFieldValue(values[0]) {
			return request{}, fmt.Errorf("the event has a %s that cannot be in an HTTP header", strings.ToLower(name))
		}
	}
	return request{id: d.Event.WebhookID(), hops: d.Hops, head: head, body: body, trace: traceOf(&d.Event)}, nil
}

// traceOf returns the trace context that an event carries (CloudEvents, distributed tracing
// extension).
func traceOf(e *event.Event) event.Trace {
	if !bytes.Contains(e.JSON, []byte(`"traceparent"`)) {
		return event.Trace{}
	}
	head := http.Header{}
	for name, value := range e.Attributes() {
		if name == "traceparent" || name == "tracestate" {
			head.Set(name, value)
		}
	}
	return event.TraceOf(head)
}

// post posts a batch, or one event, within the subscriber's timeout.
func (w *webhook) post(ctx context.Context, batch []Delivery) (result Result) {
	began := time.Now()
	defer func() { result.Latency = time.Since(began) }()
	r, err := w.request(batch)
	if err != nil {
		return Result{Verdict: Refused, Reason: ReasonEvent, Err: err}
	}
	ctx, cancel := context.WithTimeout(ctx, w.timeout)
	defer cancel()
	if w.tokens == nil {
		return w.postOnce(ctx, &r, "")
	}
	return w.postWithToken(ctx, &r)
}

// postWithToken posts with an OAuth2 token. If the receiver does not accept the token any more, it
// posts again with a new one.
func (w *webhook) postWithToken(ctx context.Context, r *request) (result Result) {
	used := ""
	for range 2 {
		token, err := w.tokens.get(ctx)
		switch {
		case err != nil && ctx.Err() != nil:
			return unavailable(connectionError(ctx, err, w.timeout))
		case err != nil:
			return unavailable(ReasonToken, fmt.Errorf("no OAuth2 token: %w", w.secrets.err(err)))
		case token == used:
			return result
		}
		if result = w.postOnce(ctx, r, token); result.Status != http.StatusUnauthorized {
			return result
		}
		w.tokens.drop(token)
		used = token
	}
	return result
}

// headers returns the headers of a request.
func (w *webhook) headers(r *request, token string) http.Header {
	h := make(http.Header, len(w.fixed)+len(r.head)+8)
	maps.Copy(h, w.fixed)
	maps.Copy(h, r.head)
	if token != "" {
		h["Authorization"] = []string{token}
	}
	timestamp := strconv.FormatInt(time.Now().Unix(), 10)
	h["Webhook-Id"], h["Webhook-Timestamp"] = []string{r.id}, []string{timestamp}
	h["Aviary-Hops"] = []string{strconv.Itoa(r.hops + 1)}
	if r.trace.Parent != "" {
		h["Traceparent"] = []string{r.trace.Parent}
		if r.trace.State != "" {
			h["Tracestate"] = []string{r.trace.State}
		}
	}
	if w.signer != nil {
		h["Webhook-Signature"] = []string{w.signer.Sign(r.id, timestamp, r.body)}
	}
	return h
}

// newBody makes the body of a request. net/http knows that this type is in memory, and sends it in
// one write with the headers.
func newBody(content []byte) io.ReadCloser { return io.NopCloser(bytes.NewReader(content)) }

// postOnce sends one request and reads its answer.
func (w *webhook) postOnce(ctx context.Context, r *request, token string) Result {
	head := w.headers(r, token)
	var conn *connection // of the request, nil for none
	last := w.renew.Swap(false)
	requesting, giveUp := context.WithCancel(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn: func(string) { conn = nil }, // also for a second connection, if the first was closed while idle
		GotConn: func(got httptrace.GotConnInfo) {
			conn = connectionOf(got.Conn)
			conn.unanswered.Store(r)
			if !last && time.Since(conn.opened) >= maxConnectionAge {
				w.renew.Store(true)
			}
		},
	}))
	defer giveUp()
	req := w.blank.WithContext(requesting)
	req.Header, req.Close = head, last
	if req.ContentLength = int64(len(r.body)); len(r.body) > 0 {
		req.Body = newBody(r.body)
		req.GetBody = func() (io.ReadCloser, error) { return newBody(r.body), nil }
	}
	answer, err := w.transport.RoundTrip(req) //nolint:bodyclose // readAnswer does
	if err != nil {
		reason, err := connectionError(ctx, err, w.timeout)
		result := unavailable(reason, w.secrets.with(token).err(err))
		if reason == ReasonConnection && conn != nil { // the receiver may break a connection because of the event
			result.Unavailable = false
		}
		return result
	}
	conn.unanswered.CompareAndSwap(r, nil) // another request may use the connection already
	result := judge(answer)
	result.Response = w.readAnswer(answer, result.Verdict != Delivered, giveUp, token)
	return result
}
