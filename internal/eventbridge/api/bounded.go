package api

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/aviaryhq/aviary/internal/httpserver/admission"
)

// answerWithin bounds a request, from its headers to its answer: a request that waits for Pulsar
// longer gets 503. sendWithin bounds the time to send the answer.
const (
	answerWithin = 20 * time.Second
	sendWithin   = 30 * time.Second
)

var errTookLong = errors.New("it took longer than " + answerWithin.String())

// holds are the bytes that a request holds of the budget for bodies and of that for answers.
type holds struct{ body, answer *admission.Hold }

// holdsKey is the key of a request's holds.
type holdsKey struct{}

func holdsOf(r *http.Request) holds { return r.Context().Value(holdsKey{}).(holds) } //nolint:errcheck,forcetypeassert // bounded sets it

// bounded bounds a request's time, and releases the memory for its body and its answer. The
// server's own bounds are for senders of events: with them, a change that has waited for Pulsar
// would get no answer.
func (a *API) bounded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeoutCause(r.Context(), answerWithin, errTookLong)
		defer cancel()
		held := holds{body: a.bodies.Hold(""), answer: a.answers.Hold("")}
		defer held.body.Release()
		defer held.answer.Release()
		// It fails where the server has no deadlines, as in tests.
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(answerWithin + sendWithin))
		next.ServeHTTP(w, r.WithContext(context.WithValue(ctx, holdsKey{}, held)))
	})
}
