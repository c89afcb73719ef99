package ingest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/eventbridge/event"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/store"
	"github.com/aviaryhq/aviary/internal/httpserver"
	"github.com/aviaryhq/aviary/internal/httpserver/admission"
	"github.com/aviaryhq/aviary/internal/httpserver/refusal"
	"github.com/aviaryhq/aviary/internal/truncate"
)

// Registry has the current buses.
type Registry interface{ Snapshot() *store.Snapshot }

// Handler takes events by HTTP. New makes one. It is safe for concurrent use.
type Handler struct {
	// ConnState counts the connections of the server.
	ConnState func(net.Conn, http.ConnState)

	log      *zap.Logger
	refusals refusal.Log
	metrics  *metrics
	limits   Limits
	timeout  time.Duration
	registry Registry
	budget   *admission.Budget
	buses    *busTable
	senders  atomic.Pointer[senders] // changed by Change

	buffers  sync.Pool // of *[]byte
	decoders sync.Pool // of *gzip.Reader
	parsers  sync.Pool // of *event.Parser
	timers   sync.Pool // of *time.Timer, stopped
}

// New makes a handler from a valid configuration. why returns why Pulsar cannot be reached, nil
// while that is not known; why may be nil. The errors are about the files that the configuration names.
func New(cfg Config, known Registry, topics model.Topics, why func() error, open Open, log *zap.Logger, reg prometheus.Registerer) (*Handler, error) {
	who, err := newSenders(log, cfg)
	if err != nil {
		return nil, err
	}
	m := newMetrics(reg, cfg.Limits)
	h := &Handler{
		ConnState: httpserver.CountConnections(m.connections),
		log:       log, refusals: refusal.NewLog(log), metrics: m, limits: cfg.Limits, timeout: cfg.RequestTimeout, registry: known,
		budget: admission.NewBudget(int64(cfg.Limits.InFlightBytes), cfg.share(), m.inFlightSize),
		buses:  newBusTable(log, known, topics, cfg.RequestTimeout/2, m.topics, why, open),
	}
	h.senders.Store(who)
	return h, nil
}

// Change applies the tenants of another valid configuration. They keep the state of their quotas.
// After an error the tenants are as before.
func (h *Handler) Change(cfg Config) error {
	fresh, err := newSenders(h.log, cfg)
	if err != nil {
		return err
	}
	former, now := h.senders.Load().tenants, time.Now()
	for name, t := range fresh.tenants {
		if known := former[name]; known != nil { // requests in flight give back to its buckets what is not stored
			t.events, t.bytes = t.events.Inherit(known.events, now), t.bytes.Inherit(known.bytes, now)
		}
	}
	h.budget.SetShare(cfg.share())
	h.senders.Store(fresh)
	return nil
}

// Routes adds POST and OPTIONS of /v1/buses/{bus}/events.
func (h *Handler) Routes(r chi.Router) {
	const path = "/v1/buses/{bus}/events"
	r.Post(path, h.serve)
	r.Options(path, answerHandshake)
}

// Run closes the topics of deleted buses, until ctx ends.
func (h *Handler) Run(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			h.buses.sweep(h.registry.Snapshot())
		}
	}
}

// Check is the readiness check: an error when there are topics and none of them takes events.
func (h *Handler) Check(context.Context) error { return h.buses.check() }

// Close flushes and closes the topics. The server must have stopped. It returns the error of ctx if
// ctx ends before.
func (h *Handler) Close(ctx context.Context) error { return h.buses.close(ctx) }

// serve answers one request.
func (h *Handler) serve(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	h.metrics.inFlight.Inc()
	defer h.metrics.inFlight.Dec()
	from, err := h.senders.Load().admit(r)
	var o *outcome
	if err == nil {
		o, err = h.handle(w, r, from)
	}
	status := h.answer(w, r, from, o, err)
	if status == http.StatusAccepted {
		h.metrics.requestsAccepted.Inc()
	} else {
		h.metrics.requests.WithLabelValues(strconv.Itoa(status)).Inc()
	}
	h.metrics.requestTime.Observe(time.Since(began).Seconds())
}

// request is a request of a sender that may write to its bus.
type request struct {
	header  http.Header
	from    sender
	held    *admission.Hold
	bus     *busState
	mode    mode
	encoded bool // by gzip
	hops    int
	spare   int // bytes that are reserved and not used yet
	one     [1]event.Entry
}

// handle processes a request. A signature is checked before anything that depends on the tenant.
func (h *Handler) handle(w http.ResponseWriter, r *http.Request, from sender) (*outcome, error) {
	q := &request{header: r.Header, from: from, held: h.budget.Hold(from.name())}
	defer q.held.Release()
	body := h.newBuffer()
	defer h.releaseBuffer(body)
	if from.signature != nil {
		if err := h.readBody(w, r, body, q.held); err != nil {
			return nil, err
		}
		if err := from.verify(r.Header, *body); err != nil {
			return nil, err
		}
	}
	if err := h.readHead(q, chi.URLParam(r, "bus")); err != nil {
		return nil, err
	}
	if from.signature == nil {
		if err := h.readBody(w, r, body, q.held); err != nil {
			return nil, err
		}
	}
	entries, err := h.eventsOf(q, *body)
	if err != nil {
		return nil, err
	}
	return h.store(r.Context(), q, entries)
}

// readHead checks what is known of a request without its body.
func (h *Handler) readHead(q *request, name string) error {
	bus, err := h.busOf(name, q.from)
	if err != nil {
		return err
	}
	if q.hops, err = hopsOf(q.header, h.limits.Hops); err != nil {
		return err
	}
	if q.mode, err = modeOf(q.header, bus); err != nil {
		return err
	}
	q.bus = h.buses.of(bus)
	q.bus.compiled.Do(q.bus.compile)
	if err := q.bus.err; err != nil {
		return refusal.Unavailable("bus_definition", refusal.RetryUnavailable, "%s", truncate.Text(err.Error(), refusal.MaxReason))
	}
	if err := q.bus.topic.refusal(); err != nil {
		return err
	}
	q.encoded, err = isGzip(q.header)
	return err
}

// busOf returns the bus of a name, if the sender may write to it. A sender that may not write does
// not learn whether the bus exists.
func (h *Handler) busOf(name string, from sender) (*model.Bus, error) {
	if from.tenant != nil && !from.tenant.mayWrite(name) {
		return nil, &refusal.Error{Status: http.StatusForbidden, Reason: "forbidden_bus", Text: "the tenant may not write to this bus"}
	}
	now := h.registry.Snapshot()
	switch bus := now.Bus(name); {
	case bus != nil:
		return bus, nil
	case now.UnreadableBus(name):
		// The bus exists, and an instance of a newer version may take its events: after a 404,
		// senders would drop them.
		return nil, refusal.Unavailable("bus_definition", refusal.RetryUnavailable, "the bus' definition cannot be read: it may be of a newer version")
	}
	return nil, unknownBus(name)
}

func unknownBus(name string) error {
	return &refusal.Error{Status: http.StatusNotFound, Reason: "unknown_bus", Text: fmt.Sprintf("there is no bus %q", truncate.Text(name, 64))}
}

// hopsHeader says how often an event has passed Eventbridge.
const hopsHeader = "Aviary-Hops"

func hopsOf(header http.Header, most int) (hops int, err error) {
	values := header[hopsHeader]
	if len(values) == 0 {
		return 0, nil
	}
	n, err := strconv.ParseUint(values[0], 10, 31)
	if err != nil || len(values) > 1 {
		return 0, refusal.Invalid("hops", "%s must be one number", hopsHeader)
	}
	if n > uint64(most) {
		return 0, &refusal.Error{Status: http.StatusLoopDetected, Reason: "hops", Text: fmt.Sprintf("the event has passed Eventbridge %d times, at most %d are allowed: two buses may feed each other", n, most)}
	}
	return int(n), nil
}

// readBody reads a request's body.
func (h *Handler) readBody(w http.ResponseWriter, r *http.Request, body *[]byte, held *admission.Hold) (err error) {
	*body, err = httpserver.ReadBody(w, r, *body, held, httpserver.BodyLimits{Bytes: int64(h.limits.BodyBytes), Reason: "body_bytes", Timeout: h.limits.ReadTimeout})
	if err != nil {
		return err
	}
	httpserver.ClearReadDeadline(w)
	h.metrics.bytes.received.Add(float64(len(*body)))
	return nil
}

func (h *Handler) newBuffer() *[]byte {
	if buffer, ok := h.buffers.Get().(*[]byte); ok {
		return buffer
	}
	return new([]byte)
}

// keepBuffer bounds a buffer that is kept for another request.
const keepBuffer = 64 << 10

// releaseBuffer keeps a buffer for another request, unless it is large: no request is charged for it
// until it is used.
func (h *Handler) releaseBuffer(buffer *[]byte) {
	if cap(*buffer) <= keepBuffer {
		h.buffers.Put(buffer)
	}
}

// store publishes the events and waits for the broker's acknowledgements.
func (h *Handler) store(ctx context.Context, q *request, entries []event.Entry) (*outcome, error) {
	o := &outcome{batch: q.mode == batched}
	if o.batch {
		o.results = make([]result, 0, len(entries))
	} else {
		o.id = entries[0].Event.ID
	}
	events, size := 0, 0
	for i := range entries {
		if entries[i].Err == nil {
			events++
			size += len(entries[i].Event.JSON)
		}
	}
	var f *flight
	if events > 0 {
		var err error
		if f, err = h.publish(ctx, q, entries, events, size); err != nil {
			return nil, err
		}
	}
	next := 0
	for i := range entries {
		if err := entries[i].Err; err != nil {
			refused := refusedAs(err)
			h.metrics.events.refused.Inc()
			h.metrics.refusedEvent.WithLabelValues(refused.Reason).Inc()
			o.add(refused)
			continue
		}
		o.add(f.slots[next].refusal(h.timeout))
		next++
	}
	return o, nil
}

// publish publishes the entries that are events, so many with so many bytes, and waits for their
// outcomes.
func (h *Handler) publish(requestCtx context.Context, q *request, entries []event.Entry, events, size int) (*flight, error) {
	topic := q.bus.topic
	switch now := h.registry.Snapshot().Bus(topic.bus.Name); {
	case now == nil: // to open its topic would create it again
		return nil, unknownBus(topic.bus.Name)
	case !topic.isOf(now):
		return nil, refusal.Unavailable("bus_definition", refusal.RetryBusy, "the bus was deleted and created again meanwhile: send the request again")
	}
	ctx := &deadlineContext{Context: requestCtx, until: time.Now().Add(h.timeout)}
	defer ctx.end()
	publisher, err := topic.wait(ctx)
	if err != nil {
		return nil, err
	}
	if err := q.from.tenant.take(events, size); err != nil {
		h.metrics.events.throttled.Add(float64(events))
		return nil, err
	}
	f := q.newFlight(h.metrics, publisher, entries, events)
	f.hold = q.held.Transfer(int64(2*size + eventOverhead*events))
	f.start(ctx)
	if !h.await(requestCtx, f.done, ctx.until) {
		topic.suspended.NoteLate()
	}
	if errors.Is(requestCtx.Err(), context.Canceled) {
		return nil, refusal.ErrDisconnected
	}
	return f, nil
}

// await waits for done. It returns false if done is not closed before the deadline until. It returns
// true at once when the sender has closed the connection.
func (h *Handler) await(requestCtx context.Context, done <-chan struct{}, until time.Time) bool {
	timer, kept := h.timers.Get().(*time.Timer)
	if left := time.Until(until); kept {
		timer.Reset(left)
	} else {
		timer = time.NewTimer(left)
	}
	defer h.timers.Put(timer)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		return false
	case <-requestCtx.Done():
	}
	return true
}
