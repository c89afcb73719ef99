package ingest

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/aviaryhq/aviary/internal/httpserver"
	"github.com/aviaryhq/aviary/internal/httpserver/refusal"
)

// Headers of the handshake.
const (
	originHeader = "Webhook-Request-Origin"
	rateHeader   = "Webhook-Request-Rate"
)

// answerHandshake answers services that ask whether they may send events to a webhook: OPTIONS with
// the header WebHook-Request-Origin (HTTP 1.1 Web Hooks for Event Delivery 1.0.2, section 4). The
// answer grants nothing, because each event needs a tenant's credentials. So the handshake needs
// none, and the answer is the same for each name of a bus. WebHook-Request-Callback is ignored:
// this process sends no request to an address that a stranger chooses.
func answerHandshake(w http.ResponseWriter, r *http.Request) {
	httpserver.AnswerAtOnce(w, r)
	origins, rates := r.Header[originHeader], r.Header[rateHeader]
	w.Header().Set("Allow", http.MethodPost)
	if len(origins) == 0 {
		refusal.WriteProblem(w, refusal.WrongMethod(r, http.MethodPost), nil)
		return
	}
	rate := "*" // the handshake sets no bound; quotas answer 429
	if len(rates) > 0 {
		n, err := strconv.ParseUint(rates[0], 10, 32)
		if err != nil || n == 0 || len(rates) > 1 {
			refusal.WriteProblem(w, &refusal.Error{Status: http.StatusBadRequest, Reason: "invalid_header", Text: "WebHook-Request-Rate must be one number of requests per minute"}, nil)
			return
		}
		rate = strconv.FormatUint(n, 10)
	}
	if len(origins) > 1 || !isDomain(origins[0]) {
		refusal.WriteProblem(w, &refusal.Error{Status: http.StatusBadRequest, Reason: "invalid_header", Text: "WebHook-Request-Origin must be one domain name"}, nil)
		return
	}
	w.Header().Set("WebHook-Allowed-Origin", origins[0])
	w.Header().Set("WebHook-Allowed-Rate", rate)
	w.WriteHeader(http.StatusOK)
}

// isDomain reports whether text has the length and the bytes of a domain name.
func isDomain(text string) bool {
	const most = 253
	return text != "" && len(text) <= most && strings.IndexFunc(text, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '.' && r != '-' && r != '_'
	}) < 0
}
