package event

import (
	"encoding/base64"
	"time"
)

// draft collects the parts of one event.
type draft struct {
	known  [knownNames]attribute // without a name; raw is nil if the event does not have it
	at     time.Time             // the attribute time
	others []attribute
	total  int // number of attributes

	dataName string // data or data_base64, empty for none
	// If there is data, one of these is set: data is JSON as it was sent, with or without white
	// space; text has to be written as a JSON text, binary in base64.
	data       []byte
	withBlanks bool
	text       []byte
	binary     []byte

	buf []byte // texts that were rewritten
}

func (d *draft) reset() {
	*d = draft{others: d.others[:0], buf: d.buf[:0]}
}

// set adds an attribute whose value is a JSON scalar that the scanner has accepted. It ignores
// null.
func (d *draft) set(name, raw []byte, escaped bool, at int) *Error {
	if raw[0] == 'n' {
		return nil
	}
	if d.total++; d.total > MaxAttributes {
		return faultf(BadAttribute, at, "more than %d attributes", MaxAttributes)
	}
	which := known(name)
	if which < 0 {
		if fault := checkName(name, at); fault != nil {
			return fault
		}
	}
	if raw[0] != '"' {
		if which >= 0 {
			return faultf(BadAttribute, at, "%s: must be a text", name)
		}
		if fault := checkValue(name, raw, at); fault != nil {
			return fault
		}
		d.others = append(d.others, attribute{name: name, raw: raw})
		return nil
	}
	text := raw[1 : len(raw)-1]
	if escaped {
		if n := decodedSize(text); n > MaxTextBytes { // before memory is allocated for it
			return faultf(BadAttribute, at, "%s: must have at most %d bytes, got %d", name, MaxTextBytes, n)
		}
		from := len(d.buf)
		d.buf = appendDecoded(d.buf, text)
		text = d.buf[from:len(d.buf):len(d.buf)]
		from = len(d.buf)
		d.buf = appendQuoted(d.buf, text)
		raw = d.buf[from:len(d.buf):len(d.buf)]
		escaped = len(raw) != len(text)+2
	}
	return d.check(which, attribute{name, raw, escaped}, text, at)
}

// setText adds an attribute whose value is text, which is UTF-8.
func (d *draft) setText(name, text []byte) *Error {
	if d.total++; d.total > MaxAttributes {
		return faultf(BadAttribute, -1, "more than %d attributes", MaxAttributes)
	}
	which := known(name)
	if which < 0 {
		if fault := checkName(name, -1); fault != nil {
			return fault
		}
	}
	from := len(d.buf)
	d.buf = appendQuoted(d.buf, text)
	raw := d.buf[from:len(d.buf):len(d.buf)]
	return d.check(which, attribute{name, raw, len(raw) != len(text)+2}, text, -1)
}

func (d *draft) check(which int, a attribute, text []byte, at int) *Error {
	when, fault := checkAttribute(which, a.name, text, at)
	if fault != nil {
		return fault
	}
	if which < 0 {
		d.others = append(d.others, a)
		return nil
	}
	if which == timeName {
		d.at = when
	}
	d.known[which] = attribute{raw: a.raw, escaped: a.escaped}
	return nil
}

// size is the length of the event as JSON.
func (d *draft) size() int {
	n := 1 // one brace; each member counts a comma, and the first comma stands for the other brace
	for i, a := range d.known {
		if a.raw != nil {
			n += len(nameOf(i)) + len(a.raw) + 4
		}
	}
	for _, a := range d.others {
		n += len(a.name) + len(a.raw) + 4
	}
	if d.dataName == "" {
		return n
	}
	n += len(d.dataName) + 4
	switch {
	case d.text != nil:
		n += quotedSize(d.text)
	case d.binary != nil:
		n += base64.StdEncoding.EncodedLen(len(d.binary)) + 2
	case d.withBlanks:
		n += compactSize(d.data)
	default:
		n += len(d.data)
	}
	return n
}

// finish writes the event. It allocates memory for the event once everything is known to be right.
func (d *draft) finish(o Options) (Event, error) {
	for _, which := range [...]int{specVersion, idName, sourceName, typeName} {
		if d.known[which].raw == nil {
			return Event{}, faultf(Missing, -1, "%s is missing", nameOf(which))
		}
	}
	if d.known[traceParentName].raw == nil && o.Trace.Parent != "" && d.known[traceStateName].raw == nil {
		d.addTrace(o.Trace)
	}
	size := d.size()
	if o.MaxBytes > 0 && size > o.MaxBytes {
		return Event{}, faultf(TooLarge, -1, "the event has %d bytes as JSON, at most %d are allowed", size, o.MaxBytes)
	}
	if o.Reserve != nil {
		if err := o.Reserve(2 * size); err != nil { // the texts of its attributes are copies
			return Event{}, err
		}
	}
	return d.write(make([]byte, 0, size))
}

func (d *draft) addTrace(t Trace) {
	if d.total += 2; d.total > MaxAttributes {
		return
	}
	add := func(which int, text string) {
		from := len(d.buf)
		d.buf = appendQuoted(d.buf, text)
		d.known[which] = attribute{raw: d.buf[from:len(d.buf):len(d.buf)], escaped: len(d.buf)-from != len(text)+2}
	}
	add(traceParentName, t.Parent)
	if t.State != "" {
		add(traceStateName, t.State)
	}
}

func (d *draft) write(dst []byte) (Event, error) {
	var at [knownNames]int
	dst = append(dst, '{')
	for i, a := range d.known {
		if a.raw == nil {
			continue
		}
		dst = appendName(dst, nameOf(i))
		at[i] = len(dst)
		dst = append(append(dst, a.raw...), ',')
	}
	for _, a := range d.others {
		dst = appendName(dst, a.name)
		dst = append(append(dst, a.raw...), ',')
	}
	head := string(dst)
	e := Event{dataKind: NoData}
	text := func(which int) string {
		a := d.known[which]
		switch {
		case a.raw == nil:
			return ""
		case a.escaped:
			return string(appendDecoded(nil, a.raw[1:len(a.raw)-1]))
		default:
			return head[at[which]+1 : at[which]+len(a.raw)-1]
		}
	}
	e.ID, e.Source, e.Type, e.Subject = text(idName), text(sourceName), text(typeName), text(subjectName)
	e.PartitionKey, e.DataContentType = text(partitionKeyName), text(contentTypeName)
	e.Time = d.at
	if d.dataName == "" {
		dst[len(dst)-1] = '}'
		e.JSON = dst
		return e, nil
	}
	dst = appendName(dst, d.dataName)
	e.dataAt = len(dst)
	e.dataKind = kindOfData(d.dataName, e.DataContentType)
	switch {
	case d.text != nil:
		dst = appendQuoted(dst, d.text)
	case d.binary != nil:
		dst = append(dst, '"')
		dst = base64.StdEncoding.AppendEncode(dst, d.binary)
		dst = append(dst, '"')
	case d.withBlanks:
		dst = appendCompact(dst, d.data)
	default:
		dst = append(dst, d.data...)
	}
	e.JSON = append(dst, '}')
	return e, nil
}

func kindOfData(name, contentType string) DataKind {
	switch {
	case name == dataBase64Name:
		return BinaryData
	case isJSON(contentType):
		return JSONData
	}
	return TextData
}

func appendName[T string | []byte](dst []byte, name T) []byte {
	dst = append(dst, '"')
	dst = append(dst, name...)
	return append(dst, '"', ':')
}

// setData takes the member data or data_base64 of an event in JSON. most bounds its bytes; 0: no
// bound.
func (d *draft) setData(m member, most int) *Error {
	if d.dataName != "" {
		return faultf(BadData, m.at, "an event has data or data_base64, not both")
	}
	d.dataName = string(m.name)
	d.data, d.withBlanks = m.value, m.withBlanks
	if d.dataName == dataName {
		return nil
	}
	if m.value[0] != '"' {
		return faultf(BadData, m.valueAt, "data_base64: must be a text in base64")
	}
	text := m.value[1 : len(m.value)-1]
	if m.escaped {
		if n := decodedSize(text); most > 0 && n > most { // before memory is allocated for it
			return faultf(TooLarge, -1, "the event has more than %d bytes as JSON, at most %d are allowed", n, most)
		}
		from := len(d.buf)
		d.buf = appendDecoded(d.buf, text)
		text = d.buf[from:len(d.buf):len(d.buf)]
		from = len(d.buf)
		d.buf = appendQuoted(d.buf, text)
		d.data = d.buf[from:len(d.buf):len(d.buf)]
	}
	if !isBase64(text) {
		return faultf(BadData, m.valueAt, "data_base64: must be a text in base64 (RFC 4648, section 4) with its padding")
	}
	return nil
}

const (
	dataName       = "data"
	dataBase64Name = "data_base64"
)

// isBase64 reports whether base64.StdEncoding.Strict decodes text. It allocates no memory.
func isBase64(text []byte) bool {
	if len(text)%4 != 0 {
		return false
	}
	var buf [3 * 64]byte
	strict := base64.StdEncoding.Strict()
	for len(text) > 0 {
		part := text[:min(len(text), 4*64)]
		text = text[len(part):]
		n, err := strict.Decode(buf[:], part)
		if err != nil || len(text) > 0 && n != len(part)/4*3 {
			return false
		}
	}
	return true
}
