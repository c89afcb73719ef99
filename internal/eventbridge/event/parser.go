package event

import (
	"errors"
	"hash/maphash"
)

// Options are about one event, or about each event of a batch.
type Options struct {
	// MaxBytes bounds an event as Eventbridge writes it. 0: no bound.
	MaxBytes int
	// Reserve is called with a number of bytes before so much memory is allocated for an event. Its
	// error ends the reading of the event, and is returned as it is. Nil: memory is allocated as
	// needed.
	Reserve func(bytes int) error
	// Trace becomes the event's traceparent and tracestate if the event has neither.
	Trace Trace
}

// ScratchBytes is the most memory that a Parser takes for itself while it reads a body of that
// size.
func ScratchBytes(body int) int {
	const perKey = 2 * 24 // and a list that grows doubles
	return min(body*perKey/4, MaxValues*perKey)
}

// Parser reads events. It keeps memory for the next event. What it returns refers neither to the
// body nor to the parser. The zero value is ready. It is not safe for concurrent use.
type Parser struct {
	scan    scanner
	draft   draft
	started bool
}

// prepare begins a document. level is the depth of the object whose members are kept.
func (p *Parser) prepare(body []byte, level int) {
	if !p.started {
		p.scan.seed, p.started = maphash.MakeSeed(), true
	}
	p.scan.src, p.scan.err = body, nil
	p.scan.keys = p.scan.keys[:0]
	p.scan.begin(level)
}

// done forgets the body, and frees memory beyond a bound.
func (p *Parser) done() {
	const keepKeys, keepText = 4 << 10, 64 << 10
	p.scan.src = nil
	clear(p.scan.members[:cap(p.scan.members)])
	clear(p.draft.others[:cap(p.draft.others)])
	if cap(p.scan.keys) > keepKeys {
		p.scan.keys = nil
	}
	if cap(p.scan.members) > keepKeys {
		p.scan.members = nil
	}
	if cap(p.scan.decoded) > keepText {
		p.scan.decoded = nil
	}
	if cap(p.draft.buf) > keepText {
		p.draft.buf = nil
	}
	p.draft.reset()
}

// Structured reads an event in CloudEvents' JSON format (media type application/cloudevents+json).
// The error is an [*Error] or that of o.Reserve.
func (p *Parser) Structured(body []byte, o Options) (Event, error) {
	p.prepare(body, 1)
	defer p.done()
	from := p.scan.skipBlanks(0)
	end := p.scan.value(from, 0)
	if end < 0 || !p.scan.ends(end) {
		return Event{}, p.scan.err
	}
	return p.event(from, o)
}

// event makes an event from the members that were kept. Their object begins at from.
func (p *Parser) event(from int, o Options) (Event, error) {
	s, d := &p.scan, &p.draft
	if s.src[from] != '{' {
		return Event{}, faultf(NotAnObject, from, "an event must be a JSON object")
	}
	if s.fault != nil {
		return Event{}, s.fault
	}
	d.reset()
	for _, m := range s.members {
		var fault *Error
		if name := string(m.name); name == dataName || name == dataBase64Name {
			if name == dataBase64Name && m.value[0] == 'n' {
				continue // null is unset, but for data it is a value
			}
			fault = d.setData(m, o.MaxBytes)
		} else {
			fault = d.set(m.name, m.value, m.escaped, m.valueAt)
		}
		if fault != nil {
			return Event{}, fault
		}
	}
	if fault := d.checkText(); fault != nil {
		return Event{}, fault
	}
	return d.finish(o)
}

// checkText refuses data that is not a text if the event's content type is not JSON.
func (d *draft) checkText() *Error {
	a := d.known[contentTypeName]
	if d.dataName != dataName || a.raw == nil || d.data[0] == '"' {
		return nil
	}
	if string(a.raw) == `"application/json"` {
		return nil
	}
	if contentType := string(a.raw[1 : len(a.raw)-1]); !isJSON(contentType) {
		return faultf(BadData, -1, "data: must be a text, because datacontenttype %s is not JSON", shown(contentType))
	}
	return nil
}

// entryBytes is about how much memory an Entry takes, here and later, in addition to its event's
// JSON.
const entryBytes = 1 << 10

// firstEntries is for how many entries memory is allocated before they are read.
const firstEntries = 128

// Entry is an entry of a batch: an event, or why it is not one.
type Entry struct {
	Event Event
	Err   error
}

// Batch reads a list of at most most events in CloudEvents' JSON format (media type
// application/cloudevents-batch+json). It returns an error if the body is not a list of JSON
// values, or has too many. Otherwise each entry has its own error.
func (p *Parser) Batch(body []byte, most int, o Options) ([]Entry, error) {
	p.prepare(body, 2)
	defer p.done()
	s := &p.scan
	i := s.skipBlanks(0)
	if i < len(body) && body[i] != '[' {
		if end := s.value(i, 0); end >= 0 && s.ends(end) {
			return nil, faultf(NotAnObject, i, "a batch must be a JSON list")
		}
		return nil, s.err
	}
	if i >= len(body) {
		s.broken(i)
		return nil, s.err
	}
	var entries []Entry
	i = s.skipBlanks(i + 1)
	if i < len(body) && body[i] == ']' {
		if !s.ends(i + 1) {
			return nil, s.err
		}
		return nil, nil
	}
	for {
		if len(entries) == most {
			return nil, faultf(TooManyInOne, i, "a batch has at most %d events", most)
		}
		if o.Reserve != nil {
			if err := o.Reserve(entryBytes); err != nil {
				return nil, err
			}
		}
		s.begin(2)
		from := i
		if i = s.value(i, 1); i < 0 {
			return nil, s.err
		}
		var entry Entry
		entry.Event, entry.Err = p.event(from, o)
		if fault := (*Error)(nil); entry.Err != nil && !errors.As(entry.Err, &fault) {
			return nil, entry.Err // there is no memory for it, nor for later entries
		}
		if entries == nil { // the others are about as long as the first
			entries = make([]Entry, 0, min(1+(len(body)-from)/(i-from), most, firstEntries))
		}
		entries = append(entries, entry)
		if i = s.skipBlanks(i); i >= len(body) {
			s.broken(i)
			return nil, s.err
		}
		switch body[i] {
		case ',':
			i = s.skipBlanks(i + 1)
		case ']':
			if !s.ends(i + 1) {
				return nil, s.err
			}
			return entries, nil
		default:
			s.broken(i)
			return nil, s.err
		}
	}
}
