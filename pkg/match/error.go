package match

import "fmt"

// Error says why a pattern is refused.
type Error struct {
	// Offset is the position in the pattern, in bytes from its start, of what is wrong.
	Offset int
	// Pointer is the JSON Pointer (RFC 6901) of what is wrong, empty for the pattern as a whole.
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

// Reason says what is wrong with an event.
type Reason string

// What can be wrong with an event.
const (
	// InvalidJSON: the bytes are not one JSON value by RFC 8259.
	InvalidJSON Reason = "not JSON"
	// Truncated: the bytes end before the JSON value does.
	Truncated Reason = "ends too early"
	// InvalidUTF8: a string or key holds bytes that are not UTF-8.
	InvalidUTF8 Reason = "not UTF-8"
	// NotAnObject: the JSON value is not an object.
	NotAnObject Reason = "not an object"
	// DuplicateKey: an object has a key twice that a rule names. Keys that no rule names are not compared.
	DuplicateKey Reason = "duplicate key"
	// TooDeep: objects and arrays are nested more than MaxEventDepth times.
	TooDeep Reason = "nested too deep"
	// TooLarge: the event has more than MaxEventBytes.
	TooLarge Reason = "too large"
	// TooManyValues: more than MaxEventValues values stand where rules look.
	TooManyValues Reason = "too many values"
	// NumberTooLong: the exponent of a number that rules look at has more than 17 digits.
	NumberTooLong Reason = "exponent of a number too long"
	// TooMuchWork: its values meet so many rules that comparing them takes more than MaxEventWork steps.
	TooMuchWork Reason = "too many values meet too many rules"
)

// Bounds of events.
const (
	// MaxEventBytes is the largest event, in bytes.
	MaxEventBytes = 32 << 20
	// MaxEventDepth is how deep objects and arrays of an event may be nested.
	MaxEventDepth = 1000
	// MaxEventValues is how many values of an event may stand where rules look; objects and arrays on the way there count, other values do not.
	MaxEventValues = 1 << 16
	// MaxEventWork is how many steps a match may take once the event is read: about one for each comparison of a value with an alternative. It is about
	// a second, and is reached where thousands of values of one event each meet thousands of rules.
	MaxEventWork = 100_000_000
)

// EventError says why an event is refused.
type EventError struct {
	// Offset is the position in the event, in bytes from its start, of what is wrong.
	Offset int
	Reason Reason
}

func (e *EventError) Error() string {
	return fmt.Sprintf("invalid event: offset %d: %s", e.Offset, e.Reason)
}
