package event

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"time"
)

// Expr says where the value of an attribute comes from: a place in a JSON object, or a fixed text.
type Expr struct {
	given   bool
	fixed   string
	isFixed bool
	pointer Pointer
	source  string
}

// ParseExpr reads a JSON Pointer (RFC 6901), or "=" and a text. The empty text is the zero Expr,
// which has no value.
func ParseExpr(text string) (Expr, error) {
	if text == "" {
		return Expr{}, nil
	}
	if text[0] == '=' {
		return Expr{given: true, isFixed: true, fixed: text[1:], source: text}, nil
	}
	p, err := ParsePointer(text)
	if err != nil {
		return Expr{}, fmt.Errorf("must be a JSON Pointer, or = and a text: %w", err)
	}
	return Expr{given: true, pointer: p, source: text}, nil
}

// Mapping says how the attributes of an event are made from a JSON object, which becomes the
// event's data. Source and Type are required. If the object has no value for ID or Time, or null,
// the id is random and the time is the present. Mapping is safe for concurrent use.
type Mapping struct {
	ID, Source, Type, Subject, Time, PartitionKey Expr
}

// Plain makes an event from a JSON object by a mapping. The error is an [*Error] or that of
// o.Reserve.
func (p *Parser) Plain(body []byte, m *Mapping, o Options) (Event, error) {
	p.prepare(body, 0)
	defer p.done()
	s, d := &p.scan, &p.draft
	object := s.document()
	switch {
	case s.err != nil:
		return Event{}, s.err
	case s.fault != nil:
		return Event{}, s.fault
	case object[0] != '{':
		return Event{}, faultf(NotAnObject, 0, "plain JSON must be an object")
	}
	d.reset()
	for _, a := range [...]struct {
		name     string
		from     Expr
		instead  func() string
		required bool
	}{
		{name: "specversion", from: Expr{given: true, isFixed: true, fixed: "1.0"}},
		{name: "id", from: m.ID, instead: randomID},
		{name: "source", from: m.Source, required: true},
		{name: "type", from: m.Type, required: true},
		{name: "subject", from: m.Subject},
		{name: "time", from: m.Time, instead: func() string { return time.Now().UTC().Format(time.RFC3339Nano) }},
		{name: "datacontenttype", from: Expr{given: true, isFixed: true, fixed: "application/json"}},
		{name: "partitionkey", from: m.PartitionKey},
	} {
		text, found, fault := a.from.of(object, a.name)
		if fault != nil {
			return Event{}, fault
		}
		switch {
		case found:
		case a.instead != nil:
			text = []byte(a.instead())
		case a.required:
			return Event{}, faultf(BadMapping, -1, "%s: the object has no value at %s", a.name, shown(a.from.source))
		default:
			continue
		}
		if fault := d.setText([]byte(a.name), text); fault != nil {
			fault.Reason = BadMapping
			return Event{}, fault
		}
	}
	d.dataName, d.data, d.withBlanks = dataName, object, s.blanks
	return d.finish(o)
}

// of returns the text of the expression for an object. null and an empty text are not found.
func (e Expr) of(object []byte, name string) (text []byte, found bool, fault *Error) {
	if !e.given {
		return nil, false, nil
	}
	if e.isFixed {
		return []byte(e.fixed), true, nil
	}
	value, found := e.pointer.Find(object)
	if !found || value[0] == 'n' {
		return nil, false, nil
	}
	switch value[0] {
	case '{', '[':
		return nil, false, faultf(BadMapping, -1, "%s: the value at %s must be a text, a number or a boolean", name, shown(e.source))
	case '"':
		text = appendDecoded(nil, value[1:len(value)-1])
		return text, len(text) > 0, nil
	}
	return value, true, nil
}

// randomID returns a UUID of version 4.
func randomID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	text := hex.AppendEncode(make([]byte, 0, 36), b[:4])
	for _, part := range [...][]byte{b[4:6], b[6:8], b[8:10], b[10:]} {
		text = hex.AppendEncode(append(text, '-'), part)
	}
	return string(text)
}
