package ingest

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/aviaryhq/aviary/internal/eventbridge/event"
	"github.com/aviaryhq/aviary/internal/httpserver"
	"github.com/aviaryhq/aviary/internal/httpserver/refusal"
	"github.com/aviaryhq/aviary/internal/truncate"
	"github.com/aviaryhq/aviary/pkg/jsontext"
)

// result is the answer to one entry of a batch.
type result struct {
	Status int    `json:"status"`
	Reason string `json:"reason,omitempty"`
	Detail string `json:"detail,omitempty"`
}

const (
	// explained bounds the refused entries of a batch that an answer explains.
	explained = 50
	maxDetail = 200
	// maxShownID bounds the id that an answer repeats.
	maxShownID = 256
)

// outcome is the outcome of a request whose events were read.
type outcome struct {
	batch   bool
	id      string // of a single event
	results []result
	refused int            // entries
	worst   *refusal.Error // nil when every event is stored
}

// add adds the answer to an entry; nil: it is stored. If several entries are refused, one that is to
// be sent again decides: its sender sends the whole request again, and the engine drops events
// whose source and id are stored already.
func (o *outcome) add(refused *refusal.Error) {
	r := result{Status: http.StatusAccepted}
	if refused != nil {
		o.refused++
		if o.worst == nil || refused.Status >= 500 && o.worst.Status < 500 {
			o.worst = refused
		}
		r = result{Status: refused.Status, Reason: refused.Reason}
		if o.refused <= explained {
			r.Detail = truncate.Text(refused.Text, maxDetail)
		}
	}
	if o.batch {
		o.results = append(o.results, r)
	}
}

// refusal returns the refusal of the whole request, nil if every event is stored.
func (o *outcome) refusal() *refusal.Error {
	if o.worst == nil || !o.batch {
		return o.worst
	}
	text := fmt.Sprintf("%d of %d events are not stored, see results", o.refused, len(o.results))
	switch {
	case o.worst.Status >= 500:
		return &refusal.Error{Status: http.StatusServiceUnavailable, Reason: o.worst.Reason, RetryAfter: o.worst.RetryAfter, Text: text + ": send the batch again"}
	case o.refused == len(o.results):
		return unprocessable("batch", "none of the %d events is stored, see results", o.refused)
	}
	return unprocessable("batch", "%s; the others are stored", text)
}

// refusedAs returns an error as a refusal, with its status.
func refusedAs(err error) *refusal.Error {
	if refused := (*refusal.Error)(nil); errors.As(err, &refused) {
		return refused
	}
	fault := (*event.Error)(nil)
	if !errors.As(err, &fault) {
		return &refusal.Error{Status: http.StatusInternalServerError, Reason: "internal", Text: err.Error()}
	}
	status := http.StatusBadRequest
	switch fault.Reason {
	case event.TooLarge, event.TooManyInOne:
		status = http.StatusRequestEntityTooLarge
	case event.BadMapping:
		status = http.StatusUnprocessableEntity
	}
	return &refusal.Error{Status: status, Reason: string(fault.Reason), Text: fault.Error()}
}

func unauthorized(text string) error {
	return &refusal.Error{Status: http.StatusUnauthorized, Reason: "unauthorized", Text: text}
}

func unsupported(reason, format string, args ...any) error {
	return &refusal.Error{Status: http.StatusUnsupportedMediaType, Reason: reason, Text: fmt.Sprintf(format, args...)}
}

func unprocessable(reason, format string, args ...any) *refusal.Error {
	return &refusal.Error{Status: http.StatusUnprocessableEntity, Reason: reason, Text: fmt.Sprintf(format, args...)}
}

// answer writes the response and returns its status.
func (h *Handler) answer(w http.ResponseWriter, r *http.Request, from sender, o *outcome, err error) int {
	var results any
	var refused *refusal.Error
	if err != nil {
		refused = refusedAs(err)
	} else if refused = o.refusal(); refused != nil && o.batch {
		results = o.results
	}
	if refused == nil {
		accept(w, o)
		return http.StatusAccepted
	}
	h.metrics.refused.WithLabelValues(refused.Reason).Inc()
	h.refusals.Write(r, from.name(), refused)
	switch refused.Status {
	case http.StatusUnauthorized:
		w.Header().Set("WWW-Authenticate", `Bearer realm="eventbridge"`)
		httpserver.AnswerAtOnce(w, r)
	case http.StatusUnsupportedMediaType:
		w.Header().Set("Accept-Encoding", "gzip")
	}
	refusal.WriteProblem(w, refused, results)
	return refused.Status
}

// accept answers 202: to a batch with its results, to a single event with its id.
func accept(w http.ResponseWriter, o *outcome) {
	const one = `{"status":202}`
	body := make([]byte, 0, 16+len(o.id)+len(o.results)*(len(one)+1))
	switch {
	case o.batch:
		body = append(body, '[')
		for i := range o.results {
			if i > 0 {
				body = append(body, ',')
			}
			body = append(body, one...)
		}
		body = append(body, ']')
	case len(o.id) <= maxShownID:
		body = append(jsontext.AppendString(append(body, `{"id":`...), o.id), '}')
	default:
		body = append(body, "{}"...)
	}
	w.Header()["Content-Type"] = []string{"application/json"}
	w.WriteHeader(http.StatusAccepted)
	_, _ = w.Write(body) //nolint:gosec // it is JSON with that content type; it fails when the sender has closed the connection
}
