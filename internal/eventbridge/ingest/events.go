package ingest

import (
	"fmt"
	"mime"
	"net/http"
	"strconv"
	"strings"

	"github.com/aviaryhq/aviary/internal/eventbridge/event"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/schema"
	"github.com/aviaryhq/aviary/internal/httpserver/admission"
	"github.com/aviaryhq/aviary/internal/httpserver/refusal"
	"github.com/aviaryhq/aviary/internal/truncate"
)

// form is how a request carries events.
type form byte

const (
	structured form = iota
	batched
	binary
	plain
)

func unsupported(reason, format string, args ...any) error {
	return &refusal.Error{Status: http.StatusUnsupportedMediaType, Reason: reason, Text: fmt.Sprintf(format, args...)}
}

func unprocessable(reason, format string, args ...any) *refusal.Error {
	return &refusal.Error{Status: http.StatusUnprocessableEntity, Reason: reason, Text: fmt.Sprintf(format, args...)}
}

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
