// Package refusal has the errors by which HTTP servers refuse requests, their answers and their log.
// It must not import another package of httpserver.
package refusal

import (
	"fmt"
	"net/http"
	"time"
)

// Error says why a request, or a part of it, is refused.
type Error struct {
	Status          int
	Reason          string // the value of the metrics' label: one of a small set
	Text            string // the explanation for people
	RetryAfter      time.Duration
	CloseConnection bool // after the answer
}

func (e *Error) Error() string { return e.Text }

// StatusClientClosed is counted for senders that closed the connection before the answer. No sender
// receives it.
const StatusClientClosed = 499

// ErrDisconnected is the refusal of a request whose sender has closed the connection.
var ErrDisconnected = &Error{Status: StatusClientClosed, Reason: "disconnected", Text: "the sender closed the connection", CloseConnection: true}

// Times after which senders may try again.
const (
	RetryBusy        = time.Second     // a limit is reached
	RetryUnavailable = 5 * time.Second // Pulsar is unavailable
)

// Invalid returns an *Error with status 400.
func Invalid(reason, format string, args ...any) error {
	return &Error{Status: http.StatusBadRequest, Reason: reason, Text: fmt.Sprintf(format, args...)}
}

// TooLarge returns an *Error with status 413.
func TooLarge(reason, format string, args ...any) error {
	return &Error{Status: http.StatusRequestEntityTooLarge, Reason: reason, Text: fmt.Sprintf(format, args...)}
}

// Unavailable returns an *Error with status 503, for a temporary condition. Senders retry on 5xx
// only: any 4xx would lose their data.
func Unavailable(reason string, after time.Duration, format string, args ...any) error {
	return &Error{Status: http.StatusServiceUnavailable, Reason: reason, Text: fmt.Sprintf(format, args...), RetryAfter: after}
}

// Bounds of the texts of a refusal.
const (
	MaxReason = 300  // bytes of one explanation
	MaxAnswer = 2048 // bytes of an error body
)
