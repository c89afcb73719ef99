package door

import (
	"fmt"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"
)

// Refusal is why a request, or a part of it, is not done.
type Refusal struct {
	Status     int
	Reason     string // for the metrics: one of a small set
	Text       string // for people
	RetryAfter time.Duration
	HangUp     bool // the connection is of no further use
}

func (e *Refusal) Error() string { return e.Text }

// StatusHungUp is counted for senders that did not wait for an answer; nobody
// receives it.
const StatusHungUp = 499

// ErrDisconnected refuses a request whose sender has gone.
var ErrDisconnected = &Refusal{Status: StatusHungUp, Reason: "disconnected", Text: "the sender hung up", HangUp: true}

// Times after which senders may try again.
const (
	RetryBusy = time.Second
	RetryAway = 5 * time.Second
)

// Invalid is a Refusal with 400.
func Invalid(reason, format string, args ...any) error {
	return &Refusal{Status: http.StatusBadRequest, Reason: reason, Text: fmt.Sprintf(format, args...)}
}

// TooLarge is a Refusal with 413.
func TooLarge(reason, format string, args ...any) error {
	return &Refusal{Status: http.StatusRequestEntityTooLarge, Reason: reason, Text: fmt.Sprintf(format, args...)}
}

// Unavailable is a Refusal with 503 for a condition that passes. Senders must try again, which they do
// on 5xx only: any 4xx would lose what they send.
func Unavailable(reason string, after time.Duration, format string, args ...any) error {
	return &Refusal{Status: http.StatusServiceUnavailable, Reason: reason, Text: fmt.Sprintf(format, args...), RetryAfter: after}
}

// Bounds of what a refusal says.
const (
	MaxReason = 300  // bytes of one explanation
	MaxAnswer = 2048 // bytes of an error body
)

// Cut shortens s to n bytes at a rune's boundary, and replaces what is not UTF-8. It
// looks at no more than it keeps: s may be large.
func Cut(s string, n int) string {
	whole := len(s) <= n
	if !whole {
		s = s[:boundary(s, n)]
	}
	if s = strings.ToValidUTF8(s, "\uFFFD"); whole && len(s) <= n {
		return s
	}
	return s[:boundary(s, n)] + "..."
}

// boundary is the largest one of a rune up to n.
func boundary(s string, n int) int {
	if len(s) <= n {
		return len(s)
	}
	for back := range min(n, utf8.UTFMax) {
		if utf8.RuneStart(s[n-back]) {
			return n - back
		}
	}
	return n // it is not UTF-8
}
