package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/eventbridge/delivery"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/httpserver/refusal"
	"github.com/aviaryhq/aviary/internal/truncate"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// write answers with a JSON document.
func write(w http.ResponseWriter, status int, v any) {
	body, err := encode(v)
	if err != nil {
		writeProblem(w, problem{Status: http.StatusInternalServerError, Detail: "the answer cannot be written as JSON"})
		return
	}
	send(w, status, body)
}

func send(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write(body) //nolint:gosec // it is JSON with that content type; it fails when the client has closed the connection
}

// These bound the memory of large answers until they are sent. Clients that open many connections
// and do not read their answers would have all of them kept.
const (
	answersBytes = 64 << 20
	smallAnswer  = 64 << 10 // smaller answers are not counted
)

// show answers a request that changes nothing; its answer may be large. Changes do not use it: they
// are made whether there is memory for their answer or not.
func (a *API) show(w http.ResponseWriter, r *http.Request, v any) {
	body, err := encode(v)
	if err == nil {
		err = a.hold(r, body)
	}
	if err != nil {
		w.Header().Del("ETag")
		a.refuse(w, r, err)
		return
	}
	send(w, http.StatusOK, body)
}

// hold counts an answer until it is sent.
func (*API) hold(r *http.Request, body []byte) error {
	if len(body) <= smallAnswer {
		return nil
	}
	return holdsOf(r).answer.Set(int64(len(body)))
}

// encode encodes JSON, with a line feed at the end, without the escapes of json.Marshal: escapes of
// <, > and & make patterns up to six times as long.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return b.Bytes(), err
}

// writeObject answers with an object that has a revision.
func writeObject(w http.ResponseWriter, status int, revision int64, v any) {
	w.Header().Set("ETag", etag(revision))
	write(w, status, v)
}

// problem is a problem document (RFC 9457) whose type is about:blank.
type problem struct {
	Title  string        `json:"title"`
	Status int           `json:"status"`
	Detail string        `json:"detail,omitempty"`
	Reason string        `json:"reason,omitempty"`
	Faults []model.Fault `json:"faults,omitempty"`
	// Revision is the object's present one, if a condition does not hold.
	Revision int64 `json:"revision,omitempty"`

	retryAfter      time.Duration
	closeConnection bool
}

func writeProblem(w http.ResponseWriter, p problem) {
	if p.Title == "" {
		p.Title = http.StatusText(p.Status)
	}
	if p.closeConnection {
		w.Header().Set("Connection", "close")
	}
	if p.Revision > 0 {
		w.Header().Set("ETag", etag(p.Revision))
	}
	refusal.SendProblem(w, p.Status, p.retryAfter, p)
}

// busy is after how long a client may ask again.
const busy = 5 * time.Second

// refuse answers an error.
func (a *API) refuse(w http.ResponseWriter, r *http.Request, err error) {
	p := problemOf(err)
	if p.Status >= http.StatusInternalServerError {
		a.Log.Warn("request failed", zap.String("method", r.Method), zap.String("path", r.URL.Path), zap.Int("status", p.Status), zap.Error(err))
	}
	writeProblem(w, p)
}

// problemOf returns the answer to an error.
func problemOf(err error) problem {
	var known *statusError
	var request *refusal.Error
	var invalid *model.Invalid
	var conflict *model.ConflictError
	detail := truncate.Text(err.Error(), refusal.MaxAnswer)
	switch {
	case errors.As(err, &known):
		return problem{Status: known.status, Detail: detail, Faults: known.faults}
	case errors.As(err, &request):
		return problem{Status: request.Status, Detail: detail, Reason: request.Reason, retryAfter: request.RetryAfter, closeConnection: request.CloseConnection}
	case errors.As(err, &invalid):
		detail = strconv.Itoa(len(invalid.Faults)+invalid.More) + " faults"
		if len(invalid.Faults)+invalid.More == 1 {
			detail = "1 fault"
		}
		return problem{Status: http.StatusUnprocessableEntity, Detail: detail, Faults: invalid.Faults}
	case errors.As(err, &conflict):
		return problem{Status: http.StatusPreconditionFailed, Detail: detail, Revision: conflict.Revision}
	case errors.Is(err, model.ErrNotFound), errors.Is(err, delivery.ErrNoSubscriber), errors.Is(err, delivery.ErrNoJob):
		return problem{Status: http.StatusNotFound, Detail: detail}
	case errors.Is(err, delivery.ErrOptions):
		return problem{Status: http.StatusUnprocessableEntity, Detail: detail}
	case errors.Is(err, model.ErrInUse), errors.Is(err, delivery.ErrJobRunning):
		return problem{Status: http.StatusConflict, Detail: detail}
	case errors.Is(err, messaging.ErrNoAdminURL):
		return problem{Status: http.StatusNotImplemented, Detail: "this takes the brokers' admin API, whose address pulsar.admin_url is not set"}
	case errors.Is(err, context.Canceled):
		return problem{Status: refusal.StatusClientClosed, Detail: detail}
	default: // registry.ErrUnavailable, ErrUnknown, ErrClosed, ErrNewer (another instance may be newer), and what brokers do
		return problem{Status: http.StatusServiceUnavailable, Detail: detail, retryAfter: busy}
	}
}

// statusError is an error with the status of its answer.
type statusError struct {
	status int
	text   string
	faults []model.Fault
}

func (e *statusError) Error() string { return e.text }

func refused(status int, text string) error { return &statusError{status: status, text: text} }

// list is a page of objects by name.
type list[T any] struct {
	Items []T `json:"items"`
	// Next is the value of "after" for the next page; empty on the last one.
	Next string `json:"next,omitempty"`
}

// Bounds of a page.
const (
	defaultPageSize = 100
	maxPageSize     = 1000
	// pageBytes ends a page early: objects may have 512 KiB each. A page has at least one object.
	pageBytes = 2 << 20
)

// page reads limit and after.
func page(r *http.Request) (limit int, after string, err error) {
	q := r.URL.Query()
	limit, err = number(q.Get("limit"), defaultPageSize, maxPageSize)
	return limit, q.Get("after"), err
}

// number reads a number from 1 to most.
func number(text string, fallback, most int) (int, error) {
	if text == "" {
		return fallback, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > most {
		return 0, refused(http.StatusBadRequest, "limit must be a number from 1 to "+strconv.Itoa(most))
	}
	return n, nil
}
