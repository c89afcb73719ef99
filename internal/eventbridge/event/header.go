package event

import (
	"encoding/base64"
	"mime"
	"net/http"
	"net/url"
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
	p.prepare(body, o)
	defer p.done()
	if p.draft.fault = p.draft.setHeaders(h); p.draft.fault == nil && len(body) > 0 {
		p.draft.fault = p.setBody(h.Get("Content-Type"), body)
	}
	return p.draft.finish()
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
		if fault := d.setHeader(strings.ToLower(name[len(headerPrefix):]), h[name][0]); fault != nil {
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
	return d.setText("datacontenttype", []byte(text))
}

// setHeader sets the attribute name from the value of its header (section 3.1.3.2 of the binding).
// Most SDKs do not encode values, so a value that is not valid when decoded is taken as it is.
func (d *draft) setHeader(name, value string) *Error {
	text := unquoted(headerText(value))
	if decoded, err := url.PathUnescape(string(text)); err == nil && decoded != string(text) && utf8.ValidString(decoded) {
		a := attribute{name: []byte(name), text: []byte(decoded)}
		if _, fault := a.check(known(a.name), -1); fault == nil {
			text = a.text
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

// setBody takes the data of an event in binary mode.
func (p *Parser) setBody(contentType string, body []byte) *Error {
	d := &p.draft
	charset := ""
	if strings.Contains(contentType, ";") {
		_, parameters, _ := mime.ParseMediaType(contentType)
		charset = parameters["charset"]
	}
	if isJSON(contentType) {
		if !IsUTF8(charset) {
			return faultf(BadData, -1, "JSON must be UTF-8, the charset is %s", shown(charset))
		}
		value, fault := p.value(1)
		if fault == nil {
			d.setData(dataName, value, p.json.Spaced)
		}
		return fault
	}
	if d.MaxBytes > 0 && len(body) > d.MaxBytes {
		return d.tooLarge()
	}
	if IsUTF8(charset) && isText(contentType) && utf8.Valid(body) {
		size := quotedSize(body)
		if d.MaxBytes > 0 && size > d.MaxBytes {
			return d.tooLarge()
		}
		d.buf = slices.Grow(d.buf, size)
		d.setData(dataName, d.quote(body), false)
		return nil
	}
	from := len(d.buf)
	d.buf = base64.StdEncoding.AppendEncode(append(d.buf, '"'), body)
	d.buf = append(d.buf, '"')
	d.setData(dataBase64Name, d.since(from), false)
	return nil
}

// isText reports whether a media type is that of a text.
func isText(contentType string) bool {
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

// quotedSize is the length of a text as a JSON string.
func quotedSize(text []byte) int {
	var escape [6]byte
	size := len(text) + len(`""`)
	for _, c := range text {
		if c < ' ' || c == '"' || c == '\\' {
			size += len(jsontext.AppendEscape(escape[:0], c)) - 1
		}
	}
	return size
}
