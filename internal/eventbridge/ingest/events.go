package ingest

import (
	"context"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/aviaryhq/aviary/internal/eventbridge/event"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/schema"
	"github.com/aviaryhq/aviary/internal/httpserver"
	"github.com/aviaryhq/aviary/internal/httpserver/admission"
	"github.com/aviaryhq/aviary/internal/httpserver/refusal"
	"github.com/aviaryhq/aviary/internal/truncate"
)

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

func unknownBus(name string) error {
	return &refusal.Error{Status: http.StatusNotFound, Reason: "unknown_bus", Text: fmt.Sprintf("there is no bus %q", truncate.Text(name, 64))}
}

// hopsHeader says how often an event has passed Eventbridge.
const hopsHeader = "Aviary-Hops"

func hopsOf(h http.Header, most int) (hops int, err error) {
	values := h[hopsHeader]
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

// form is how a request carries events.
type form byte

const (
	structured form = iota
	batched
	binary
	plain
)

// formOf says how a request carries events (HTTP protocol binding 1.0.2, section 3).
func formOf(h http.Header, bus *model.Bus) (form, error) {
	text := ""
	switch values := h["Content-Type"]; len(values) {
	case 0:
	case 1:
		text = values[0]
	default:
		return 0, unsupported("content_type", "Content-Type is given %d times", len(values))
	}
	switch text {
	case event.MediaType:
		return structured, nil
	case event.BatchMediaType:
		return batched, nil
	}
	if text == "application/json" && event.IsBinary(h) {
		return binary, nil
	}
	media, parameters, err := mime.ParseMediaType(text)
	if err != nil {
		media, _, _ = strings.Cut(strings.ToLower(text), ";")
	}
	if strings.HasPrefix(media, "application/cloudevents") {
		if charset := parameters["charset"]; err != nil || !event.IsUTF8(charset) {
			return 0, unsupported("content_type", "Content-Type must be in UTF-8, got %q", truncate.Text(text, 100))
		}
		switch media {
		case event.MediaType:
			return structured, nil
		case event.BatchMediaType:
			return batched, nil
		}
		return 0, unsupported("content_type", "events in %q are not taken: send %s or %s", truncate.Text(media, 100), event.MediaType, event.BatchMediaType)
	}
	if event.IsBinary(h) {
		return binary, nil
	}
	if media != "application/json" && !strings.HasSuffix(media, "+json") {
		return 0, unsupported("content_type", "Content-Type must be %s or %s, or the headers ce-id, ce-source, ce-type and ce-specversion must be there", event.MediaType, event.BatchMediaType)
	}
	if charset := parameters["charset"]; !event.IsUTF8(charset) {
		return 0, unsupported("content_type", "JSON must be in UTF-8, got %q", truncate.Text(text, 100))
	}
	if bus.Mapping == nil {
		return 0, unsupported("no_mapping", "the bus has no mapping for plain JSON: send %s, or the headers ce-id, ce-source, ce-type and ce-specversion", event.MediaType)
	}
	return plain, nil
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

// eventReader reads one body into events.
type eventReader struct {
	form  form
	head  http.Header
	def   *definition
	held  *admission.Hold
	most  int // events of a batch
	spare int // bytes that are reserved and not used yet
	// working is the most that is reserved for the check against a schema: valid data is not
	// refused for good because invalid data might take more.
	working int64
	one     [1]event.Entry
}

// reserve is event.Options.Reserve. It reserves more at a time, to take the lock less often.
func (r *eventReader) reserve(n int) error {
	if r.spare < n {
		more := max(n-r.spare, 16<<10)
		if err := r.held.Grow(int64(more)); err != nil {
			return err
		}
		r.spare += more
	}
	r.spare -= n
	return nil
}

// read returns the events of a body, or why an entry is not an event. An error is about the whole
// body.
func (r *eventReader) read(p *event.Parser, body []byte) ([]event.Entry, error) {
	if err := r.reserve(event.ScratchBytes(len(body)) + 2*len(body)); err != nil {
		return nil, err
	}
	r.spare += 2 * len(body) // the events of this body most likely take that much
	o := event.Options{MaxBytes: r.def.bus.MaxEventBytes, Reserve: r.reserve, Trace: event.TraceOf(r.head)}
	var entries []event.Entry
	var err error
	if r.form == batched {
		if entries, err = p.Batch(body, r.most, o); err != nil {
			return nil, err
		}
	} else {
		one := &r.one[0]
		switch r.form {
		case structured:
			one.Event, one.Err = p.Structured(body, o)
		case binary:
			one.Event, one.Err = p.Binary(r.head, body, o)
		default:
			one.Event, one.Err = p.Plain(body, r.def.mapping, o)
		}
		if one.Err != nil {
			return nil, one.Err
		}
		entries = r.one[:]
	}
	for i := range entries {
		if entries[i].Err == nil {
			entries[i].Err = r.check(entries[i].Event)
		}
	}
	if r.form != batched && entries[0].Err != nil {
		return nil, entries[0].Err
	}
	return entries, nil
}

// check checks an event against the schema of its type.
func (r *eventReader) check(e event.Event) error {
	rules := r.def.schemas[e.Type]
	if rules == nil {
		return nil
	}
	data, kind := e.Data()
	if kind == event.NoData || kind == event.BinaryData {
		return unprocessable("schema", "the data of this type must be JSON: the bus has a schema for it")
	}
	working := min(int64(schema.WorkingBytes(data)), r.working)
	if err := r.held.Grow(working); err != nil {
		return err
	}
	defer r.held.Shrink(working)
	if err := rules.Validate(data); err != nil {
		return unprocessable("schema", "data does not match the schema of its type: %s", err)
	}
	return nil
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
		ctx := &deadlineContext{Context: r.Context(), until: time.Now().Add(p.timeout)}
		defer ctx.end()
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

func unsupported(reason, format string, args ...any) error {
	return &refusal.Error{Status: http.StatusUnsupportedMediaType, Reason: reason, Text: fmt.Sprintf(format, args...)}
}

func unprocessable(reason, format string, args ...any) *refusal.Error {
	return &refusal.Error{Status: http.StatusUnprocessableEntity, Reason: reason, Text: fmt.Sprintf(format, args...)}
}
