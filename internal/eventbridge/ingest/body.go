package ingest

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/klauspost/compress/gzip"

	"github.com/aviaryhq/aviary/internal/httpserver/admission"
	"github.com/aviaryhq/aviary/internal/httpserver/refusal"
	"github.com/aviaryhq/aviary/internal/truncate"
)

const (
	// keepBody bounds a buffer that is kept for another request.
	keepBody = 64 << 10
	// freeRatio is the size up to which Limits.Ratio does not count: a few equal bytes become many.
	freeRatio = 64 << 10
	// inflateBytes is what a decoder takes for itself.
	inflateBytes = 64 << 10
)

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

// decoders keeps decoders for the next bodies.
type decoders struct{ gzip sync.Pool }

// decode appends the decoded body to dst[:0], within the limits. It reserves memory before it uses
// it: what the decoder needs, and what the decoder yields, as it comes.
func (d *decoders) decode(body, dst []byte, held *admission.Hold, l Limits) ([]byte, error) {
	if err := held.Grow(inflateBytes); err != nil {
		return dst, err
	}
	defer held.Shrink(inflateBytes)
	src := bytes.NewReader(body)
	from, kept := d.gzip.Get().(*gzip.Reader)
	if !kept {
		from = new(gzip.Reader)
	}
	defer d.gzip.Put(from)
	if err := from.Reset(src); err != nil {
		return dst, badCoding(err)
	}
	limit := min(int64(l.DecodedBytes), max(freeRatio, int64(l.Ratio)*int64(len(body))))
	dst, err := readAll(from, dst, held, limit)
	if err != nil {
		refused := (*refusal.Error)(nil)
		if errors.As(err, &refused) {
			return dst, err
		}
		return dst, badCoding(err)
	}
	if src.Len() > 0 {
		return dst, badCoding(errors.New("something follows its end"))
	}
	return dst, nil
}

// readAll reads to the end. It refuses more than limit bytes.
func readAll(from io.Reader, dst []byte, held *admission.Hold, limit int64) ([]byte, error) {
	const least = 8 << 10
	dst = dst[:0]
	for reserved := int64(0); ; {
		if int64(len(dst)) == reserved {
			if reserved > limit {
				return dst, refusal.TooLarge("decoded_bytes", "the body decodes to more than %d bytes", limit)
			}
			grown := min(max(2*reserved, least), limit+1) // one more byte, to see the end
			if err := held.Grow(grown - reserved); err != nil {
				return dst, err
			}
			reserved = grown
			dst = slices.Grow(dst, int(reserved)-len(dst))
		}
		n, err := from.Read(dst[len(dst):reserved])
		dst = dst[:len(dst)+n]
		if err == io.EOF {
			if int64(len(dst)) > limit {
				return dst, refusal.TooLarge("decoded_bytes", "the body decodes to more than %d bytes", limit)
			}
			return dst, nil
		}
		if err != nil {
			return dst, err
		}
	}
}

func badCoding(err error) error {
	return refusal.Invalid("content_encoding", "the body is not valid gzip: %s", truncate.Text(err.Error(), refusal.MaxReason))
}
