package retry

import (
	"errors"
	"time"
)

// verdict is the action that a handler's error asks for.
type verdict struct {
	err    error
	after  time.Duration
	reject bool
}

func (v *verdict) Error() string { return v.err.Error() }
func (v *verdict) Unwrap() error { return v.err }

// RetryAfter makes a handler's error ask for another attempt no sooner than d
// from now, in place of the consumer's own backoff. A nil err is nil: there is
// nothing to retry.
func RetryAfter(err error, d time.Duration) error {
	if err == nil {
		return nil
	}
	return &verdict{err: err, after: d}
}

// Reject makes a handler's error final: the message goes to the dead-letter topic
// with err as its reason and is then acknowledged. A nil err is nil.
func Reject(err error) error {
	if err == nil {
		return nil
	}
	return &verdict{err: err, reject: true}
}

// IsReject reports whether err was made by Reject.
func IsReject(err error) bool {
	var v *verdict
	return errors.As(err, &v) && v.reject
}
