package clientquirks

import (
	"errors"
	"strings"

	"github.com/apache/pulsar-client-go/pulsar"
)

// Class is what the library does about an error of a producer.
type Class int

// The classes of errors.
const (
	Retriable  Class = iota // recreate the producer and send again
	TooLarge                // this record only, final
	Terminated              // the topic, final
)

// Errors of the broker arrive as text, "server error: <ServerError>: <message>"
// (internal/connection.go, handleResponseError). The functions here look for names in it, as the
// client itself does. If the text changes, final errors are retried without limit.

// Classify sorts an error of a producer.
func Classify(err error) Class {
	switch {
	case errors.Is(err, pulsar.ErrMessageTooLarge), errors.Is(err, pulsar.ErrMetaTooLarge),
		errors.Is(err, pulsar.ErrFailAddToBatch),
		strings.Contains(err.Error(), "encryptedPayload exceeds MaxMessageSize"):
		return TooLarge
	case errors.Is(err, pulsar.ErrTopicTerminated), strings.Contains(err.Error(), "TopicTerminated"):
		return Terminated
	default:
		return Retriable
	}
}

// Permanent reports whether subscribing can never succeed as configured.
func Permanent(err error) bool {
	if e := (*pulsar.Error)(nil); errors.As(err, &e) && e.Result() == pulsar.InvalidConfiguration {
		return true
	}
	msg := err.Error()
	for _, s := range []string{
		"InvalidTopicName", "nvalid topic name", "IncompatibleSchema", "NotAllowedError",
		"Subscription is of different type",
	} {
		if strings.Contains(msg, s) {
			return true
		}
	}
	return false
}

// CloseReason is why a broker closed a consumer or refused one: busy, unauthorized,
// topic_not_found, terminated, or closed for all else.
func CloseReason(err error) string {
	for _, s := range []struct{ in, out string }{
		{"ConsumerBusy", "busy"}, {"AuthorizationError", "unauthorized"},
		{"TopicNotFound", "topic_not_found"}, {"TopicTerminated", "terminated"},
	} {
		if strings.Contains(err.Error(), s.in) {
			return s.out
		}
	}
	return "closed"
}
