package kafka

import (
	"errors"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/aviaryhq/aviary/internal/connector/lane"
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
	switch {
	case errors.Is(err, kerr.MessageTooLarge), errors.Is(err, kerr.RecordListTooLarge):
		return tooLarge
	case errors.Is(err, kerr.InvalidTimestamp):
		return invalidTimestamp
	case errors.Is(err, kerr.InvalidRecord), errors.Is(err, kerr.UnsupportedForMessageFormat), errors.Is(err, kerr.PolicyViolation):
		return invalidRecord
	}
	return ""
}

// verdict is a failed message's outcome for the lane. With suspect it is transient now, and should be sent again alone.
func verdict(err error, alone bool) (suspect bool, outcome error) {
	if errors.Is(err, kerr.InvalidTopicException) {
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
