package model

import (
	"encoding/json"
	"fmt"
	"strings"
)

// Checks are the checks of other packages. Each returns faults whose pointers are relative to its
// argument. A nil check finds nothing. Checks must be safe for concurrent use, and use no network.
type Checks struct {
	// Schema checks one JSON Schema of a bus.
	Schema func(schema json.RawMessage) []Fault
	// Transform checks a template and its paths.
	Transform func(*Transform) []Fault
	// Target checks signing secrets and certificates, and what depends on the configuration, such
	// as names of connections and the addresses of webhooks. It is not called for targets with
	// hidden secrets: only a change knows these.
	Target func(*Target) []Fault
}

const (
	maxName        = 63
	maxDescription = 4096
	// MaxText bounds other texts, in bytes.
	MaxText = 2048
)

// Name checks the name of a bus, a subscriber or a rule.
func (f *FaultList) Name(at, name string) {
	if !ValidName(name) {
		f.Add(at, "must be 1 to %d of a-z, 0-9 and -, without a - at the beginning or end, got %s", maxName, Quote(name))
	}
}

// ValidName reports whether a text may name a bus, a subscriber or a rule.
func ValidName(name string) bool {
	if name == "" || len(name) > maxName || name[0] == '-' || name[len(name)-1] == '-' {
		return false
	}
	return strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}

// Quote quotes a text for a fault, and cuts a long one.
func Quote(text string) string {
	const most = 80
	if len(text) > most {
		return fmt.Sprintf("%q...", text[:most])
	}
	return fmt.Sprintf("%q", text)
}

// Text checks the length of a text that may be empty.
func (f *FaultList) Text(at, text string, most int) {
	if len(text) > most {
		f.Add(at, "must have at most %d bytes, got %d", most, len(text))
	}
}

// needed checks a text that may not be empty.
func (f *FaultList) needed(at, text string) {
	if text == "" {
		f.Add(at, "must be given")
	}
	f.Text(at, text, MaxText)
}

// between checks a number.
func between[N int | int64 | float64](f *FaultList, at string, got, least, most N) {
	if !(got >= least && got <= most) { // NaN fails, too
		f.Add(at, "must be from %v to %v, got %v", least, most, got)
	}
}

// lasts checks a duration.
func (f *FaultList) lasts(at string, got, least, most Duration) {
	if got < least || got > most {
		f.Add(at, "must be from %s to %s, got %s", least, most, got)
	}
}

// OneOf checks that a word is one of several.
func OneOf[T ~string](f *FaultList, at string, got T, want ...T) {
	words := make([]string, len(want))
	for i, w := range want {
		if got == w {
			return
		}
		words[i] = string(w)
	}
	f.Add(at, "must be one of %s, got %s", strings.Join(words, ", "), Quote(string(got)))
}
