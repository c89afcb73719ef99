package nightingale

import (
	"fmt"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"
)

// refusal is why a request, or a part of it, was not written.
type refusal struct {
	status     int
	reason     string // for the metrics: one of a small set
	text       string // for people
	retryAfter time.Duration
	hangUp     bool // the connection is of no further use
}

func (e *refusal) Error() string { return e.text }

func invalid(reason, format string, args ...any) error {
	return &refusal{status: http.StatusBadRequest, reason: reason, text: fmt.Sprintf(format, args...)}
}

func tooLarge(reason, format string, args ...any) error {
	return &refusal{status: http.StatusRequestEntityTooLarge, reason: reason, text: fmt.Sprintf(format, args...)}
}

// unavailable is a condition that passes. Senders must try again, which they do
// on 5xx only: any 4xx would lose the samples.
func unavailable(reason string, after time.Duration, format string, args ...any) error {
	return &refusal{status: http.StatusServiceUnavailable, reason: reason, text: fmt.Sprintf(format, args...), retryAfter: after}
}

const (
	keptReasons = 5    // of the invalid series of a request, how many are explained
	maxReason   = 300  // bytes of one explanation
	maxAnswer   = 2048 // bytes of an error body
)

// rejected gathers what is invalid in a request whose other part is written. It
// holds no string of the request's body.
type rejected struct {
	counts  counts // of the invalid series
	first   []string
	reasons map[string]int // samples of all kinds by reason
}

func (r *rejected) add(reason string, s *series, explain func() string) {
	r.counts.add(s)
	if len(r.first) < keptReasons {
		r.first = append(r.first, cut(explain(), maxReason))
	}
	if r.reasons == nil {
		r.reasons = make(map[string]int)
	}
	r.reasons[reason] += s.entries()
}

// err is nil when nothing was rejected.
func (r *rejected) err(of int) error {
	if r.counts.series == 0 {
		return nil
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d of %d series are invalid, the others were written", r.counts.series, of)
	for _, text := range r.first {
		b.WriteString("\n" + text)
	}
	if more := r.counts.series - len(r.first); more > 0 {
		fmt.Fprintf(&b, "\nand %d more", more)
	}
	return invalid("invalid_series", "%s", b.String())
}

// cut shortens s to n bytes at a rune's boundary, and replaces what is not UTF-8. It
// looks at no more than it keeps: s may be large.
func cut(s string, n int) string {
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
