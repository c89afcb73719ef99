package event

import (
	"errors"

	"github.com/aviaryhq/aviary/pkg/jsontext"
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
// size: for keys, and for texts that it rewrites.
func ScratchBytes(body int) int {
	const perKey = 2 * jsontext.KeyBytes // a list that grows doubles
	return min(body*perKey/4, MaxValues*perKey) + 4*body
}

// Parser reads events. It keeps memory for the next event. Its results refer neither to the body nor
// to the parser. The zero value is ready. It is not safe for concurrent use.
type Parser struct {
	json  jsontext.Scanner
	draft draft
}

func (p *Parser) prepare(body []byte, o Options) {
	s := &p.json
	s.MaxDepth, s.Strict, s.MaxValues, s.MaxExponentDigits = MaxDepth, true, MaxValues, MaxExponentDigits
	s.Reset(body)
	p.draft.reset(o)
}

// done forgets the body, and frees memory beyond a bound.
func (p *Parser) done() {
	p.json.Reset(nil)
	p.draft.reset(Options{})
	clear(p.draft.others[:cap(p.draft.others)])
}

// Check reports what is wrong with a JSON value by the rules for bodies of events: RFC 8259, UTF-8,
// no duplicate keys in an object, and the bounds of depth and of values. The error is an [*Error].
// It is safe for concurrent use.
func Check(value []byte) error {
	var p Parser
	p.prepare(value, Options{})
	if _, fault := p.value(0); fault != nil {
		return fault
	}
	return nil
}

// value reads a body that is one JSON value. depth is how many objects will be around it: if there is
// one, attributes are values, too.
func (p *Parser) value(depth int) ([]byte, *Error) {
	s := &p.json
	s.Depth, s.Values = depth, depth*(1+MaxAttributes)
	from := s.Space(0)
	end := s.Value(from)
	if s.End(end) < 0 {
		return nil, p.notJSON()
	}
	return s.Src[from:end], p.duplicate()
}

// notJSON returns the error for what the scanner refuses.
func (p *Parser) notJSON() *Error {
	s := &p.json
	switch s.Fault {
	case jsontext.Truncated:
		return faultf(NotJSON, s.At, "the JSON ends too early")
	case jsontext.InvalidUTF8, jsontext.HalfSurrogate:
		return faultf(InvalidUTF8, s.At, "%s", s.Fault)
	case jsontext.TooDeep:
		return faultf(TooDeep, s.At, "nested deeper than %d", MaxDepth)
	case jsontext.TooManyValues:
		return faultf(TooMany, s.At, "more than %d values", MaxValues)
	case jsontext.ExponentTooLong:
		return faultf(BadNumber, s.At, "the exponent of a number has more than %d digits", MaxExponentDigits)
	}
	size := 1
	if s.Src[s.At] == '\\' {
		size = 2
	}
	return faultf(NotJSON, s.At, "not JSON: unexpected %s", shown(s.Src[s.At:min(s.At+size, len(s.Src))]))
}

// duplicate returns the error for a duplicate key, if there is one.
func (p *Parser) duplicate() *Error {
	s := &p.json
	at := s.Duplicate
	if at == 0 {
		return nil
	}
	end, _ := s.String(at)
	return faultf(DuplicateKey, at, "the key %s occurs twice", shown(decoded(s.Src[at:end])))
}

// Structured reads an event in CloudEvents' JSON format (media type application/cloudevents+json).
// The error is an [*Error] or that of o.Reserve.
func (p *Parser) Structured(body []byte, o Options) (Event, error) {
	p.prepare(body, o)
	defer p.done()
	from := p.json.Space(0)
	if p.json.End(p.members(from)) < 0 {
		return Event{}, p.notJSON()
	}
	return p.event(from)
}

// members reads the JSON value at i. If it is an object, the draft takes its members. The draft
// keeps the first fault: reading continues, because a batch may have later events.
func (p *Parser) members(i int) int {
	s, d := &p.json, &p.draft
	if i >= len(s.Src) || s.Src[i] != '{' {
		return s.Value(i)
	}
	s.Values++
	return s.Object(i, func(name []byte, at, value int) int {
		s.Spaced = false
		end := s.Value(value)
		if end >= 0 && d.fault == nil {
			d.fault = d.setMember(name, s.Src[value:end], s.Spaced, at, value)
		}
		return end
	})
}

// event makes an event from the members of the value that begins at from.
func (p *Parser) event(from int) (Event, error) {
	if p.json.Src[from] != '{' {
		return Event{}, faultf(NotAnObject, from, "an event must be a JSON object")
	}
	if fault := p.duplicate(); fault != nil {
		return Event{}, fault
	}
	return p.draft.finish()
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
	p.prepare(body, o)
	defer p.done()
	s := &p.json
	i := s.Space(0)
	if i >= len(body) || body[i] != '[' {
		if s.End(s.Value(i)) < 0 {
			return nil, p.notJSON()
		}
		return nil, faultf(NotAnObject, i, "a batch must be a JSON list")
	}
	var entries []Entry
	i, more := s.Open(i)
	for more {
		if len(entries) == most {
			return nil, faultf(TooManyInOne, i, "a batch has at most %d events", most)
		}
		if o.Reserve != nil {
			if err := o.Reserve(entryBytes); err != nil {
				return nil, err
			}
		}
		s.Values, s.Duplicate = 0, 0
		p.draft.reset(o)
		from := i
		if i = p.members(i); i < 0 {
			return nil, p.notJSON()
		}
		var entry Entry
		entry.Event, entry.Err = p.event(from)
		if fault := (*Error)(nil); entry.Err != nil && !errors.As(entry.Err, &fault) {
			return nil, entry.Err // there is no memory for it, nor for later entries
		}
		if entries == nil { // the others are about as long as the first
			entries = make([]Entry, 0, min(1+(len(body)-from)/(i-from), most, firstEntries))
		}
		entries = append(entries, entry)
		i, more = s.Next(i, ']')
	}
	if s.End(i) < 0 {
		return nil, p.notJSON()
	}
	return entries, nil
}
