package door

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"slices"
	"time"
)

// leastRead is what is reserved for a body before its first byte.
const leastRead = 4 << 10

// LiftDeadline ends what bounds the reading of a request, see NewServer, once the body
// is there: while the answer is made the server watches the connection, and would
// take a deadline that passes for a sender that hung up.
func LiftDeadline(w http.ResponseWriter) {
	// The error is that of a server without deadlines, as in tests.
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
}

// BodyLimits bound a body as it is sent.
type BodyLimits struct {
	Bytes   int64
	Reason  string        // of the refusal of a larger one
	Timeout time.Duration // the server's, for the refusal of a slow one
}

// ReadBody appends the body to dst[:0]. It stops at the limit of size. Memory is reserved
// as bytes arrive, no more than twice what is there: a sender that claims much and
// sends little leaves the others their room.
func ReadBody(w http.ResponseWriter, r *http.Request, dst []byte, held *Hold, l BodyLimits) ([]byte, error) {
	if r.ContentLength > l.Bytes {
		return dst, TooLarge(l.Reason, "the body has %d bytes, at most %d are allowed", r.ContentLength, l.Bytes)
	}
	most := l.Bytes
	if r.ContentLength >= 0 {
		most = r.ContentLength
	}
	most++ // one to see the end without growing
	dst = dst[:0]
	body := http.MaxBytesReader(w, r.Body, l.Bytes)
	for reserved := 0; ; {
		if len(dst) == reserved {
			reserved = int(min(max(2*int64(reserved), leastRead), most))
			if err := held.Set(int64(reserved)); err != nil {
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

func readError(ctx context.Context, err error, l BodyLimits) error {
	large := (*http.MaxBytesError)(nil)
	switch {
	case errors.As(err, &large):
		return TooLarge(l.Reason, "the body has more than %d bytes", large.Limit)
	case errors.Is(err, os.ErrDeadlineExceeded):
		// The network may be slow today: what is sent is worth another attempt.
		return &Refusal{Status: http.StatusServiceUnavailable, Reason: "slow_body", HangUp: true, RetryAfter: RetryBusy,
			Text: "the body did not arrive within " + l.Timeout.String()}
	case errors.Is(err, io.ErrUnexpectedEOF), ctx.Err() != nil:
		return ErrDisconnected
	default:
		return Invalid("unreadable_body", "cannot read the body: %s", Cut(err.Error(), MaxReason))
	}
}
