package eventpattern

import (
	"fmt"

	"github.com/aviaryhq/aviary/pkg/jsontext"
)

// Error says why a pattern is invalid.
type Error struct {
	// Offset is the position of the error in the pattern, in bytes from its start.
	Offset int
	// Pointer is the JSON Pointer (RFC 6901) of the error, empty for the pattern as a whole.
	Pointer string
	// Reason is one sentence without a full stop.
	Reason string
}

func (e *Error) Error() string {
	if e.Pointer == "" {
		return fmt.Sprintf("invalid pattern: offset %d: %s", e.Offset, e.Reason)
	}
	return fmt.Sprintf("invalid pattern: %s, offset %d: %s", e.Pointer, e.Offset, e.Reason)
}

// Reason says why an event is invalid.
type Reason string

// Reasons why an event is invalid.
const (
	// InvalidJSON: the bytes are not exactly one JSON value (RFC 8259).
	InvalidJSON = Reason(jsontext.Invalid)
	// Truncated: the bytes end within the JSON value.
	Truncated = Reason(jsontext.Truncated)
	// InvalidUTF8: a string or key contains bytes that are not UTF-8.
	InvalidUTF8 = Reason(jsontext.InvalidUTF8)
	// NotAnObject: the JSON value is not an object.
	NotAnObject Reason = "not an object"
	// DuplicateKey: a key that a rule names occurs twice in an object. Match does not check keys
	// that no rule names.
	DuplicateKey Reason = "duplicate key"
	// TooDeep: objects and arrays are nested more than MaxEventDepth times.
	TooDeep = Reason(jsontext.TooDeep)
	// TooLarge: the event is longer than MaxEventBytes.
	TooLarge Reason = "too large"
	// TooManyValues: the event has more than MaxEventValues values at paths that rules name.
	TooManyValues Reason = "too many values"
	// NumberTooLong: the exponent of a number at a path that a rule names has more than 17 digits.
	NumberTooLong Reason = "exponent of a number too long"
	// TooMuchWork: comparing the event's values with the rules takes more than MaxEventWork
	// comparisons.
	TooMuchWork Reason = "matching takes too many comparisons"
)

// Bounds of events.
const (
	// MaxEventBytes is the maximum length of an event.
	MaxEventBytes = 32 << 20
	// MaxEventDepth is the maximum nesting depth of objects and arrays in an event.
	MaxEventDepth = 1000
	// MaxEventValues is how many values an event may have at paths that rules name. Objects on the
	// way to these paths count, other values do not.
	MaxEventValues = 1 << 16
	// MaxEventWork is how many comparisons of a value with an alternative a match may make after
	// reading the event. Long texts count more than once. That takes about a second. Only events
	// with thousands of values that must each be compared with thousands of rules reach it.
	MaxEventWork = 100_000_000
)

// EventError says why an event is invalid or takes too much work.
type EventError struct {
	// Offset is the position of the error in the event, in bytes from its start.
	Offset int
	Reason Reason
}

func (e *EventError) Error() string {
	return fmt.Sprintf("invalid event: offset %d: %s", e.Offset, e.Reason)
}
