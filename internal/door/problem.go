package door

import (
	"encoding/json"
	"math"
	"net/http"
	"strconv"
)

// ProblemMediaType is that of problem documents (RFC 9457).
const ProblemMediaType = "application/problem+json"

// problem is a problem document whose type is about:blank: its title is the status' own.
type problem struct {
	Title   string `json:"title"`
	Status  int    `json:"status"`
	Detail  string `json:"detail,omitempty"`
	Reason  string `json:"reason,omitempty"`
	Results any    `json:"results,omitempty"`
}

// WriteProblem answers a refusal by a problem document (RFC 9457) with the extension reason, and results where there are any. It sets Retry-After and
// Connection as the refusal says.
func WriteProblem(w http.ResponseWriter, refused *Refusal, results any) {
	h := w.Header()
	if refused.RetryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(int(math.Ceil(refused.RetryAfter.Seconds()))))
	}
	if refused.HangUp {
		h.Set("Connection", "close")
	}
	h.Set("Content-Type", ProblemMediaType)
	h.Set("X-Content-Type-Options", "nosniff")
	body, err := json.Marshal(problem{
		Title: http.StatusText(refused.Status), Status: refused.Status, Detail: Cut(refused.Text, MaxAnswer), Reason: refused.Reason, Results: results,
	})
	if err != nil { // only for results that are no JSON
		body = []byte(`{"title":"Internal Server Error","status":500}`)
		refused = &Refusal{Status: http.StatusInternalServerError}
	}
	w.WriteHeader(refused.Status)
	_, _ = w.Write(body) // a sender that has gone is no fault of ours
}
