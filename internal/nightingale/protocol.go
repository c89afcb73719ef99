package nightingale

import (
	"fmt"
	"mime"
	"net/http"
	"strings"

	"github.com/aviaryhq/aviary/internal/door"
)

// protocol is a version of remote write: how its bodies are told apart and read.
type protocol struct {
	message string // the protobuf message that Content-Type names
	decode  func(b *batch, body []byte, l Limits) error
	written bool // answers say how much was written
	symbols bool // bodies have symbols, and their series references
}

// protocols lists what is spoken. The first is what a Content-Type without a
// proto parameter means.
func protocols() []protocol {
	return []protocol{
		{message: "prometheus.WriteRequest", decode: decodeV1},
		{message: "io.prometheus.write.v2.Request", decode: decodeV2, written: true, symbols: true},
	}
}

// negotiate picks the protocol of a request. What is not asked for by name is
// refused: a body of another version would decode as an empty request, and be
// answered as if it had been written. Without a Content-Type it is the first, as
// with Prometheus' own receiver.
func negotiate(known []protocol, header http.Header) (protocol, error) {
	text := header.Get("Content-Type")
	if text == "" {
		return known[0], checkEncoding(header)
	}
	media, parameters, err := mime.ParseMediaType(text)
	if err != nil || media != "application/x-protobuf" {
		return protocol{}, unsupported("content_type", "Content-Type must be application/x-protobuf, got %q", text)
	}
	message, given := parameters["proto"]
	if !given {
		return known[0], checkEncoding(header)
	}
	names := make([]string, len(known))
	for i, p := range known {
		if p.message == message {
			return p, checkEncoding(header)
		}
		names[i] = p.message
	}
	return protocol{}, unsupported("content_type", "Content-Type names the message %q, this receiver takes %s", message, strings.Join(names, ", "))
}

// checkEncoding takes snappy only. Remote write's earliest senders set no header
// and compressed all the same.
func checkEncoding(header http.Header) error {
	if encoding := header.Get("Content-Encoding"); encoding != "" && !strings.EqualFold(encoding, "snappy") {
		return unsupported("content_encoding", "Content-Encoding must be snappy, got %q", encoding)
	}
	return nil
}

func unsupported(reason, format string, args ...any) error {
	return &door.Refusal{Status: http.StatusUnsupportedMediaType, Reason: reason, Text: fmt.Sprintf(format, args...)}
}
