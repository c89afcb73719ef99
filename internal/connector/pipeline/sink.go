package pipeline

import (
	"cmp"
	"context"
	"errors"

	"github.com/aviaryhq/aviary/internal/connector/message"
)

// Sink is where messages go.
type Sink interface {
	// Send sends m to a topic, a queue or a routing key; to is empty where the sink has only one. A
	// pipeline calls Send in order, from one goroutine at a time; several pipelines call it at once.
	// Of two messages of one pipeline and one destination the sink must not store the second before
	// the first, unless the first's outcome is an error. Send may block while the sink's queue is
	// full, until ctx ends.
	//
	// The sink calls done exactly once, from any goroutine, also after ctx has ended: with nil when
	// the destination has stored the message durably; with an error made by Refuse when a retry
	// cannot help; with any other error when the message is to be resent. done does not block.
	Send(ctx context.Context, to string, m *message.Message, done func(error))
}

// refusal is an error that a retry cannot help.
type refusal struct {
	reason string
	err    error
}

func (r *refusal) Error() string { return r.err.Error() }
func (r *refusal) Unwrap() error { return r.err }

// Refuse makes err final: the sink can never store the message. It becomes a dead letter, or stops
// the route if it has no dead-letter sink. reason is one of few short words, such as too_large: it
// is a label of a metric and a header of the dead letter.
func Refuse(reason string, err error) error { return &refusal{reason, err} }

// Reason returns the reason of an error made by Refuse, and "refused" for any other error.
func Reason(err error) string {
	reason, _ := Refused(err)
	return cmp.Or(reason, "refused")
}

// Refused returns the reason of an error made by Refuse.
func Refused(err error) (reason string, ok bool) {
	if err == nil { // saves the allocation of r
		return "", false
	}
	var r *refusal
	if errors.As(err, &r) {
		return r.reason, true
	}
	return "", false
}
