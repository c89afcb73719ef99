package httpserver

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/aviaryhq/aviary/internal/httpserver/admission"
	"github.com/aviaryhq/aviary/internal/httpserver/refusal"
	"github.com/aviaryhq/aviary/internal/truncate"
)

// firstRead is how many bytes are reserved for a body before its first byte.
const firstRead = 4 << 10

// ClearReadDeadline removes the read deadline of a request (see NewServer) once its body is read.
// While the request is handled the server watches the connection, and a deadline that expires would
// look like a sender that closed it.
func ClearReadDeadline(w http.ResponseWriter) {
	// It fails where the server has no deadlines, as in tests.
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
}

// AnswerAtOnce makes the server answer without reading the body, and close the connection. Without
// it the server would first read up to 256 KiB of the body, which may never come. Call it before
// the status is written.
func AnswerAtOnce(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength != 0 {
		w.Header().Set("Connection", "close")
	}
}

// BodyLimits are the limits of a body before it is decompressed.
type BodyLimits struct {
	Bytes   int64
	Reason  string        // why a larger one is refused
	Timeout time.Duration // the server's ReadTimeout, for the text of the refusal
}

// ReadBody reads the body into dst[:0] by ReadAll, up to the limit of size: a sender that announces a
// large body and sends little does not take memory from the others.
func ReadBody(w http.ResponseWriter, r *http.Request, dst []byte, held *admission.Hold, l BodyLimits) ([]byte, error) {
	if r.ContentLength > l.Bytes {
		return dst, refusal.TooLarge(l.Reason, "the body has %d bytes, at most %d are allowed", r.ContentLength, l.Bytes)
	}
	body, most := r.Body, r.ContentLength
	if most < 0 { // otherwise the server reads no more than that
		body, most = http.MaxBytesReader(w, r.Body, l.Bytes), l.Bytes
	}
	dst, err := ReadAll(body, dst, held, most)
	if err != nil {
		return dst, readError(r.Context(), err, l)
	}
	return dst, nil
}

// ErrTooLong is the error of ReadAll for a text that is longer than allowed.
var ErrTooLong = errors.New("the text is too long")

// ReadAll reads from into dst[:0] until its end. It reserves 4 KiB in held before the first byte,
// then no more than twice of what has arrived, and at most most+1 bytes. It returns ErrTooLong if
// there are more than most bytes, a *refusal.Error if held cannot grow, and the reader's errors.
func ReadAll(from io.Reader, dst []byte, held *admission.Hold, most int64) ([]byte, error) {
	dst = dst[:0]
	for reserved := int64(0); ; {
		if int64(len(dst)) == reserved {
			grown := min(max(2*reserved, firstRead), most+1) // one more to see the end without growing
			if err := held.Grow(grown - reserved); err != nil {
				return dst, err
			}
			reserved = grown
			dst = slices.Grow(dst, int(reserved)-len(dst))
		}
		n, err := from.Read(dst[len(dst):reserved])
		dst = dst[:len(dst)+n]
		switch {
		case int64(len(dst)) > most:
			return dst, ErrTooLong
		case err == io.EOF:
			return dst, nil
		case err != nil:
			return dst, err
		}
	}
}

func readError(ctx context.Context, err error, l BodyLimits) error {
	large := (*http.MaxBytesError)(nil)
	switch {
	case errors.As(err, new(*refusal.Error)): // no memory is left
		return err
	case errors.As(err, &large):
		return refusal.TooLarge(l.Reason, "the body has more than %d bytes", large.Limit)
	case errors.Is(err, os.ErrDeadlineExceeded):
		// The network may be slow: another attempt may succeed.
		return &refusal.Error{Status: http.StatusServiceUnavailable, Reason: "slow_body", CloseConnection: true, RetryAfter: refusal.RetryBusy,
			Text: "the body did not arrive within " + l.Timeout.String()}
	case errors.Is(err, io.ErrUnexpectedEOF), ctx.Err() != nil:
		return refusal.ErrDisconnected
	default:
		return refusal.Invalid("unreadable_body", "cannot read the body: %s", truncate.Text(err.Error(), refusal.MaxReason))
	}
}
