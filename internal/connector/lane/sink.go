package lane

import (
	"context"
	"errors"

	"github.com/aviaryhq/aviary/internal/connector/message"
)

// Sink is where messages go.
type Sink interface {
	// Send hands m over for the destination to (a topic, or a queue or routing key:
	// what the route's template says; empty where the sink has one only). One lane
	// calls it from one goroutine at a time, in order, and n+1 must not be stored
	// before n of the same lane and destination unless n's outcome is an error;
	// several lanes call it at once.
	//
	// done is called exactly once, from any goroutine, also after ctx has ended: with
	// nil once the destination has stored the message for good; with an error made by
	// Refuse when no repetition would help; with any other error when it was not
	// stored, or not known to be, and is to be sent again. done does not block.
	//
	// Send may block for room, at most until ctx ends.
	Send(ctx context.Context, to string, m *message.Message, done func(error))
}

// refusal is a permanent verdict.
type refusal struct {
	reason string
	err    error
}

func (r *refusal) Error() string { return r.err.Error() }
func (r *refusal) Unwrap() error { return r.err }

// Refuse makes err final: the message can never be stored, and goes where poison
// messages go. reason is a short, bounded word such as too_large, for metrics and for
// whoever finds the message there.
func Refuse(reason string, err error) error { return &refusal{reason, err} }

// Reason is why a message was refused, for metrics and dead letters: "refused" where
// the error does not say.
func Reason(err error) string {
	if reason, ok := Refused(err); ok {
		return reason
	}
	return "refused"
}

// Refused returns the reason of an error made by Refuse.
func Refused(err error) (reason string, ok bool) {
	var r *refusal
	if errors.As(err, &r) {
		return r.reason, true
	}
	return "", false
}
