package event

import "fmt"

// Reason is the kind of a fault.
type Reason string

// The reasons.
const (
	NotJSON      Reason = "not_json"
	InvalidUTF8  Reason = "invalid_utf8"
	DuplicateKey Reason = "duplicate_key"
	TooDeep      Reason = "too_deep"
	TooMany      Reason = "too_many_values"
	TooLarge     Reason = "event_too_large"
	NotAnObject  Reason = "not_an_object"
	BadNumber    Reason = "number_out_of_range"
	BadAttribute Reason = "invalid_attribute"
	Missing      Reason = "missing_attribute"
	BadData      Reason = "invalid_data"
	BadHeader    Reason = "invalid_header"
	BadMapping   Reason = "mapping"
	TooManyInOne Reason = "batch_too_large"
)

// Error says why something is not an event.
type Error struct {
	Reason Reason
	// Offset is where in the body the fault is, in bytes from its start, -1 if that is not known.
	Offset int
	// Text is for people, one sentence without a full stop.
	Text string
}

func (e *Error) Error() string {
	if e.Offset < 0 {
		return e.Text
	}
	return fmt.Sprintf("offset %d: %s", e.Offset, e.Text)
}

func faultf(reason Reason, offset int, format string, args ...any) *Error {
	return &Error{Reason: reason, Offset: offset, Text: fmt.Sprintf(format, args...)}
}

// shown returns at most 40 bytes of what a sender has sent, for an error's text.
func shown[T string | []byte](text T) string {
	if len(text) > 40 {
		return fmt.Sprintf("%.40q...", string(text[:40]))
	}
	return fmt.Sprintf("%q", string(text))
}
