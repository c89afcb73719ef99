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
	"github.com/klauspost/compress/zlib"
	"github.com/klauspost/compress/zstd"

	"github.com/aviaryhq/aviary/internal/httpserver/admission"
	"github.com/aviaryhq/aviary/internal/httpserver/refusal"
	"github.com/aviaryhq/aviary/internal/truncate"
)

const (
	// keepBody bounds a buffer that is kept for another request.
	keepBody = 64 << 10
	// freeRatio is the size up to which Limits.Ratio does not count: a few equal bytes become many.
	freeRatio = 64 << 10
	// These are what a decoder takes for itself. A zstd frame with a larger window is refused.
	inflateBytes = 64 << 10
	zstdWindow   = 2 << 20
	zstdBytes    = zstdWindow + 512<<10
)

// codings are the content codings that are accepted, for Accept-Encoding (RFC 7694).
const codings = "gzip, deflate, zstd"

// codingOf returns the content coding of a request, empty for none.
func codingOf(h http.Header) (string, error) {
	values := h["Content-Encoding"]
	if len(values) == 0 {
		return "", nil
	}
	coding := strings.ToLower(strings.TrimSpace(values[0]))
	switch coding {
	case "", "identity":
		coding = ""
	case "x-gzip":
		coding = "gzip"
	case "gzip", "deflate", "zstd":
	default:
		return "", unsupported("content_encoding", "Content-Encoding must be one of %s, got %q", codings, truncate.Text(values[0], 64))
	}
	if len(values) > 1 {
		return "", unsupported("content_encoding", "a body can be encoded once")
	}
	return coding, nil
}

// decoders keeps decoders for the next bodies.
type decoders struct{ gzip, zlib, zstd sync.Pool }

// decode appends the decoded body to dst[:0], within the limits. It reserves memory before it uses
// it: what the decoder needs, and what the decoder yields, as it comes.
func (d *decoders) decode(body, dst []byte, coding string, held *admission.Hold, l Limits) ([]byte, error) {
	working := int64(inflateBytes)
	if coding == "zstd" {
		working = zstdBytes
	}
	if err := held.Grow(working); err != nil {
		return dst, err
	}
	defer held.Shrink(working)
	src := bytes.NewReader(body)
	from, release, err := d.open(coding, src)
	if err != nil {
		return dst, badCoding(coding, err)
	}
	defer release()
	limit := min(int64(l.DecodedBytes), max(freeRatio, int64(l.Ratio)*int64(len(body))))
	if dst, err = readAll(from, dst, held, limit); err != nil {
		refused := (*refusal.Error)(nil)
		if errors.As(err, &refused) {
			return dst, err
		}
		return dst, badCoding(coding, err)
	}
	if src.Len() > 0 {
		return dst, badCoding(coding, errors.New("something follows its end"))
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

func badCoding(coding string, err error) error {
	if errors.Is(err, zstd.ErrWindowSizeExceeded) {
		return refusal.TooLarge("decoded_bytes", "the body needs a window of more than %d bytes to be decoded", zstdWindow)
	}
	return refusal.Invalid("content_encoding", "the body is not valid %s: %s", coding, truncate.Text(err.Error(), refusal.MaxReason))
}

// open returns a reader that decodes src, and a function that releases the decoder.
func (d *decoders) open(coding string, src io.Reader) (from io.Reader, release func(), err error) {
	switch coding {
	case "gzip":
		r, kept := d.gzip.Get().(*gzip.Reader)
		if !kept {
			r = new(gzip.Reader)
		}
		return r, func() { d.gzip.Put(r) }, r.Reset(src)
	case "deflate": // which is zlib's format (RFC 9110, section 8.4.1.2)
		r, kept := d.zlib.Get().(io.ReadCloser)
		if !kept {
			r, err = zlib.NewReader(src)
		} else if resetter, ok := r.(zlib.Resetter); ok {
			err = resetter.Reset(src, nil)
		}
		if err != nil {
			return nil, nil, err
		}
		return r, func() { d.zlib.Put(r) }, nil
	}
	r, kept := d.zstd.Get().(*zstd.Decoder)
	if !kept {
		r, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(zstdWindow))
		if err != nil {
			return nil, nil, err
		}
	}
	return r, func() {
		_ = r.Reset(nil) // it forgets the body
		d.zstd.Put(r)
	}, r.Reset(src)
}
