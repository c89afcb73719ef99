package preprocessor

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

	"github.com/aviaryhq/aviary/internal/door"
	"github.com/aviaryhq/aviary/internal/eventbridge/event"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry"
)

// Registry tells the buses as they are now.
type Registry interface{ Snapshot() *registry.Snapshot }

// Preprocessor takes events by HTTP. Make one by New. It is safe for concurrent use.
type Preprocessor struct {
	log      *zap.Logger
	refusals door.RefusalLog
	metrics  *metrics
	limits   Limits
	timeout  time.Duration
	registry Registry
	budget   *door.Budget
	outlets  *outlets
	defs     definitions
	decoders decoders
	senders  atomic.Pointer[senders] // changed by Change
	prefix   string

	bodies  sync.Pool // of *[]byte
	parsers sync.Pool // of *event.Parser
	timers  sync.Pool // of *time.Timer, stopped
}

// New makes a preprocessor of a valid configuration. prefix is that of its keys, for errors, such as "ingest.".
// why says why Pulsar cannot be connected to, nil while that is not known; it may be nil. The errors are about the files that the
// configuration names.
func New(cfg Config, prefix string, known Registry, topics registry.Topics, why func() error, open Open, log *zap.Logger, reg prometheus.Registerer) (*Preprocessor, error) {
	who, err := newSenders(log, cfg, prefix)
	if err != nil {
		return nil, err
	}
	m := newMetrics(reg, cfg.Limits)
	p := &Preprocessor{
		log: log, refusals: door.NewRefusalLog(log), metrics: m, limits: cfg.Limits, timeout: cfg.RequestTimeout, registry: known, prefix: prefix,
		budget:  door.NewBudget(int64(cfg.Limits.InFlightBytes), cfg.share(), m.inFlightSize),
		outlets: newOutlets(log, topics, cfg.RequestTimeout/2, m.topics, why, open),
	}
	p.senders.Store(who)
	return p, nil
}

// share is the one of a tenant. Without tenants all senders are one.
func (c Config) share() float64 {
	if len(c.Tenants) == 0 {
		return 1
	}
	return c.Limits.InFlightShare
}

// Memory is what the configuration lets ingestion hold, roughly, in bytes, with so many buses.
func (c Config) Memory(buses int) int64 {
	const pendingOverhead = 1536 // of a record in the client underneath
	return int64(c.Limits.InFlightBytes) + int64(buses)*int64(c.Profile.MaxPendingRecords)*pendingOverhead
}

// Change puts the tenants of another valid configuration in force. What their quotas have left stays. A fault changes nothing.
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

// Routes adds POST /v1/buses/{bus}/events.
func (p *Preprocessor) Routes(r chi.Router) { r.Post("/v1/buses/{bus}/events", p.serve) }

// ConnState counts the connections of the server.
func (p *Preprocessor) ConnState(conn net.Conn, state http.ConnState) {
	p.metrics.connState(conn, state)
}

// Run closes the topics of buses that are gone, until ctx ends.
func (p *Preprocessor) Run(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			now := p.registry.Snapshot()
			p.outlets.sweep(now)
			p.defs.sweep(now)
		}
	}
}

// Check is the readiness check: an error when there are topics and none of them takes events.
func (p *Preprocessor) Check(context.Context) error { return p.outlets.check() }

// Close flushes and closes the topics. The server must have stopped.
func (p *Preprocessor) Close(ctx context.Context) error { return p.outlets.close(ctx) }

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

// handle is the chain.
func (p *Preprocessor) handle(w http.ResponseWriter, r *http.Request, from sender) (*outcome, error) {
	bus, err := p.busOf(r, from)
	if err != nil {
		return nil, err
	}
	hops, err := hopsOf(r.Header, p.limits.Hops)
	if err != nil {
		return nil, err
	}
	carried, err := formOf(r.Header, bus)
	if err != nil {
		return nil, err
	}
	def := p.defs.of(bus)
	if err := def.ready(); err != nil {
		return nil, door.Unavailable("bus_definition", door.RetryAway, "%s", door.Cut(err.Error(), door.MaxReason))
	}
	if err := p.outlets.refuses(bus); err != nil {
		return nil, err
	}
	held := p.budget.Hold(from.account())
	defer held.Release()
	entries, err := p.receive(w, r, from, &reading{form: carried, head: r.Header, def: def, held: held, most: p.limits.BatchEvents, working: p.budget.Limit() / 8, ctx: r.Context(), wait: p.timeout})
	if err != nil {
		return nil, err
	}
	return p.store(r, from, bus, entries, held, &outcome{batch: carried == batched}, hops)
}

// topicOf opens the topic of a bus, unless that has gone while the body came: its topic is removed then, and opening would make it anew.
func (p *Preprocessor) topicOf(bus *registry.Bus) (*outlet, error) {
	switch now := p.registry.Snapshot().Bus(bus.Name); {
	case now == nil:
		return nil, unknownBus(bus.Name)
	case !now.Created.Equal(bus.Created):
		return nil, door.Unavailable("bus_definition", door.RetryBusy, "the bus was made anew meanwhile: send it again")
	}
	return p.outlets.of(bus), nil
}

func unknownBus(name string) error {
	return &door.Refusal{Status: http.StatusNotFound, Reason: "unknown_bus", Text: fmt.Sprintf("there is no bus %q", door.Cut(name, 64))}
}

// busOf returns the bus that the path names, if the sender may write to it. Who may not does not learn whether it is there.
func (p *Preprocessor) busOf(r *http.Request, from sender) (*registry.Bus, error) {
	name := chi.URLParam(r, "bus")
	if from.tenant != nil && !from.tenant.mayWrite(name) {
		return nil, &door.Refusal{Status: http.StatusForbidden, Reason: "forbidden_bus", Text: "the tenant may not write to this bus"}
	}
	now := p.registry.Snapshot()
	bus := now.Bus(name)
	if bus == nil {
		// It is there, and an instance of a newer version may take its events: a 404 would have senders drop them.
		if now.UnreadableBus(name) {
			return nil, door.Unavailable("bus_definition", door.RetryAway, "the bus' definition cannot be read: it may be of a newer version")
		}
		return nil, unknownBus(name)
	}
	return bus, nil
}

// receive reads a request's body and its events. The body is done with when it returns.
func (p *Preprocessor) receive(w http.ResponseWriter, r *http.Request, from sender, events *reading) ([]event.Entry, error) {
	coding, err := codingOf(r.Header)
	if err != nil {
		return nil, err
	}
	held := events.held
	body := p.newBody()
	defer p.releaseBody(body)
	*body, err = door.ReadBody(w, r, *body, held, door.BodyLimits{Bytes: int64(p.limits.BodyBytes), Reason: "body_bytes", Timeout: p.limits.ReadTimeout})
	if err != nil {
		return nil, err
	}
	door.LiftDeadline(w)
	p.metrics.bytes.received.Add(float64(len(*body)))
	if from.verify != nil {
		if err := from.verify(*body); err != nil {
			return nil, err
		}
		if err := held.Assign(from.tenant.name); err != nil {
			return nil, err
		}
	}
	text := *body
	if coding != "" {
		decoded := p.newBody()
		defer p.releaseBody(decoded)
		if *decoded, err = p.decoders.decode(*body, *decoded, coding, held, p.limits); err != nil {
			return nil, err
		}
		text = *decoded
	}
	p.metrics.bytes.decoded.Add(float64(len(text)))
	parser, kept := p.parsers.Get().(*event.Parser)
	if !kept {
		parser = new(event.Parser)
	}
	defer p.parsers.Put(parser)
	return events.read(parser, text)
}

// store publishes the events and waits for the broker's acknowledgements.
func (p *Preprocessor) store(r *http.Request, from sender, bus *registry.Bus, entries []event.Entry, held *door.Hold, o *outcome, hops int) (*outcome, error) {
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
		l, err := p.topicOf(bus)
		if err != nil {
			return nil, err
		}
		ctx := &patience{Context: r.Context(), until: time.Now().Add(p.timeout)}
		defer ctx.end()
		if err := l.await(ctx); err != nil {
			return nil, err
		}
		if err := from.tenant.take(events, size); err != nil {
			p.metrics.events.throttled.Add(float64(events))
			return nil, err
		}
		f = newFlight(p, l, from.tenant, entries, events, hops)
		f.hold = held.HandOver(int64(2*size + eventOverhead*events))
		f.start(ctx)
		f.wait(ctx)
		if errors.Is(r.Context().Err(), context.Canceled) {
			return nil, door.ErrDisconnected
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

// releaseBody keeps the memory of a body for another one, unless it is large: nobody is charged for it until it is used.
func (p *Preprocessor) releaseBody(body *[]byte) {
	if cap(*body) <= keepBody {
		p.bodies.Put(body)
	}
}
