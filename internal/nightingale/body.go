package nightingale

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/klauspost/compress/snappy"
)

// statusHungUp is counted for senders that did not wait for an answer; nobody
// receives it.
const statusHungUp = 499

var errDisconnected = &refusal{status: statusHungUp, reason: "disconnected", text: "the sender hung up", hangUp: true}

// keepBuffer is the largest buffer that is kept for another request.
const keepBuffer = 4 << 20

// claimed is the most that a request's body can hold while it is read.
func claimed(r *http.Request, l Limits) int64 {
	if r.ContentLength < 0 {
		return int64(l.CompressedBytes)
	}
	return min(r.ContentLength, int64(l.CompressedBytes))
}

// liftDeadline ends what bounds the reading of a request, see newServer, once the body
// is there: while the answer is made the server watches the connection, and would
// take a deadline that passes for a sender that hung up.
func liftDeadline(w http.ResponseWriter) {
	// The error is that of a server without deadlines, as in tests.
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
}

// read appends the body to dst[:0]. It stops at the limit of size.
func read(w http.ResponseWriter, r *http.Request, dst []byte, l Limits) ([]byte, error) {
	limit := int64(l.CompressedBytes)
	if r.ContentLength > limit {
		return dst, tooLarge("compressed_bytes", "the body has %d bytes, at most %d are allowed", r.ContentLength, limit)
	}
	dst = dst[:0]
	if n := int(r.ContentLength); n+1 > cap(dst) {
		dst = make([]byte, 0, n+1) // and one to see the end without growing
	}
	body := http.MaxBytesReader(w, r.Body, limit)
	for {
		if len(dst) == cap(dst) {
			dst = append(dst, 0)[:len(dst)]
		}
		n, err := body.Read(dst[len(dst):cap(dst)])
		dst = dst[:len(dst)+n]
		if err == io.EOF {
			return dst, nil
		}
		if err != nil {
			return dst, readError(r.Context(), err, l)
		}
	}
}

func readError(ctx context.Context, err error, l Limits) error {
	large := (*http.MaxBytesError)(nil)
	switch {
	case errors.As(err, &large):
		return tooLarge("compressed_bytes", "the body has more than %d bytes", large.Limit)
	case errors.Is(err, os.ErrDeadlineExceeded):
		// The network may be slow today: the samples are worth another attempt.
		return &refusal{status: http.StatusServiceUnavailable, reason: "slow_body", hangUp: true, retryAfter: retryBusy,
			text: "the body did not arrive within " + l.ReadTimeout.String()}
	case errors.Is(err, io.ErrUnexpectedEOF), ctx.Err() != nil:
		return errDisconnected
	default:
		return invalid("unreadable_body", "cannot read the body: %s", cut(err.Error(), maxReason))
	}
}

// decompress decodes a snappy block into dst. The size that it claims is checked
// before any memory is given to it. The decoder takes S2's repeated copies as well,
// which no snappy body has: none is read differently for that, and a scan for them
// would cost more than half of the decoding again.
func decompress(dst, src []byte, size int) ([]byte, error) {
	if cap(dst) < size {
		dst = make([]byte, size)
	}
	out, err := snappy.Decode(dst[:size], src)
	if err != nil {
		return dst, invalid("not_snappy", "the body is not in snappy's block format: %v", err)
	}
	return out, nil
}

func decodedLen(src []byte, l Limits) (int, error) {
	if len(src) == 0 {
		return 0, invalid("empty_body", "the body is empty")
	}
	size, err := snappy.DecodedLen(src)
	if err != nil {
		return 0, invalid("not_snappy", "the body is not in snappy's block format: %v", err)
	}
	if int64(size) > int64(l.DecodedBytes) {
		return 0, tooLarge("decoded_bytes", "the body decodes to %d bytes, at most %d are allowed", size, int64(l.DecodedBytes))
	}
	return size, nil
}
