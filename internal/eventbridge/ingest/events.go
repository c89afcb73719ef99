package ingest

import (
	"github.com/aviaryhq/aviary/internal/eventbridge/event"
	"github.com/aviaryhq/aviary/internal/eventbridge/schema"
)

// eventsOf reads the events of a body, each with the reason why it is refused. An error is about the
// whole body. The body is not needed after it returns.
func (h *Handler) eventsOf(q *request, body []byte) (_ []event.Entry, err error) {
	if q.encoded {
		decoded := h.newBuffer()
		defer h.releaseBuffer(decoded)
		if *decoded, err = h.decompress(body, *decoded, q.held); err != nil {
			return nil, err
		}
		body = *decoded
	}
	h.metrics.bytes.decoded.Add(float64(len(body)))
	parser, kept := h.parsers.Get().(*event.Parser)
	if !kept {
		parser = new(event.Parser)
	}
	defer h.parsers.Put(parser)
	entries, err := q.parse(parser, body, h.limits.BatchEvents)
	if err != nil {
		return nil, err
	}
	for i := range entries {
		if entries[i].Err == nil {
			entries[i].Err = q.check(entries[i].Event, h.budget.Limit()/8)
		}
	}
	if q.mode != batched && entries[0].Err != nil {
		return nil, entries[0].Err
	}
	return entries, nil
}

// parse parses a body. most bounds the events of a batch.
func (q *request) parse(p *event.Parser, body []byte, most int) ([]event.Entry, error) {
	if err := q.reserve(event.ScratchBytes(len(body)) + 2*len(body)); err != nil {
		return nil, err
	}
	q.spare += 2 * len(body) // the events of this body most likely take that much
	o := event.Options{MaxBytes: q.bus.bus.MaxEventBytes, Reserve: q.reserve, Trace: event.TraceOf(q.header)}
	one := &q.one[0]
	switch q.mode {
	case batched:
		return p.Batch(body, most, o)
	case structured:
		one.Event, one.Err = p.Structured(body, o)
	case binary:
		one.Event, one.Err = p.Binary(q.header, body, o)
	default:
		one.Event, one.Err = p.Plain(body, &q.bus.mapping, o)
	}
	return q.one[:], nil
}

// reserve is event.Options.Reserve. It reserves more at a time, to take the lock less often.
func (q *request) reserve(n int) error {
	if q.spare < n {
		more := max(n-q.spare, 16<<10)
		if err := q.held.Grow(int64(more)); err != nil {
			return err
		}
		q.spare += more
	}
	q.spare -= n
	return nil
}

// check checks an event against the schema of its type. It reserves at most so many bytes: valid
// data is not refused for good because invalid data might take more.
func (q *request) check(e event.Event, most int64) error {
	rules := q.bus.schemas[e.Type]
	if rules == nil {
		return nil
	}
	data, kind := e.Data()
	if kind == event.NoData || kind == event.BinaryData {
		return unprocessable("schema", "the data of this type must be JSON: the bus has a schema for it")
	}
	bytes := min(int64(schema.WorkingBytes(data)), most)
	if err := q.held.Grow(bytes); err != nil {
		return err
	}
	defer q.held.Shrink(bytes)
	if err := rules.Validate(data); err != nil {
		return unprocessable("schema", "data does not match the schema of its type: %s", err)
	}
	return nil
}
