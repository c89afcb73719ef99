package nightingale

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/klauspost/compress/snappy"
)

// statusHungUp is counted for senders that did not wait for an answer; nobody
// receives it.
const statusHungUp = 499

var errDisconnected = &refusal{status: statusHungUp, reason: "disconnected", text: "the sender hung up", hangUp: true}

// keepBuffer is the largest buffer that is kept for another request, keepBody that of a
// body as it is sent: 10,000 series have about half of it.
const (
	keepBuffer = 4 << 20
	keepBody   = 1 << 20
)

// leastRead is what is reserved for a body before its first byte.
const leastRead = 4 << 10

// liftDeadline ends what bounds the reading of a request, see newServer, once the body
// is there: while the answer is made the server watches the connection, and would
// take a deadline that passes for a sender that hung up.
func liftDeadline(w http.ResponseWriter) {
	// The error is that of a server without deadlines, as in tests.
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
}

// read appends the body to dst[:0]. It stops at the limit of size. Memory is reserved
// as bytes arrive, no more than twice what is there: a sender that claims much and
// sends little leaves the others their room.
func read(w http.ResponseWriter, r *http.Request, dst []byte, held *hold, l Limits) ([]byte, error) {
	limit := int64(l.CompressedBytes)
	if r.ContentLength > limit {
		return dst, tooLarge("compressed_bytes", "the body has %d bytes, at most %d are allowed", r.ContentLength, limit)
	}
	most := limit
	if r.ContentLength >= 0 {
		most = r.ContentLength
	}
	most++ // one to see the end without growing
	dst = dst[:0]
	body := http.MaxBytesReader(w, r.Body, limit)
	for reserved := 0; ; {
		if len(dst) == reserved {
			reserved = int(min(max(2*int64(reserved), leastRead), most))
			if err := held.set(int64(reserved)); err != nil {
				return dst, err
			}
			dst = slices.Grow(dst, reserved-len(dst))
		}
		n, err := body.Read(dst[len(dst):reserved])
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
