package door

import (
	"encoding/json"
	"math"
	"net/http"
	"strconv"
	"time"
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
	if refused.HangUp {
		w.Header().Set("Connection", "close")
	}
	SendProblem(w, refused.Status, refused.RetryAfter, problem{
		Title: http.StatusText(refused.Status), Status: refused.Status, Detail: Cut(refused.Text, MaxAnswer), Reason: refused.Reason, Results: results,
	})
}

// SendProblem answers with a problem document of the caller's own, which has the same status, and Retry-After unless that is 0.
func SendProblem(w http.ResponseWriter, status int, retryAfter time.Duration, document any) {
	h := w.Header()
	if retryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(int(math.Ceil(retryAfter.Seconds()))))
	}
	h.Set("Content-Type", ProblemMediaType)
	h.Set("X-Content-Type-Options", "nosniff")
	body, err := json.Marshal(document)
	if err != nil { // only for what is no JSON
		body = []byte(`{"title":"Internal Server Error","status":500}`)
		status = http.StatusInternalServerError
	}
	w.WriteHeader(status)
	_, _ = w.Write(body) // a sender that has gone is no fault of ours
}
