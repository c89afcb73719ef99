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
	"net/url"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/aviaryhq/aviary/internal/eventbridge/event"
	"github.com/aviaryhq/aviary/internal/eventbridge/model"
)

// The modes of a webhook (CloudEvents 1.0, HTTP protocol binding, section 3). An empty mode is
// structured.
const (
	modeBinary     = "binary"
	modeStructured = "structured"
	modeBatch      = "batch"
)

const (
	userAgent = "Aviary-Eventbridge"
	// maxBatchBytes bounds the body of one batch. A single event is sent whatever its size is.
	maxBatchBytes = 1 << 20
)

// webhook delivers by HTTP POST.
type webhook struct {
	blank      *http.Request // requests are copies of it
	mode       string
	structured http.Header // headers of events in mode structured
	fixed      http.Header // headers of each request; its lists are shared
	signer     *signer     // nil: requests are not signed
	tokens     *tokens     // nil: no OAuth2
	transport  *http.Transport
	own        bool // no other subscriber uses the transport
	timeout    time.Duration
	redactor   redactor
	buffers    *answers
}

// newWebhook expects a target in which Check has found no fault. concurrency is the greatest number
// of concurrent deliveries.
func newWebhook(c *model.Webhook, timeout time.Duration, concurrency int, f *Factory) (*webhook, error) {
	u, err := url.Parse(c.URL)
	if err != nil {
		return nil, errors.New("the URL cannot be read")
	}
	w := &webhook{
		blank: &http.Request{
			Method: http.MethodPost, URL: u, Host: u.Host, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Body: http.NoBody,
		},
		structured: http.Header{"Content-Type": {event.MediaType}},
		mode:       c.Mode, timeout: timeout, transport: f.shared, buffers: &f.answers,
		fixed: http.Header{"User-Agent": {userAgent}},
	}
	for name, value := range c.Headers {
		w.fixed[http.CanonicalHeaderKey(name)] = []string{value.Reveal()}
		w.redactor.add(value)
	}
	if c.Bearer != "" {
		w.fixed["Authorization"] = []string{"Bearer " + c.Bearer.Reveal()}
		w.redactor.add(c.Bearer)
	}
	// net/http may send a request again on another connection, if the receiver had just closed the
	// first one: receivers recognise copies by webhook-id. This key without a value allows that,
	// and is not sent.
	w.fixed["X-Idempotency-Key"] = nil
	if w.signer, err = newSigner(c.SigningSecret); err != nil {
		return nil, fmt.Errorf("signing_secret: %w", err)
	}
	if c.TLS != nil {
		settings, err := clientTLS(c.TLS)
		if err != nil {
			return nil, fmt.Errorf("tls: %w", err)
		}
		w.transport, w.own = f.newTransport(settings, min(concurrency, f.cfg.IdleConnections)), true
	}
	if c.OAuth2 != nil {
		w.tokens = newTokens(c.OAuth2, w.transport)
		w.redactor.add(c.OAuth2.ClientSecret)
	}
	return w, nil
}

// Close closes the connections that no other subscriber uses, and cancels a token request.
func (w *webhook) Close(context.Context) error {
	if w.tokens != nil {
		w.tokens.end()
	}
	if w.own {
		w.transport.CloseIdleConnections()
	}
	return nil
}

// Deliver posts the events: together in mode batch, otherwise one after the other.
func (w *webhook) Deliver(ctx context.Context, batch []Delivery) []Result {
	end := time.Now().Add(w.timeout)
	results := make([]Result, len(batch))
	if w.mode == modeBatch {
		for from := 0; from < len(batch); {
			to := fitting(batch, from)
			w.deliverBatch(ctx, end, batch[from:to], results[from:to])
			from = to
		}
		return results
	}
	for i := range batch {
		results[i] = w.deliverOne(ctx, end, &batch[i])
	}
	return results
}

// fitting returns the end of the deliveries, beginning at from, that go into one request.
func fitting(batch []Delivery, from int) int {
	size := 0
	for i := from; i < len(batch); i++ {
		if size += len(batch[i].Event.JSON) + 1; size > maxBatchBytes && i > from {
			return i
		}
	}
	return len(batch)
}

// deliverBatch posts the whole batch in one request. If the receiver refuses it, at least one event
// is the cause: deliverBatch posts the halves separately, and their halves, until it is known which
// one. All of this is one attempt, and has the time of one.
func (w *webhook) deliverBatch(ctx context.Context, end time.Time, batch []Delivery, results []Result) {
	hops, events := 0, make([]event.Event, len(batch))
	for i := range batch {
		if batch[i].Body != nil {
			w.deliverApart(ctx, end, batch, results)
			return
		}
		hops = max(hops, batch[i].Hops)
		events[i] = batch[i].Event
	}
	head := http.Header{}
	result := w.post(ctx, request{end: end, id: batchID(batch), hops: hops, body: event.WriteBatch(head, events), head: head})
	if result.Verdict == Refused && len(batch) > 1 {
		half := len(batch) / 2
		w.deliverBatch(ctx, end, batch[:half], results[:half])
		w.deliverBatch(ctx, end, batch[half:], results[half:])
		return
	}
	for i := range results {
		results[i] = result
	}
}

// deliverApart delivers a batch with transformed events: no format holds several of these.
func (w *webhook) deliverApart(ctx context.Context, end time.Time, batch []Delivery, results []Result) {
	for i := range batch {
		results[i] = w.deliverOne(ctx, end, &batch[i])
	}
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
	end   time.Time // of the attempt
	id    string
	hops  int
	head  http.Header // headers of the mode
	body  []byte
	trace event.Trace
}

func (w *webhook) deliverOne(ctx context.Context, end time.Time, d *Delivery) Result {
	r := request{end: end, id: d.Event.WebhookID(), hops: d.Hops, trace: traceOf(&d.Event)}
	if w.mode != modeBinary && d.Body == nil {
		r.head, r.body = w.structured, d.Event.JSON
		return w.post(ctx, r)
	}
	r.head = make(http.Header, 16)
	var err error
	if r.body, err = d.Event.WriteBinary(r.head); err != nil {
		return Result{Verdict: Refused, Reason: ReasonEvent, Err: err}
	}
	if d.Body != nil {
		r.body = d.Body
		r.head.Set("Content-Type", d.ContentType)
	}
	for name, values := range r.head {
		if !httpguts.ValidHeaderFieldValue(values[0]) {
			return Result{Verdict: Refused, Reason: ReasonEvent, Err: fmt.Errorf("the event has a %s that cannot be in an HTTP header", strings.ToLower(name))}
		}
	}
	return w.post(ctx, r)
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

// post makes one attempt. If the receiver does not accept the OAuth2 token any more, it tries a new
// one.
func (w *webhook) post(ctx context.Context, r request) Result {
	began := time.Now()
	result := w.authorizedPost(ctx, &r)
	result.Latency = time.Since(began)
	return result
}

func (w *webhook) authorizedPost(ctx context.Context, r *request) Result {
	if w.tokens == nil {
		return w.postOnce(ctx, r, "")
	}
	ctx, cancel := context.WithDeadline(ctx, r.end)
	defer cancel()
	token, err := w.tokens.get(ctx)
	if err != nil {
		return w.noToken(ctx, err)
	}
	result := w.postOnce(ctx, r, token)
	if result.Status != http.StatusUnauthorized {
		return result
	}
	w.tokens.drop(token)
	fresh, err := w.tokens.get(ctx)
	if err != nil {
		return w.noToken(ctx, err)
	}
	if fresh == token {
		return result
	}
	return w.postOnce(ctx, r, fresh)
}

func (w *webhook) noToken(ctx context.Context, err error) Result {
	if ctx.Err() != nil {
		reason, err := connectionError(ctx, err, w.timeout)
		return Result{Reason: reason, Err: err}
	}
	return Result{Reason: ReasonToken, Err: fmt.Errorf("no OAuth2 token: %w", w.redactor.err(err, ""))}
}

// headers returns the headers of a request.
func (w *webhook) headers(r *request, token string) (http.Header, error) {
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
		signature, err := w.signer.sign(r.id, timestamp, r.body)
		if err != nil {
			return nil, err
		}
		h["Webhook-Signature"] = []string{signature}
	}
	return h, nil
}

// newBody makes the body of a request. net/http knows that this type is in memory, and sends it in
// one write with the headers.
func newBody(content []byte) io.ReadCloser { return io.NopCloser(bytes.NewReader(content)) }

// postOnce sends one request and reads its answer.
func (w *webhook) postOnce(ctx context.Context, r *request, token string) Result {
	head, err := w.headers(r, token)
	if err != nil {
		return Result{Reason: ReasonEvent, Err: err}
	}
	ctx, cancel := context.WithDeadline(ctx, r.end) // also cancelled when the rest of an answer takes too long
	defer cancel()
	req := w.blank.WithContext(ctx)
	req.Header = head
	if req.ContentLength = int64(len(r.body)); len(r.body) > 0 {
		req.Body = newBody(r.body)
		req.GetBody = func() (io.ReadCloser, error) { return newBody(r.body), nil }
	}
	answer, err := w.transport.RoundTrip(req) //nolint:bodyclose // readAnswer does
	if err != nil {
		reason, err := connectionError(ctx, err, w.timeout)
		return Result{Reason: reason, Err: w.redactor.err(err, token)}
	}
	response := w.readAnswer(answer, cancel, token)
	verdict, reason := judge(answer.StatusCode)
	result := Result{Verdict: verdict, Reason: reason, Status: answer.StatusCode, Response: response}
	if verdict != Delivered {
		result.Err = statusError(answer.StatusCode, answer.Header.Get("Location"))
	}
	if verdict == Retry {
		result.RetryAfter = retryAfter(answer.Header.Get("Retry-After"), time.Now())
	}
	return result
}
