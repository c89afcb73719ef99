package clientquirks

import (
	"errors"
	"strings"

	"github.com/apache/pulsar-client-go/pulsar"
)

// class is what the library does about an error of the underlying producer.
type class int

const (
	Retriable  class = iota // recreate the producer and send again
	TooLarge                // this record only, final
	Terminated              // the topic, final
)

// Classify sorts an error of the underlying client. Server errors reach us as
// text (pulsar-client-go v0.21.0 error.go, getErrorFromServerError), so names of
// the protocol's ServerError are matched as it does itself.
func Classify(err error) class {
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
	var e *pulsar.Error
	if errors.As(err, &e) {
		switch e.Result() {
		case pulsar.InvalidTopicName, pulsar.InvalidConfiguration:
			return true
		default:
		}
	}
	msg := err.Error()
	for _, s := range []string{
		"InvalidTopicName", "Invalid topic name", "IncompatibleSchema", "NotAllowedError",
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
