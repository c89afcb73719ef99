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

	"github.com/aviaryhq/aviary/internal/door"
	"github.com/aviaryhq/aviary/internal/eventbridge/processor"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry"
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
	_, _ = w.Write(body) //nolint:gosec // it is JSON, and said to be; a client that has gone is no fault of ours
}

// Bounds of what large answers take until they are sent: whoever reads none of them, over many connections, would have them all be kept.
const (
	answersBytes = 64 << 20
	smallAnswer  = 64 << 10 // what is no larger is not counted
)

// show answers with what was asked for, which may be large. It is not for changes: these are made whether there is room for their answer or not.
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

// encode makes JSON as it was written, with a line break behind it: json.Marshal escapes <, > and &, which makes patterns up to six times as long.
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
	Title  string           `json:"title"`
	Status int              `json:"status"`
	Detail string           `json:"detail,omitempty"`
	Reason string           `json:"reason,omitempty"`
	Faults []registry.Fault `json:"faults,omitempty"`
	// Revision is the object's present one, where a condition does not hold.
	Revision int64 `json:"revision,omitempty"`

	retryAfter time.Duration
	hangUp     bool
}

func writeProblem(w http.ResponseWriter, p problem) {
	if p.Title == "" {
		p.Title = http.StatusText(p.Status)
	}
	if p.hangUp {
		w.Header().Set("Connection", "close")
	}
	if p.Revision > 0 {
		w.Header().Set("ETag", etag(p.Revision))
	}
	door.SendProblem(w, p.Status, p.retryAfter, p)
}

// busy is when a client may ask again.
const busy = 5 * time.Second

// refuse answers an error.
func (a *API) refuse(w http.ResponseWriter, r *http.Request, err error) {
	p := problemOf(err)
	if p.Status >= http.StatusInternalServerError {
		a.Log.Warn("request failed", zap.String("method", r.Method), zap.String("path", r.URL.Path), zap.Int("status", p.Status), zap.Error(err))
	}
	writeProblem(w, p)
}

// problemOf is the answer to an error.
func problemOf(err error) problem {
	var known *refusal
	var atDoor *door.Refusal
	var invalid *registry.Invalid
	var conflict *registry.ConflictError
	detail := door.Cut(err.Error(), door.MaxAnswer)
	switch {
	case errors.As(err, &known):
		return problem{Status: known.status, Detail: detail, Faults: known.faults}
	case errors.As(err, &atDoor):
		return problem{Status: atDoor.Status, Detail: detail, Reason: atDoor.Reason, retryAfter: atDoor.RetryAfter, hangUp: atDoor.HangUp}
	case errors.As(err, &invalid):
		detail = strconv.Itoa(len(invalid.Faults)+invalid.More) + " faults"
		if len(invalid.Faults)+invalid.More == 1 {
			detail = "1 fault"
		}
		return problem{Status: http.StatusUnprocessableEntity, Detail: detail, Faults: invalid.Faults}
	case errors.As(err, &conflict):
		return problem{Status: http.StatusPreconditionFailed, Detail: detail, Revision: conflict.Revision}
	case errors.Is(err, registry.ErrNotFound), errors.Is(err, processor.ErrNoSubscriber), errors.Is(err, processor.ErrNoJob):
		return problem{Status: http.StatusNotFound, Detail: detail}
	case errors.Is(err, processor.ErrOptions):
		return problem{Status: http.StatusUnprocessableEntity, Detail: detail}
	case errors.Is(err, registry.ErrInUse), errors.Is(err, processor.ErrJobRunning):
		return problem{Status: http.StatusConflict, Detail: detail}
	case errors.Is(err, messaging.ErrNoAdminURL):
		return problem{Status: http.StatusNotImplemented, Detail: "this takes the brokers' admin API, whose address pulsar.admin_url is not set"}
	case errors.Is(err, context.Canceled):
		return problem{Status: statusHungUp, Detail: detail}
	default: // registry.ErrUnavailable, ErrUnknown, ErrClosed, ErrNewer (another instance may be newer), and what brokers do
		return problem{Status: http.StatusServiceUnavailable, Detail: detail, retryAfter: busy}
	}
}

// statusHungUp is noted of a request whose client hung up; nobody reads it.
const statusHungUp = 499

// refusal is an error with its status.
type refusal struct {
	status int
	text   string
	faults []registry.Fault
}

func (e *refusal) Error() string { return e.text }

func refused(status int, text string) error { return &refusal{status: status, text: text} }

// list is a page of objects by name.
type list[T any] struct {
	Items []T `json:"items"`
	// Next is the value of "after" for the next page; empty on the last one.
	Next string `json:"next,omitempty"`
}

// Bounds of a page.
const (
	usualPage = 100
	mostPage  = 1000
	// pageBytes ends a page early: objects may have 512 KiB each. One is always there.
	pageBytes = 2 << 20
)

// page reads limit and after.
func page(r *http.Request) (limit int, after string, err error) {
	q := r.URL.Query()
	limit, err = number(q.Get("limit"), usualPage, mostPage)
	return limit, q.Get("after"), err
}

// number reads a number from 1 to most.
func number(text string, usual, most int) (int, error) {
	if text == "" {
		return usual, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > most {
		return 0, refused(http.StatusBadRequest, "limit must be a number from 1 to "+strconv.Itoa(most))
	}
	return n, nil
}
