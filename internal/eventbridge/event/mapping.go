package event

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"time"
)

// Expr says where the value of an attribute comes from: a place in a JSON object, or a fixed text.
// The zero Expr has no value.
type Expr struct {
	source  string
	pointer Pointer
}

// ParseExpr reads a JSON Pointer (RFC 6901), or "=" and a text. The empty text is the zero Expr.
func ParseExpr(text string) (Expr, error) {
	if text == "" || text[0] == '=' {
		return Expr{source: text}, nil
	}
	p, err := ParsePointer(text)
	if err != nil {
		return Expr{}, fmt.Errorf("must be a JSON Pointer, or = and a text: %w", err)
	}
	return Expr{source: text, pointer: p}, nil
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
	p.prepare(body, o)
	defer p.done()
	d := &p.draft
	object, fault := p.value(1)
	if fault == nil && object[0] != '{' {
		fault = faultf(NotAnObject, 0, "plain JSON must be an object")
	}
	if fault != nil {
		return Event{}, fault
	}
	for _, a := range [...]struct {
		name     string
		from     Expr
		instead  func() string
		required bool
	}{
		{name: "specversion", from: Expr{source: "=1.0"}},
		{name: "id", from: m.ID, instead: randomID},
		{name: "source", from: m.Source, required: true},
		{name: "type", from: m.Type, required: true},
		{name: "subject", from: m.Subject},
		{name: "time", from: m.Time, instead: func() string { return time.Now().UTC().Format(time.RFC3339Nano) }},
		{name: "datacontenttype", from: Expr{source: "=" + jsonMediaType}},
		{name: "partitionkey", from: m.PartitionKey},
	} {
		text, fault := a.from.of(object, a.name)
		switch {
		case fault != nil || text != nil:
		case a.instead != nil:
			text = []byte(a.instead())
		case a.required:
			fault = faultf(BadMapping, -1, "%s: the object has no value at %s", a.name, shown(a.from.source))
		default:
			continue
		}
		if fault == nil {
			fault = d.setText(a.name, text)
		}
		if fault != nil {
			fault.Reason = BadMapping
			return Event{}, fault
		}
	}
	d.setData(dataName, object, p.json.Spaced)
	return d.finish()
}

// of returns the text of the expression for an object, nil if the object has none: null and an empty
// text count as none.
func (e Expr) of(object []byte, name string) (text []byte, fault *Error) {
	if e.source == "" {
		return nil, nil
	}
	if e.source[0] == '=' {
		return []byte(e.source[1:]), nil
	}
	value, found := e.pointer.Find(object)
	if !found || value[0] == 'n' || string(value) == `""` {
		return nil, nil
	}
	switch value[0] {
	case '{', '[':
		return nil, faultf(BadMapping, -1, "%s: the value at %s must be a text, a number or a boolean", name, shown(e.source))
	case '"':
		return decoded(value), nil
	}
	return value, nil
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
