package refusal

import (
	"encoding/json"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/aviaryhq/aviary/internal/truncate"
)

// ProblemMediaType is the media type of problem documents (RFC 9457).
const ProblemMediaType = "application/problem+json"

// problem is a problem document of type about:blank: its title is the text of the status.
type problem struct {
	Title   string `json:"title"`
	Status  int    `json:"status"`
	Detail  string `json:"detail,omitempty"`
	Reason  string `json:"reason,omitempty"`
	Results any    `json:"results,omitempty"`
}

// WriteProblem answers with a problem document (RFC 9457) that has the extensions reason and
// results (nil: none). It sets Retry-After and Connection from refused.
func WriteProblem(w http.ResponseWriter, refused *Error, results any) {
	if refused.CloseConnection {
		w.Header().Set("Connection", "close")
	}
	SendProblem(w, refused.Status, refused.RetryAfter, problem{
		Title: http.StatusText(refused.Status), Status: refused.Status, Detail: truncate.Text(refused.Text, MaxAnswer), Reason: refused.Reason, Results: results,
	})
}

// SendProblem answers with a status, the caller's problem document, and Retry-After unless that
// is 0.
func SendProblem(w http.ResponseWriter, status int, retryAfter time.Duration, document any) {
	h := w.Header()
	if retryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(int(math.Ceil(retryAfter.Seconds()))))
	}
	h.Set("Content-Type", ProblemMediaType)
	h.Set("X-Content-Type-Options", "nosniff")
	body, err := json.Marshal(document)
	if err != nil { // the document cannot be encoded as JSON
		body = []byte(`{"title":"Internal Server Error","status":500}`)
		status = http.StatusInternalServerError
	}
	w.WriteHeader(status)
	_, _ = w.Write(body) // it fails when the sender has closed the connection
}
