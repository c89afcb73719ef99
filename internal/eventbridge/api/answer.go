package api

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
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

// handler answers a request, or returns the error to answer with.
type handler func(http.ResponseWriter, *http.Request) error

// answer makes an http.HandlerFunc of a handler.
func (a *API) answer(h handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		err := h(w, r)
		if err == nil {
			return
		}
		p := problemOf(err)
		if p.Status >= http.StatusInternalServerError {
			a.Log.Warn("request failed", zap.String("method", r.Method), zap.String("path", r.URL.Path), zap.Int("status", p.Status), zap.Error(err))
		}
		writeProblem(w, p)
	}
}

// write answers with a JSON document.
func write(w http.ResponseWriter, status int, v any) error {
	body, err := encode(v)
	if err == nil {
		send(w, status, body)
	}
	return err
}

func send(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write(body) //nolint:gosec // it is JSON with that content type; it fails when the client has closed the connection
}

// encode encodes JSON, with a line feed at the end, without the escapes of json.Marshal: escapes of
// <, > and & make patterns up to six times as long.
func encode(v any) ([]byte, error) {
	text, err := model.Encode(v)
	return append(text, '\n'), err
}

// writeObject answers with an object that has a revision.
func writeObject(w http.ResponseWriter, created bool, revision int64, v any) error {
	w.Header().Set("ETag", etag(revision))
	if created {
		return write(w, http.StatusCreated, v)
	}
	return write(w, http.StatusOK, v)
}

// list is a list of objects, or a page of one.
type list[T any] struct {
	Items []T `json:"items"`
	// Next is the value of "after" for the next page; empty on the last one.
	Next string `json:"next,omitempty"`
}

// writeList answers with a whole list. No items are an empty list, not null.
func writeList[T any](w http.ResponseWriter, items []T) error {
	return write(w, http.StatusOK, list[T]{Items: append([]T{}, items...)})
}

// Bounds of a page.
const (
	defaultPageSize = 100
	maxPageSize     = 1000
	// pageBytes ends a page early: objects may have 512 KiB each. A page has at least one object.
	pageBytes = 2 << 20
)

// writePage answers with the page of objects, in the order of their names, that the parameters
// limit and after ask for.
func writePage[T any](w http.ResponseWriter, r *http.Request, all iter.Seq[*T], name func(*T) string) error {
	limit, err := limitOf(r, defaultPageSize, maxPageSize)
	if err != nil {
		return err
	}
	page := list[json.RawMessage]{Items: []json.RawMessage{}}
	after, last, size := r.URL.Query().Get("after"), "", 0
	for one := range all {
		if name(one) <= after {
			continue
		}
		if len(page.Items) == limit || size >= pageBytes {
			page.Next = last
			break
		}
		text, err := encode(one)
		if err != nil {
			return err
		}
		last, size = name(one), size+len(text)
		page.Items = append(page.Items, text)
	}
	return write(w, http.StatusOK, page)
}

// limitOf reads the parameter limit, a number from 1 to most.
func limitOf(r *http.Request, fallback, most int) (int, error) {
	text := r.URL.Query().Get("limit")
	if text == "" {
		return fallback, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > most {
		return 0, refused(http.StatusBadRequest, "limit must be a number from 1 to "+strconv.Itoa(most))
	}
	return n, nil
}

// problem is a problem document (RFC 9457) whose type is about:blank. As an error, it is the answer.
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

// Error returns the detail.
func (p *problem) Error() string { return p.Detail }

func refused(status int, detail string) error { return &problem{Status: status, Detail: detail} }

func writeProblem(w http.ResponseWriter, p *problem) {
	p.Title = http.StatusText(p.Status)
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

// problemOf returns the answer to an error.
func problemOf(err error) *problem {
	p := &problem{Detail: truncate.Text(err.Error(), refusal.MaxAnswer)}
	var known *problem
	var request *refusal.Error
	var invalid *model.Invalid
	var conflict *model.ConflictError
	switch {
	case errors.As(err, &known):
		p.Status, p.Faults = known.Status, known.Faults
	case errors.As(err, &request):
		p.Status, p.Reason, p.retryAfter, p.closeConnection = request.Status, request.Reason, request.RetryAfter, request.CloseConnection
	case errors.As(err, &invalid):
		p.Status, p.Detail, p.Faults = http.StatusUnprocessableEntity, countOf(invalid), invalid.Faults
	case errors.As(err, &conflict):
		p.Status, p.Revision = http.StatusPreconditionFailed, conflict.Revision
	case errors.Is(err, model.ErrNotFound), errors.Is(err, delivery.ErrNoSubscriber), errors.Is(err, delivery.ErrNoJob):
		p.Status = http.StatusNotFound
	case errors.Is(err, delivery.ErrOptions):
		p.Status = http.StatusUnprocessableEntity
	case errors.Is(err, model.ErrInUse), errors.Is(err, delivery.ErrJobRunning):
		p.Status = http.StatusConflict
	case errors.Is(err, messaging.ErrNoAdminURL):
		p.Status, p.Detail = http.StatusNotImplemented, "this request needs the brokers' admin API, and pulsar.admin_url is not set"
	case errors.Is(err, context.Canceled):
		p.Status = refusal.StatusClientClosed
	default: // model.ErrUnavailable, ErrUnknown, ErrClosed, ErrNewer (another instance may be newer), and errors of brokers
		p.Status, p.retryAfter = http.StatusServiceUnavailable, busy
	}
	return p
}

func countOf(invalid *model.Invalid) string {
	n := len(invalid.Faults) + invalid.More
	if n == 1 {
		return "1 fault"
	}
	return strconv.Itoa(n) + " faults"
}
