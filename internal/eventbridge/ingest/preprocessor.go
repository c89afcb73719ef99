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

// Preprocessor takes events by HTTP. New makes one. It is safe for concurrent use.
type Preprocessor struct {
	log       *zap.Logger
	refusals  refusal.Log
	metrics   *metrics
	limits    Limits
	timeout   time.Duration
	registry  Registry
	budget    *admission.Budget
	busTopics *busTopics
	defs      definitions
	decoders  decoders
	senders   atomic.Pointer[senders] // changed by Change
	prefix    string

	bodies  sync.Pool // of *[]byte
	parsers sync.Pool // of *event.Parser
}

// New makes a preprocessor from a valid configuration. prefix is the prefix of its keys in errors,
// such as "ingest.". why returns why Pulsar cannot be reached, nil while that is not known; why may
// be nil. The errors are about the files that the configuration names.
func New(cfg Config, prefix string, known Registry, topics model.Topics, why func() error, open Open, log *zap.Logger, reg prometheus.Registerer) (*Preprocessor, error) {
	who, err := newSenders(log, cfg, prefix)
	if err != nil {
		return nil, err
	}
	m := newMetrics(reg, cfg.Limits)
	p := &Preprocessor{
		log: log, refusals: refusal.NewLog(log), metrics: m, limits: cfg.Limits, timeout: cfg.RequestTimeout, registry: known, prefix: prefix,
		budget:    admission.NewBudget(int64(cfg.Limits.InFlightBytes), cfg.share(), m.inFlightSize),
		busTopics: newBusTopics(log, topics, cfg.RequestTimeout/2, m.topics, why, open),
	}
	p.senders.Store(who)
	return p, nil
}

// share is the share of one tenant. Without tenants, all senders together are one.
func (c Config) share() float64 {
	if len(c.Tenants) == 0 {
		return 1
	}
	return c.Limits.InFlightShare
}

// Memory is about how many bytes the configuration lets ingestion hold with so many buses.
func (c Config) Memory(buses int) int64 {
	const pendingOverhead = 1536 // of a record in the Pulsar client
	return int64(c.Limits.InFlightBytes) + int64(buses)*int64(c.Profile.MaxPendingRecords)*pendingOverhead
}

// Change puts the tenants of another valid configuration in force. What is left of their quotas
// stays. After an error nothing is changed.
func (p *Preprocessor) Change(cfg Config) error {
	fresh, err := newSenders(p.log, cfg, p.prefix)
	if err != nil {
		return err
	}
	former := p.senders.Load().tenants
	for _, t := range cfg.Tenants {
		if known := former[t.Name]; known != nil {
			fresh.tenants[t.Name].inherit(known, t.Quota)
		}
	}
	p.budget.SetShare(cfg.share())
	p.senders.Store(fresh)
	return nil
}

// Routes adds POST and OPTIONS of /v1/buses/{bus}/events.
func (p *Preprocessor) Routes(r chi.Router) {
	const path = "/v1/buses/{bus}/events"
	r.Post(path, p.serve)
	r.Options(path, answerHandshake)
}

// ConnState counts the connections of the server.
func (p *Preprocessor) ConnState(conn net.Conn, state http.ConnState) {
	p.metrics.connState(conn, state)
}

// Run closes the topics of deleted buses, until ctx ends.
func (p *Preprocessor) Run(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			now := p.registry.Snapshot()
			p.busTopics.sweep(now)
			p.defs.sweep(now)
		}
	}
}

// Check is the readiness check: an error when there are topics and none of them takes events.
func (p *Preprocessor) Check(context.Context) error { return p.busTopics.check() }

// Close flushes and closes the topics. The server must have stopped.
func (p *Preprocessor) Close(ctx context.Context) error { return p.busTopics.close(ctx) }

// serve answers one request.
func (p *Preprocessor) serve(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	p.metrics.inFlight.Inc()
	defer p.metrics.inFlight.Dec()
	from, err := p.senders.Load().admit(r)
	var o *outcome
	if err == nil {
		o, err = p.handle(w, r, from)
	}
	status := p.answer(w, r, from, o, err)
	if status == http.StatusAccepted {
		p.metrics.requestsAccepted.Inc()
	} else {
		p.metrics.requests.WithLabelValues(strconv.Itoa(status)).Inc()
	}
	p.metrics.requestTime.Observe(time.Since(began).Seconds())
}

// handle processes a request, from its bus to the outcome. A signature is checked before anything
// that depends on the tenant.
func (p *Preprocessor) handle(w http.ResponseWriter, r *http.Request, from sender) (*outcome, error) {
	held := p.budget.Hold(from.name())
	defer held.Release()
	body := p.newBody()
	defer p.releaseBody(body)
	if from.signature != nil {
		if err := p.readBody(w, r, body, held); err != nil {
			return nil, err
		}
		if err := from.verify(r.Header, *body); err != nil {
			return nil, err
		}
	}
	bus, err := p.busOf(r, from)
	if err != nil {
		return nil, err
	}
	hops, err := hopsOf(r.Header, p.limits.Hops)
	if err != nil {
		return nil, err
	}
	format, err := formOf(r.Header, bus)
	if err != nil {
		return nil, err
	}
	def := p.defs.of(bus)
	if err := def.ready(); err != nil {
		return nil, refusal.Unavailable("bus_definition", refusal.RetryUnavailable, "%s", truncate.Text(err.Error(), refusal.MaxReason))
	}
	if err := p.busTopics.closedError(bus); err != nil {
		return nil, err
	}
	encoded, err := isGzip(r.Header)
	if err != nil {
		return nil, err
	}
	if from.signature == nil {
		if err := p.readBody(w, r, body, held); err != nil {
			return nil, err
		}
	}
	entries, err := p.eventsOf(*body, encoded, &eventReader{form: format, head: r.Header, def: def, held: held, most: p.limits.BatchEvents, working: p.budget.Limit() / 8})
	if err != nil {
		return nil, err
	}
	return p.store(r, from, bus, entries, held, &outcome{batch: format == batched}, hops)
}

// topicOf opens the topic of a bus. If the bus was deleted while the body came, it refuses: its
// topic is removed, and opening would create the topic again.
func (p *Preprocessor) topicOf(bus *model.Bus) (*busTopic, error) {
	switch now := p.registry.Snapshot().Bus(bus.Name); {
	case now == nil:
		return nil, unknownBus(bus.Name)
	case !now.Created.Equal(bus.Created):
		return nil, refusal.Unavailable("bus_definition", refusal.RetryBusy, "the bus was deleted and created again meanwhile: send the request again")
	}
	return p.busTopics.of(bus), nil
}

func unknownBus(name string) error {
	return &refusal.Error{Status: http.StatusNotFound, Reason: "unknown_bus", Text: fmt.Sprintf("there is no bus %q", truncate.Text(name, 64))}
}

// busOf returns the bus that the path names, if the sender may write to it. A sender that may not
// write does not learn whether the bus exists.
func (p *Preprocessor) busOf(r *http.Request, from sender) (*model.Bus, error) {
	name := chi.URLParam(r, "bus")
	if from.tenant != nil && !from.tenant.mayWrite(name) {
		return nil, &refusal.Error{Status: http.StatusForbidden, Reason: "forbidden_bus", Text: "the tenant may not write to this bus"}
	}
	now := p.registry.Snapshot()
	bus := now.Bus(name)
	if bus == nil {
		// The bus exists, and an instance of a newer version may take its events: after a 404,
		// senders would drop them.
		if now.UnreadableBus(name) {
			return nil, refusal.Unavailable("bus_definition", refusal.RetryUnavailable, "the bus' definition cannot be read: it may be of a newer version")
		}
		return nil, unknownBus(name)
	}
	return bus, nil
}

// readBody reads a request's body.
func (p *Preprocessor) readBody(w http.ResponseWriter, r *http.Request, body *[]byte, held *admission.Hold) (err error) {
	*body, err = httpserver.ReadBody(w, r, *body, held, httpserver.BodyLimits{Bytes: int64(p.limits.BodyBytes), Reason: "body_bytes", Timeout: p.limits.ReadTimeout})
	if err != nil {
		return err
	}
	httpserver.ClearReadDeadline(w)
	p.metrics.bytes.received.Add(float64(len(*body)))
	return nil
}

// eventsOf reads the events of a body. The body is not needed after it returns.
func (p *Preprocessor) eventsOf(body []byte, encoded bool, events *eventReader) (_ []event.Entry, err error) {
	if encoded {
		decoded := p.newBody()
		defer p.releaseBody(decoded)
		if *decoded, err = p.decoders.decode(body, *decoded, events.held, p.limits); err != nil {
			return nil, err
		}
		body = *decoded
	}
	p.metrics.bytes.decoded.Add(float64(len(body)))
	parser, kept := p.parsers.Get().(*event.Parser)
	if !kept {
		parser = new(event.Parser)
	}
	defer p.parsers.Put(parser)
	return events.read(parser, body)
}

// store publishes the events and waits for the broker's acknowledgements.
func (p *Preprocessor) store(r *http.Request, from sender, bus *model.Bus, entries []event.Entry, held *admission.Hold, o *outcome, hops int) (*outcome, error) {
	events, size := 0, 0
	for i := range entries {
		if entries[i].Err == nil {
			events++
			size += len(entries[i].Event.JSON)
		}
	}
	if o.batch {
		o.results = make([]result, 0, len(entries))
	} else {
		o.id = entries[0].Event.ID
	}
	var f *flight
	if events > 0 {
		t, err := p.topicOf(bus)
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(r.Context(), p.timeout)
		defer cancel()
		if err := t.waitOpen(ctx); err != nil {
			return nil, err
		}
		if err := from.tenant.take(events, size); err != nil {
			p.metrics.events.throttled.Add(float64(events))
			return nil, err
		}
		f = newFlight(p, t, from.tenant, entries, events, hops)
		f.hold = held.Transfer(int64(2*size + eventOverhead*events))
		f.start(ctx)
		f.wait(ctx)
		if errors.Is(r.Context().Err(), context.Canceled) {
			return nil, refusal.ErrDisconnected
		}
	}
	next := 0
	for i := range entries {
		if err := entries[i].Err; err != nil {
			refused := refusedAs(err)
			p.metrics.events.refused.Inc()
			p.metrics.refusedEvent.WithLabelValues(refused.Reason).Inc()
			o.note(refused)
			continue
		}
		o.note(f.slots[next].refusal(p.timeout))
		next++
	}
	return o, nil
}

func (p *Preprocessor) newBody() *[]byte {
	if body, ok := p.bodies.Get().(*[]byte); ok {
		return body
	}
	return new([]byte)
}

// releaseBody keeps the memory of a body for another request, unless it is large: no request is
// charged for it until it is used.
func (p *Preprocessor) releaseBody(body *[]byte) {
	if cap(*body) <= keepBody {
		p.bodies.Put(body)
	}
}
