package kafka

import (
	"errors"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/aviaryhq/aviary/internal/connector/pipeline"
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

// refusal returns the reason of an error that the batch caused; empty for an error of the connection
// or of the brokers' state.
//
// Brokers accept or refuse whole batches: one invalid message fails the others of its batch, and the
// library does not tell which one it was. So such an error is final only for a message that was sent
// alone.
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

// classify returns a failed message's outcome for the pipeline. suspect is true when some message
// of its batch is invalid: the outcome is not final, and the message should be sent again alone.
func classify(err error, alone bool) (suspect bool, outcome error) {
	if errors.Is(err, kerr.InvalidTopicException) {
		return false, pipeline.Refuse(invalidTopic, err)
	}
	reason := refusal(err)
	switch {
	case reason == "":
		return false, err
	case alone:
		return false, pipeline.Refuse(reason, err)
	}
	return true, err
}
