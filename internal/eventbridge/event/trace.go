package event

import (
	"net/http"
	"strings"
)

// Trace is a W3C trace context. The zero value means none.
type Trace struct{ Parent, State string }

// TraceOf returns the trace context in a request's headers, the zero Trace if they have no valid
// one (W3C Trace Context, level 1, section 3.2).
func TraceOf(h http.Header) Trace {
	parents := h["Traceparent"]
	if len(parents) != 1 || !validTraceParent(parents[0]) {
		return Trace{}
	}
	t := Trace{Parent: parents[0]}
	if state := strings.Join(h["Tracestate"], ","); len(state) <= 512 && isPrintable(state) {
		t.State = state
	}
	return t
}

// validTraceParent checks version, trace-id, parent-id and flags. A later version may have more
// after them.
func validTraceParent(text string) bool {
	const size = 2 + 1 + 32 + 1 + 16 + 1 + 2
	if len(text) < size || len(text) > 4*size || len(text) > size && (text[:2] == "00" || text[size] != '-') || !isPrintable(text) {
		return false
	}
	if text[2] != '-' || text[35] != '-' || text[52] != '-' || text[:2] == "ff" {
		return false
	}
	for _, part := range [...]string{text[:2], text[3:35], text[36:52], text[53:55]} {
		if strings.Trim(part, "0123456789abcdef") != "" {
			return false
		}
	}
	return strings.Trim(text[3:35], "0") != "" && strings.Trim(text[36:52], "0") != ""
}

func isPrintable(text string) bool {
	return strings.IndexFunc(text, func(r rune) bool { return r < ' ' || r > '~' }) < 0
}
