package target

import (
	"errors"
	"fmt"
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

// headerFault returns what is wrong with a subscriber's header, or nil. The error does not repeat
// the value.
func headerFault(name string, value secret.String) error {
	if !httpguts.ValidHeaderFieldName(name) {
		return errors.New("is not the name of an HTTP header")
	}
	if why := reservedHeader(name); why != "" {
		return fmt.Errorf("must not be given: %s", why)
	}
	if text := value.Reveal(); !httpguts.ValidHeaderFieldValue(text) || strings.TrimSpace(text) != text {
		return errors.New("must have a value that can be in an HTTP header: no control characters, no white space around it")
	}
	return nil
}

// reservedHeader returns why a subscriber must not give a header, and nothing if it may.
func reservedHeader(name string) string {
	switch canonical := http.CanonicalHeaderKey(name); canonical {
	case "Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Te", "Trailer", "Transfer-Encoding", "Upgrade":
		return "it is about one connection (RFC 9110, section 7.6.1)"
	case "Host", "Content-Length", "Content-Encoding", "Expect", "Accept-Encoding":
		return "HTTP itself sets it"
	case "Content-Type":
		return "it follows from mode, or is transform.content_type"
	case "Traceparent", "Tracestate":
		return "it is the event's"
	case "Idempotency-Key", "X-Idempotency-Key":
		return "webhook-id is for that"
	default:
		for _, prefix := range []string{"Ce-", "Webhook-", "Aviary-"} {
			if strings.HasPrefix(canonical, prefix) {
				return "headers that begin with " + strings.ToLower(prefix) + " are set by Eventbridge"
			}
		}
	}
	return ""
}

// headerFaults calls fault for each header that is wrong.
func headerFaults(headers map[string]secret.String, fault func(pointer, problem string)) {
	total := 0
	seen := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		total += len(name) + len(headers[name])
		at := "/headers/" + pointerToken(name)
		if err := headerFault(name, headers[name]); err != nil {
			fault(at, err.Error())
		} else if canonical := http.CanonicalHeaderKey(name); seen[canonical] {
			fault(at, "occurs twice: header names are case-insensitive")
		} else {
			seen[canonical] = true
		}
	}
	if len(headers) > maxHeaders || total > maxHeaderBytes {
		fault("/headers", fmt.Sprintf("must be at most %d headers and %d bytes, got %d and %d", maxHeaders, maxHeaderBytes, len(headers), total))
	}
}

// pointerToken escapes a name for a JSON Pointer (RFC 6901).
func pointerToken(name string) string {
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
}
