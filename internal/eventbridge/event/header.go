package event

import (
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/aviaryhq/aviary/pkg/jsontext"
)

// headerPrefix is the prefix of attributes in HTTP's binary mode, in the form of http.Header.
const headerPrefix = "Ce-"

// IsBinary reports whether a request's headers are those of an event in binary mode: they have at
// least one of the required attributes.
func IsBinary(h http.Header) bool {
	for _, name := range [...]string{"Ce-Specversion", "Ce-Id", "Ce-Source", "Ce-Type"} {
		if len(h[name]) > 0 {
			return true
		}
	}
	return false
}

// Binary reads an event in the binary mode of the HTTP protocol binding 1.0.2. The body is its
// data: a JSON value if Content-Type is JSON or missing, a text if it is text/*, XML or a form in
// UTF-8, and otherwise bytes, which are written in base64. An empty body is no data. All attributes
// are texts, because a header does not say whether 5 was a number. The error is an [*Error] or that
// of o.Reserve.
func (p *Parser) Binary(h http.Header, body []byte, o Options) (Event, error) {
	p.prepare(body, 0)
	defer p.done()
	d := &p.draft
	d.reset()
	if fault := d.setHeaders(h); fault != nil {
		return Event{}, fault
	}
	if len(body) > 0 {
		if fault := p.setBody(h, body); fault != nil {
			return Event{}, fault
		}
	}
	return d.finish(o)
}

// setHeaders takes the attributes from headers, extensions in the order of their names.
func (d *draft) setHeaders(h http.Header) *Error {
	var names []string
	for name := range h {
		if strings.HasPrefix(name, headerPrefix) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		if name == "Ce-Datacontenttype" || name == "Ce-Data" {
			return faultf(BadHeader, -1, "the header %s is not allowed: Content-Type and the body have its place", strings.ToLower(name))
		}
		if len(h[name]) != 1 {
			return faultf(BadHeader, -1, "the header %s is there %d times", strings.ToLower(name), len(h[name]))
		}
		if fault := d.setHeader([]byte(strings.ToLower(name[len(headerPrefix):])), h[name][0]); fault != nil {
			return fault
		}
	}
	if len(h["Content-Type"]) == 0 || h["Content-Type"][0] == "" && len(h["Content-Type"]) == 1 {
		return nil
	}
	if len(h["Content-Type"]) > 1 {
		return faultf(BadHeader, -1, "the header content-type is there %d times", len(h["Content-Type"]))
	}
	text := h["Content-Type"][0]
	if !utf8.ValidString(text) {
		return faultf(InvalidUTF8, -1, "the header content-type is not UTF-8")
	}
	return d.setText([]byte("datacontenttype"), []byte(text))
}

// setHeader sets the attribute name from the value of its header (section 3.1.3.2 of the binding).
// Most SDKs do not encode values, so a value that is not valid when decoded is taken as it is.
func (d *draft) setHeader(name []byte, value string) *Error {
	text := unquoted(headerText(value))
	if decoded, ok := percentDecoded(text); ok && utf8.Valid(decoded) {
		if _, fault := checkAttribute(known(name), name, decoded, -1); fault == nil {
			text = decoded
		}
	}
	return d.setText(name, text)
}

// headerText returns a header's value as UTF-8. If it is not UTF-8, it is read as Latin-1, which
// the HTTP clients of Java, Node and Python write.
func headerText(value string) []byte {
	if utf8.ValidString(value) {
		return []byte(value)
	}
	text := make([]byte, 0, 2*len(value))
	for i := range len(value) {
		text = utf8.AppendRune(text, rune(value[i]))
	}
	return text
}

// unquoted returns what a quoted string stands for (RFC 9110, section 5.6.4), and any other text as
// it is.
func unquoted(text []byte) []byte {
	if len(text) < 2 || text[0] != '"' {
		return text
	}
	out := make([]byte, 0, len(text))
	last := len(text) - 1
	for i := 1; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"' && i == last:
			return out
		case c == '"':
			return text
		case c == '\\' && i < last:
			i++
		}
		out = append(out, text[i])
	}
	return text
}

// percentDecoded returns false if a percent sign has no two hexadecimal digits behind it.
func percentDecoded(text []byte) ([]byte, bool) {
	out := make([]byte, 0, len(text))
	for i := 0; i < len(text); i++ {
		c := text[i]
		if c == '%' {
			if i+2 >= len(text) || jsontext.HexValue(text[i+1]) < 0 || jsontext.HexValue(text[i+2]) < 0 {
				return nil, false
			}
			c = byte(jsontext.HexValue(text[i+1])<<4 | jsontext.HexValue(text[i+2]))
			i += 2
		}
		out = append(out, c)
	}
	return out, true
}

// setBody takes the data of an event in binary mode.
func (p *Parser) setBody(h http.Header, body []byte) *Error {
	d := &p.draft
	contentType := h.Get("Content-Type")
	switch {
	case isJSON(contentType):
		if charset := charsetOf(contentType); !IsUTF8(charset) {
			return faultf(BadData, -1, "JSON must be UTF-8, the charset is %s", shown(charset))
		}
		value := p.scan.document()
		if p.scan.err != nil {
			return p.scan.err
		}
		if p.scan.fault != nil {
			return p.scan.fault
		}
		d.dataName, d.data, d.withBlanks = dataName, value, p.scan.blanks
	case isText(contentType) && utf8.Valid(body):
		d.dataName, d.text = dataName, body
	default:
		d.dataName, d.binary = dataBase64Name, body
	}
	return nil
}

// isText reports whether a media type is that of a text in UTF-8.
func isText(contentType string) bool {
	if !IsUTF8(charsetOf(contentType)) {
		return false
	}
	media, _, _ := strings.Cut(contentType, ";")
	media = strings.ToLower(strings.TrimSpace(media))
	return strings.HasPrefix(media, "text/") || strings.HasSuffix(media, "/xml") || strings.HasSuffix(media, "+xml") ||
		media == "application/x-www-form-urlencoded"
}

// IsUTF8 reports whether a charset of a media type is UTF-8, by its registered name or by utf8,
// which many senders write. US-ASCII is a part of UTF-8, and empty means UTF-8.
func IsUTF8(charset string) bool {
	switch strings.ToLower(charset) {
	case "", "utf-8", "utf8", "us-ascii":
		return true
	}
	return false
}

// charsetOf returns the charset of a media type in lower case, empty if it has none.
func charsetOf(contentType string) string {
	_, parameters, _ := strings.Cut(contentType, ";")
	for parameter := range strings.SplitSeq(parameters, ";") {
		name, value, _ := strings.Cut(strings.TrimSpace(parameter), "=")
		if strings.EqualFold(name, "charset") {
			return strings.ToLower(strings.Trim(value, `"`))
		}
	}
	return ""
}
