package api

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/aviaryhq/aviary/internal/door"
)

// answerWithin bounds a request, from its headers to its answer: what waits for Pulsar ends with 503 then. sendWithin is the time for sending the answer.
const (
	answerWithin = 20 * time.Second
	sendWithin   = 30 * time.Second
)

var errTookLong = errors.New("it took longer than " + answerWithin.String())

// holds are a request's parts of the room for bodies, and of that for answers.
type holds struct{ body, answer *door.Hold }

// holdsKey is the key of a request's holds.
type holdsKey struct{}

func holdsOf(r *http.Request) holds { return r.Context().Value(holdsKey{}).(holds) } //nolint:errcheck,forcetypeassert // bounded sets it

// bounded bounds a request's time, and gives back the memory for its body and its answer. The server's own bounds are for senders of events: it would send no answer to a
// change that has waited for Pulsar.
func (a *API) bounded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeoutCause(r.Context(), answerWithin, errTookLong)
		defer cancel()
		held := holds{body: a.room.Hold(""), answer: a.answers.Hold("")}
		defer held.body.Release()
		defer held.answer.Release()
		// The error is that of a server without deadlines, as in tests.
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(answerWithin + sendWithin))
		next.ServeHTTP(w, r.WithContext(context.WithValue(ctx, holdsKey{}, held)))
	})
}
