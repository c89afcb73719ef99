package ingest

import (
	"errors"
	"net/http"
	"strconv"

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
	details int            // how many results have details
	worst   *refusal.Error // nil when every event is stored
}

// note adds the answer to an entry. If several entries are refused, one that is to be sent again
// decides: its sender sends the whole request again, and the source and id of events that are
// stored already make the engine leave these out.
func (o *outcome) note(refused *refusal.Error) {
	if refused == nil {
		if o.batch {
			o.results = append(o.results, result{Status: http.StatusAccepted})
		}
		return
	}
	if o.worst == nil || refused.Status >= 500 && o.worst.Status < 500 {
		o.worst = refused
	}
	if !o.batch {
		return
	}
	r := result{Status: refused.Status, Reason: refused.Reason}
	if o.details < explained {
		o.details++
		r.Detail = truncate.Text(refused.Text, maxDetail)
	}
	o.results = append(o.results, r)
}

// refusal returns the refusal of the whole request, nil if every event is stored.
func (o *outcome) refusal() *refusal.Error {
	if o.worst == nil || !o.batch {
		return o.worst
	}
	refused, again := 0, 0
	for _, r := range o.results {
		if r.Status != http.StatusAccepted {
			refused++
		}
		if r.Status >= 500 {
			again++
		}
	}
	if refused == len(o.results) && again == 0 {
		return unprocessable("batch", "none of the %d events is stored, see results", refused)
	}
	text := strconv.Itoa(refused) + " of " + strconv.Itoa(len(o.results)) + " events are not stored, see results"
	if again > 0 {
		return &refusal.Error{Status: http.StatusServiceUnavailable, Reason: o.worst.Reason, RetryAfter: o.worst.RetryAfter, Text: text + ": send the batch again"}
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

// answer writes the response and returns its status.
func (p *Preprocessor) answer(w http.ResponseWriter, r *http.Request, from sender, o *outcome, err error) int {
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
	p.metrics.refused.WithLabelValues(refused.Reason).Inc()
	p.refusals.Write(r, from.name(), refused)
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
	var body []byte
	if o.batch {
		const one = `{"status":202}`
		body = make([]byte, 0, 2+len(o.results)*(len(one)+1))
		body = append(body, '[')
		for i := range o.results {
			if i > 0 {
				body = append(body, ',')
			}
			body = append(body, one...)
		}
		body = append(body, ']')
	} else if len(o.id) <= maxShownID {
		body = append(jsontext.AppendString(append(make([]byte, 0, len(o.id)+16), `{"id":`...), o.id), '}')
	} else {
		body = []byte("{}")
	}
	w.Header()["Content-Type"] = []string{"application/json"}
	w.WriteHeader(http.StatusAccepted)
	_, _ = w.Write(body) //nolint:gosec // it is JSON with that content type; it fails when the sender has closed the connection
}
