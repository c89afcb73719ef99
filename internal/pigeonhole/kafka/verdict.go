package kafka

import (
	"errors"

	"github.com/IBM/sarama"
	"github.com/eapache/go-resiliency/breaker"

	"github.com/aviaryhq/aviary/internal/pigeonhole/lane"
)

// Reasons of refusals.
const (
	tooLarge         = "too_large"
	invalidTopic     = "invalid_topic"
	invalidTimestamp = "invalid_timestamp"
	invalidPartition = "invalid_partition"
	invalidRecord    = "invalid_record"
	noTopic          = "no_topic"
)

// refusal returns the reason of an error that is about what was sent, not about the connection or the brokers' state; else nothing.
//
// Brokers judge batches: one message that is wrong fails those beside it as well, and the broker's answer, as the library shows it, does not name
// it. So such an answer is final only for a message that was sent alone.
func refusal(err error) (reason string) {
	var encoding sarama.PacketEncodingError
	switch {
	case errors.Is(err, sarama.ErrMessageSizeTooLarge), errors.Is(err, sarama.ErrMessageSetSizeTooLarge):
		return tooLarge
	case errors.Is(err, sarama.ErrInvalidTimestamp):
		return invalidTimestamp
	case errors.Is(err, sarama.ErrInvalidRecord), errors.Is(err, sarama.ErrUnsupportedForMessageFormat),
		errors.Is(err, sarama.ErrPolicyViolation), errors.As(err, &encoding):
		return invalidRecord
	}
	return ""
}

// ofTopic reports whether an error is about one topic only.
func ofTopic(err error) bool {
	for _, e := range []error{sarama.ErrUnknownTopicOrPartition, sarama.ErrTopicAuthorizationFailed, sarama.ErrLeaderNotAvailable, breaker.ErrBreakerOpen} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// verdict is a failed message's outcome for the lane. With suspect it is transient now, and should be sent again alone.
func verdict(err error, alone bool) (suspect bool, outcome error) {
	if errors.Is(err, sarama.ErrInvalidTopic) {
		return false, lane.Refuse(invalidTopic, err)
	}
	reason := refusal(err)
	switch {
	case reason == "":
		return false, err
	case alone:
		return false, lane.Refuse(reason, err)
	}
	return true, err
}
