package event

import (
	"bytes"
	"encoding/base64"
	"time"

	"github.com/aviaryhq/aviary/pkg/jsontext"
)

const (
	dataName       = "data"
	dataBase64Name = "data_base64"
)

// mostEscaped is the most characters in JSON for one byte of a text: \u0000.
const mostEscaped = 6

// draft collects the parts of one event.
type draft struct {
	Options
	known [knownNames]attribute // by number; raw is nil if the event does not have it
	at    time.Time             // the attribute time
	// others are the other attributes in the order in which they were sent.
	others []attribute
	total  int // number of attributes
	// dataName is data or data_base64, empty for none. data is its value in JSON.
	dataName string
	data     []byte
	size     int // of the event as JSON, without a brace
	fault    *Error

	buf []byte // texts that were rewritten
}

// attribute is a name, its value as JSON, and if that is a text, the text without quotes and
// escapes.
type attribute struct{ name, raw, text []byte }

// reset begins another event, and frees memory beyond a bound.
func (d *draft) reset(o Options) {
	const keep = 64 << 10
	if cap(d.buf) > keep {
		d.buf = nil
	}
	*d = draft{Options: o, others: d.others[:0], buf: d.buf[:0]}
}

// since returns what was appended to d.buf.
func (d *draft) since(from int) []byte { return d.buf[from:len(d.buf):len(d.buf)] }

// quote returns a text, which is UTF-8, as JSON.
func (d *draft) quote(text []byte) []byte {
	from := len(d.buf)
	d.buf = jsontext.AppendString(d.buf, text)
	return d.since(from)
}

// setMember takes a member of an event in JSON, with the positions of its name and of its value. It
// ignores null, except for data. spaced: the value has white space between tokens.
func (d *draft) setMember(name, value []byte, spaced bool, at, valueAt int) *Error {
	isData := string(name) == dataName
	if value[0] == 'n' && !isData {
		return nil
	}
	if isData || string(name) == dataBase64Name {
		if d.dataName != "" {
			return faultf(BadData, at, "an event has data or data_base64, not both")
		}
		if isData {
			d.setData(dataName, value, spaced)
			return nil
		}
		return d.setBase64(value, valueAt)
	}
	if value[0] != '"' {
		return d.set(attribute{name: name, raw: value}, valueAt)
	}
	text := value[1 : len(value)-1]
	if bytes.IndexByte(text, '\\') < 0 {
		return d.set(attribute{name, value, text}, valueAt)
	}
	if len(text) > mostEscaped*MaxTextBytes { // before memory is allocated for it
		return tooLong(name, valueAt)
	}
	from := len(d.buf)
	d.buf, _ = jsontext.AppendDecoded(d.buf, text)
	text = d.since(from)
	return d.set(attribute{name, d.quote(text), text}, valueAt)
}

// setText adds an attribute whose value is text, which is UTF-8.
func (d *draft) setText(name string, text []byte) *Error {
	return d.set(attribute{[]byte(name), d.quote(text), text}, -1)
}

// set adds an attribute whose value is a JSON scalar but not null.
func (d *draft) set(a attribute, at int) *Error {
	if d.total++; d.total > MaxAttributes {
		return faultf(BadAttribute, at, "more than %d attributes", MaxAttributes)
	}
	d.size += len(a.name) + len(a.raw) + len(`"":,`)
	which := known(a.name)
	when, fault := a.check(which, at)
	switch {
	case fault != nil:
		return fault
	case which < 0:
		d.others = append(d.others, a)
		return nil
	case which == timeName:
		d.at = when
	}
	d.known[which] = a
	return nil
}

// setData sets the data to a JSON value.
func (d *draft) setData(name string, value []byte, spaced bool) {
	if spaced {
		from := len(d.buf)
		d.buf = jsontext.AppendCompact(d.buf, value)
		value = d.since(from)
	}
	d.dataName, d.data = name, value
	d.size += len(name) + len(value) + len(`"":,`)
}

// setBase64 sets the data to the value of data_base64.
func (d *draft) setBase64(value []byte, at int) *Error {
	if value[0] != '"' {
		return faultf(BadData, at, "data_base64: must be a text in base64")
	}
	if d.MaxBytes > 0 && len(value) > mostEscaped*d.MaxBytes { // before memory is allocated for it
		return d.tooLarge()
	}
	from := len(d.buf)
	d.buf, _ = jsontext.AppendDecoded(append(d.buf, '"'), value[1:len(value)-1])
	d.buf = append(d.buf, '"')
	value = d.since(from)
	text := value[1 : len(value)-1]
	// Decoding skips line ends, and these are not allowed: the length would be another one.
	data, err := base64.StdEncoding.Strict().AppendDecode(d.buf, text)
	if err != nil || base64.StdEncoding.EncodedLen(len(data)-len(d.buf)) != len(text) {
		return faultf(BadData, at, "data_base64: must be a text in base64 (RFC 4648, section 4) with its padding")
	}
	d.setData(dataBase64Name, value, false)
	return nil
}

func (d *draft) tooLarge() *Error {
	return faultf(TooLarge, -1, "the event has more than %d bytes as JSON", d.MaxBytes)
}

// finish writes the event. It allocates memory for the event once everything is known to be right.
func (d *draft) finish() (Event, error) {
	if d.fault != nil {
		return Event{}, d.fault
	}
	for _, which := range [...]int{specVersion, idName, sourceName, typeName} {
		if d.known[which].raw == nil {
			return Event{}, faultf(Missing, -1, "%s is missing", attributeNames[which])
		}
	}
	contentType := d.known[contentTypeName].text
	if d.dataName == dataName && d.data[0] != '"' && !isJSON(string(contentType)) {
		return Event{}, faultf(BadData, -1, "data: must be a text, because datacontenttype %s is not JSON", shown(contentType))
	}
	if d.known[traceParentName].raw == nil && d.known[traceStateName].raw == nil && d.Trace.Parent != "" {
		if fault := d.setText("traceparent", []byte(d.Trace.Parent)); fault == nil && d.Trace.State != "" {
			_ = d.setText("tracestate", []byte(d.Trace.State)) // an event of MaxAttributes has none
		}
	}
	size := d.size + 1
	if d.MaxBytes > 0 && size > d.MaxBytes {
		return Event{}, d.tooLarge()
	}
	if d.Reserve != nil {
		if err := d.Reserve(2 * size); err != nil { // the texts of its attributes are copies
			return Event{}, err
		}
	}
	return d.write(make([]byte, 0, size)), nil
}

func (d *draft) write(json []byte) Event {
	json = append(json, '{')
	for _, list := range [...][]attribute{d.known[:], d.others} {
		for _, a := range list {
			if a.raw != nil {
				json = append(appendMember(json, a.name, a.raw), ',')
			}
		}
	}
	e := Event{Time: d.at}
	head, at := string(json), 1
	for which, a := range &d.known {
		if a.raw == nil {
			continue
		}
		at += len(a.name) + len(`"":`)
		if p := e.text(which); p != nil {
			if len(a.raw) == len(a.text)+len(`""`) {
				*p = head[at+1 : at+1+len(a.text)]
			} else {
				*p = string(a.text)
			}
		}
		at += len(a.raw) + len(`,`)
	}
	if d.dataName == "" {
		json[len(json)-1] = '}'
		e.JSON = json
		return e
	}
	e.dataAt = len(json) + len(d.dataName) + len(`"":`)
	e.dataKind = kindOfData(d.dataName, e.DataContentType)
	e.JSON = append(appendMember(json, d.dataName, d.data), '}')
	return e
}

func appendMember[T string | []byte](dst []byte, name T, value []byte) []byte {
	dst = append(dst, '"')
	dst = append(dst, name...)
	dst = append(dst, '"', ':')
	return append(dst, value...)
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
