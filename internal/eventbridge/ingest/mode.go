package ingest

import (
	"bytes"
	"errors"
	"mime"
	"net/http"
	"strings"

	"github.com/klauspost/compress/gzip"

	"github.com/aviaryhq/aviary/internal/eventbridge/event"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/httpserver"
	"github.com/aviaryhq/aviary/internal/httpserver/admission"
	"github.com/aviaryhq/aviary/internal/httpserver/refusal"
	"github.com/aviaryhq/aviary/internal/truncate"
)

// mode is the content mode of a request: how it carries events.
type mode byte

const (
	structured mode = iota
	batched
	binary
	plain // JSON that the mapping of the bus makes an event
)

// modeOf returns the content mode (HTTP protocol binding 1.0.2, section 3).
func modeOf(h http.Header, bus *model.Bus) (mode, error) {
	if n := len(h["Content-Type"]); n > 1 {
		return 0, unsupported("content_type", "Content-Type is given %d times", n)
	}
	text := h.Get("Content-Type")
	switch { // the usual types, without parsing
	case text == event.MediaType:
		return structured, nil
	case text == event.BatchMediaType:
		return batched, nil
	case text == "application/json" && event.IsBinary(h):
		return binary, nil
	}
	media, parameters, err := mime.ParseMediaType(text)
	if err != nil { // often only a parameter is wrong, such as one that is given twice
		media, _, _ = strings.Cut(text, ";")
		media = strings.ToLower(strings.TrimSpace(media))
	}
	isEvents := strings.HasPrefix(media, "application/cloudevents")
	switch {
	case !isEvents && event.IsBinary(h):
		return binary, nil
	case !isEvents && media != "application/json" && !strings.HasSuffix(media, "+json"):
		return 0, unsupported("content_type", "Content-Type must be %s or %s, or the headers ce-id, ce-source, ce-type and ce-specversion must be there", event.MediaType, event.BatchMediaType)
	case isEvents && err != nil || !event.IsUTF8(parameters["charset"]):
		return 0, unsupported("content_type", "Content-Type must be in UTF-8, got %q", truncate.Text(text, 100))
	case media == event.MediaType:
		return structured, nil
	case media == event.BatchMediaType:
		return batched, nil
	case isEvents:
		return 0, unsupported("content_type", "events in %q are not supported: send %s or %s", truncate.Text(media, 100), event.MediaType, event.BatchMediaType)
	case bus.Mapping == nil:
		return 0, unsupported("no_mapping", "the bus has no mapping for plain JSON: send %s, or the headers ce-id, ce-source, ce-type and ce-specversion", event.MediaType)
	}
	return plain, nil
}

// isGzip reports whether a body is compressed. No other content coding is accepted.
func isGzip(h http.Header) (bool, error) {
	values := h["Content-Encoding"]
	if len(values) > 1 {
		return false, unsupported("content_encoding", "a body can be encoded once")
	}
	switch coding := strings.ToLower(strings.TrimSpace(h.Get("Content-Encoding"))); coding {
	case "", "identity":
		return false, nil
	case "gzip", "x-gzip":
		return true, nil
	default:
		return false, unsupported("content_encoding", "Content-Encoding must be gzip, got %q", truncate.Text(coding, 64))
	}
}

// decoderBytes is what a decoder of gzip takes for itself.
const decoderBytes = 64 << 10

// decompress appends the decompressed body to dst[:0]. It reserves memory before it uses it: for the
// decoder, and for the result as it grows.
func (h *Handler) decompress(body, dst []byte, held *admission.Hold) ([]byte, error) {
	if err := held.Grow(decoderBytes); err != nil {
		return dst, err
	}
	defer held.Shrink(decoderBytes)
	decoder, kept := h.decoders.Get().(*gzip.Reader)
	if !kept {
		decoder = new(gzip.Reader)
	}
	defer h.decoders.Put(decoder)
	err := decoder.Reset(bytes.NewReader(body))
	if err == nil {
		dst, err = httpserver.ReadAll(decoder, dst, held, int64(h.limits.DecodedBytes))
	}
	switch {
	case errors.Is(err, httpserver.ErrTooLong):
		err = refusal.TooLarge("decoded_bytes", "the body decodes to more than %d bytes", int64(h.limits.DecodedBytes))
	case err != nil && !errors.As(err, new(*refusal.Error)):
		err = refusal.Invalid("content_encoding", "the body is not valid gzip: %s", truncate.Text(err.Error(), refusal.MaxReason))
	}
	return dst, err
}
