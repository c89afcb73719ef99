package event

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
)

// The media types of the JSON format.
const (
	MediaType      = "application/cloudevents+json"
	BatchMediaType = "application/cloudevents-batch+json"
	jsonMediaType  = "application/json"
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
		text := decoded(value)
		if kind == TextData {
			return bytes.Clone(text), nil
		}
		data, err := base64.StdEncoding.AppendDecode(nil, text)
		if err != nil {
			return nil, fmt.Errorf("event: data_base64: %w", err)
		}
		return data, nil
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
			h.Set("Content-Type", jsonMediaType)
		case BinaryData: // otherwise a receiver would take it for JSON
			h.Set("Content-Type", "application/octet-stream")
		}
	}
	return body, err
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
	if strings.IndexFunc(text, mustEncode) < 0 {
		return text
	}
	out := make([]byte, 0, 3*len(text))
	for i := range len(text) {
		if c := text[i]; mustEncode(rune(c)) {
			out = fmt.Appendf(out, "%%%02X", c)
		} else {
			out = append(out, c)
		}
	}
	return string(out)
}

func mustEncode(r rune) bool { return r <= ' ' || r >= 0x7f || r == '"' || r == '%' }
