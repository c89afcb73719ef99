package registry

import (
	"encoding/json"
	"fmt"
	"strings"
)

// Checks are what other parts know of what is valid. Each returns faults whose pointers are relative to what it is given. A
// nil one finds nothing. They must be safe for concurrent use and touch no network.
type Checks struct {
	// Schema checks one JSON Schema of a bus.
	Schema func(schema json.RawMessage) []Fault
	// Transform checks a template and its paths, or a CEL expression.
	Transform func(*Transform) []Fault
	// Target checks signing secrets and certificates, and what depends on the configuration, such as names of connections and
	// the addresses of webhooks. It is not asked about targets with hidden secrets, which the change knows.
	Target func(*Target) []Fault
}

const (
	maxName        = 63
	maxDescription = 4096
	maxText        = 2048 // bytes of other texts
)

// name checks the name of a bus, a subscriber or a rule.
func (f *faults) name(at, name string) {
	if !validName(name) {
		f.add(at, "must be 1 to %d of a-z, 0-9 and -, the first and the last no -, got %s", maxName, quote(name))
	}
}

func validName(name string) bool {
	if name == "" || len(name) > maxName || name[0] == '-' || name[len(name)-1] == '-' {
		return false
	}
	return strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}

// quote is a text for a fault.
func quote(text string) string {
	const most = 80
	if len(text) > most {
		return fmt.Sprintf("%q...", text[:most])
	}
	return fmt.Sprintf("%q", text)
}

// text checks the length of one that may be empty.
func (f *faults) text(at, text string, most int) {
	if len(text) > most {
		f.add(at, "must have at most %d bytes, got %d", most, len(text))
	}
}

// needed checks a text that may not be empty.
func (f *faults) needed(at, text string) {
	if text == "" {
		f.add(at, "must be given")
	}
	f.text(at, text, maxText)
}

// between checks a number.
func between[N int | int64 | float64](f *faults, at string, got, least, most N) {
	if !(got >= least && got <= most) { // NaN is not
		f.add(at, "must be from %v to %v, got %v", least, most, got)
	}
}

// lasts checks a duration.
func (f *faults) lasts(at string, got, least, most Duration) {
	if got < least || got > most {
		f.add(at, "must be from %s to %s, got %s", least, most, got)
	}
}

// oneOf checks a word.
func oneOf[T ~string](f *faults, at string, got T, want ...T) {
	words := make([]string, len(want))
	for i, w := range want {
		if got == w {
			return
		}
		words[i] = string(w)
	}
	f.add(at, "must be one of %s, got %s", strings.Join(words, ", "), quote(string(got)))
}
