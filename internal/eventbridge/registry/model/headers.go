package model

import (
	"maps"
	"net/http"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"

	"github.com/aviaryhq/aviary/pkg/secret"
)

// maxHeaders and maxHeaderBytes bound the headers that a subscriber may add to each request.
const (
	maxHeaders     = 32
	maxHeaderBytes = 8 << 10
)

// validateHeaders checks the headers that a subscriber adds to each request. No fault repeats a
// value.
func validateHeaders(f *FaultList, w *Webhook) {
	total := 0
	seen := make(map[string]bool)
	for _, name := range slices.Sorted(maps.Keys(w.Headers)) {
		total += len(name) + len(w.Headers[name])
		at, canonical := "/headers"+Step(name), http.CanonicalHeaderKey(name)
		switch why := reservedHeader(canonical); {
		case !httpguts.ValidHeaderFieldName(name):
			f.Add(at, "the key must be the name of an HTTP header, got %s", Quote(name))
		case why != "":
			f.Add(at, "must not be given: %s", why)
		case canonical == "Authorization" && (w.Bearer != "" || w.OAuth2 != nil):
			f.Add(at, "must not be given together with bearer or oauth2")
		case seen[canonical]:
			f.Add(at, "the header occurs twice, because header names are case-insensitive")
		}
		seen[canonical] = true
		f.headerValue(at, w.Headers[name])
	}
	if len(w.Headers) > maxHeaders || total > maxHeaderBytes {
		f.Add("/headers", "must be at most %d headers and %d bytes, got %d and %d", maxHeaders, maxHeaderBytes, len(w.Headers), total)
	}
}

// headerValue checks a value of a header.
func (f *FaultList) headerValue(at string, value secret.String) {
	if text := value.Reveal(); !httpguts.ValidHeaderFieldValue(text) || strings.TrimSpace(text) != text {
		f.Add(at, "must not hold line breaks or other control characters, nor white space around the value")
	}
}

// reservedHeader returns why a subscriber must not give a header, and nothing if it may.
func reservedHeader(canonical string) string {
	switch canonical {
	case "Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Te", "Trailer", "Transfer-Encoding", "Upgrade":
		return "it belongs to one connection (RFC 9110, section 7.6.1)"
	case "Host", "Content-Length", "Content-Encoding", "Expect", "Accept-Encoding":
		return "HTTP itself sets it"
	case "Content-Type":
		return "it follows from mode, or is transform.content_type"
	case "Traceparent", "Tracestate":
		return "it is the event's"
	case "Idempotency-Key", "X-Idempotency-Key":
		return "webhook-id is for that"
	}
	for _, prefix := range []string{"Ce-", "Webhook-", "Aviary-"} {
		if strings.HasPrefix(canonical, prefix) {
			return "Eventbridge sets headers that begin with " + strings.ToLower(prefix)
		}
	}
	return ""
}
