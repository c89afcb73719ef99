// Package remotewrite reads Prometheus remote write 1.0 and 2.0: it determines the protocol of a
// request, decompresses and decodes its body into a batch, and validates the series. To add a
// protocol, add a decoder and a line in [Protocols]. It may import batch, but not relabel, format or
// publish.
package remotewrite

import (
	"fmt"
	"mime"
	"net/http"
	"strings"

	"github.com/aviaryhq/aviary/internal/httpserver/refusal"
	"github.com/aviaryhq/aviary/internal/nightingale/batch"
)

// Protocol is a version of remote write: how to recognise and decode its bodies.
type Protocol struct {
	Message string // the protobuf message that Content-Type names
	Decode  func(b *batch.Batch, body []byte, l Limits) error
	Written bool // answers say how many samples were written
}

// Protocols lists the supported protocols. The first one applies to a Content-Type without the
// parameter proto.
func Protocols() []Protocol {
	return []Protocol{
		{Message: "prometheus.WriteRequest", Decode: DecodeV1},
		{Message: "io.prometheus.write.v2.Request", Decode: DecodeV2, Written: true},
	}
}

// Negotiate returns the protocol of a request. It refuses an unknown message name: a body of
// another version could decode as an empty request, and get an answer as if it had been written.
// Without a Content-Type it returns the first protocol, as Prometheus' own receiver does.
func Negotiate(known []Protocol, header http.Header) (Protocol, error) {
	text := header.Get("Content-Type")
	if text == "" {
		return known[0], checkEncoding(header)
	}
	media, parameters, err := mime.ParseMediaType(text)
	if err != nil || media != "application/x-protobuf" {
		return Protocol{}, unsupported("content_type", "Content-Type must be application/x-protobuf, got %q", text)
	}
	message, given := parameters["proto"]
	if !given {
		return known[0], checkEncoding(header)
	}
	names := make([]string, len(known))
	for i, p := range known {
		if p.Message == message {
			return p, checkEncoding(header)
		}
		names[i] = p.Message
	}
	return Protocol{}, unsupported("content_type", "Content-Type names the message %q, this receiver accepts %s",
		message, strings.Join(names, ", "))
}

// checkEncoding accepts snappy only. A missing header means snappy, too: the earliest senders of
// remote write compressed without setting the header.
func checkEncoding(header http.Header) error {
	if encoding := header.Get("Content-Encoding"); encoding != "" && !strings.EqualFold(encoding, "snappy") {
		return unsupported("content_encoding", "Content-Encoding must be snappy, got %q", encoding)
	}
	return nil
}

func unsupported(reason, format string, args ...any) error {
	return &refusal.Error{Status: http.StatusUnsupportedMediaType, Reason: reason, Text: fmt.Sprintf(format, args...)}
}
