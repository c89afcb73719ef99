package event

import (
	"encoding/base64"
	"fmt"
	"net/http"
)

// The media types of the JSON format.
const (
	MediaType      = "application/cloudevents+json"
	BatchMediaType = "application/cloudevents-batch+json"
)

// Bytes returns the data as the bytes that it stands for: JSON as it is, a text without its quotes
// and escapes, and base64 decoded. JSON is a part of e.JSON, the others are copies. Nil if there is
// no data.
func (e Event) Bytes() ([]byte, error) {
	value, kind := e.Data()
	switch kind {
	case TextData, BinaryData:
		if len(value) < 2 || value[0] != '"' || value[len(value)-1] != '"' {
			return nil, errNotStored
		}
		text := appendDecoded(make([]byte, 0, len(value)), value[1:len(value)-1])
		if kind == TextData {
			return text, nil
		}
		n, err := base64.StdEncoding.Decode(text, text)
		if err != nil {
			return nil, fmt.Errorf("event: data_base64: %w", err)
		}
		return text[:n], nil
	}
	return value, nil
}

// WriteBinary sets the headers of HTTP's binary mode, with Content-Type if there is data, and
// returns the body.
func (e Event) WriteBinary(h http.Header) (body []byte, err error) {
	for name, text := range e.Attributes() {
		if name == "datacontenttype" {
			h.Set("Content-Type", text)
		} else {
			h.Set(headerPrefix+name, percentEncode(text))
		}
	}
	body, err = e.Bytes()
	if e.DataContentType == "" {
		switch e.dataKind {
		case JSONData: // the JSON format implies it
			h.Set("Content-Type", "application/json")
		case BinaryData: // otherwise a receiver would take it for JSON
			h.Set("Content-Type", "application/octet-stream")
		}
	}
	return body, err
}

// WriteStructured sets Content-Type for HTTP's structured mode and returns the body, which is
// e.JSON itself.
func (e Event) WriteStructured(h http.Header) (body []byte) {
	h.Set("Content-Type", MediaType)
	return e.JSON
}

// WriteBatch sets Content-Type for HTTP's batched mode and returns the body.
func WriteBatch(h http.Header, events []Event) (body []byte) {
	h.Set("Content-Type", BatchMediaType)
	size := 2
	for _, e := range events {
		size += len(e.JSON) + 1
	}
	body = append(make([]byte, 0, size), '[')
	for i, e := range events {
		if i > 0 {
			body = append(body, ',')
		}
		body = append(body, e.JSON...)
	}
	return append(body, ']')
}

// percentEncode encodes a header's value: bytes that are not printable ASCII, and space, quote and
// percent (section 3.1.3.2 of the binding).
func percentEncode(text string) string {
	extra := 0
	for i := range len(text) {
		if mustEncode(text[i]) {
			extra += 2
		}
	}
	if extra == 0 {
		return text
	}
	const upper = "0123456789ABCDEF"
	out := make([]byte, 0, len(text)+extra)
	for i := range len(text) {
		if c := text[i]; mustEncode(c) {
			out = append(out, '%', upper[c>>4], upper[c&15])
		} else {
			out = append(out, c)
		}
	}
	return string(out)
}

func mustEncode(c byte) bool { return c <= ' ' || c >= 0x7f || c == '"' || c == '%' }
