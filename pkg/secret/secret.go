// Package secret keeps passwords and tokens out of logs, dumps and printed configuration.
//
// A [String] reads from YAML, JSON or text like any string and writes itself as "<redacted>" everywhere: fmt with every verb but the nonsensical %p, zap, slog, YAML,
// JSON. The one way to the value is [String.Reveal], so every place that uses a secret can be found by searching for that name.
//
// What it cannot do: fmt does not call the methods of unexported struct fields, so %v of a struct that holds a String in an unexported field
// prints the value. Keep such a struct out of format strings.
package secret

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"unicode/utf8"
)

const redacted = "<redacted>"

// maxFileSize bounds a secret's file: above it the path surely names something else.
const maxFileSize = 64 << 10

// String is a secret text. The zero value is the empty, unset secret, and stays empty when printed so that a reader can tell "not set" from
// "set". It is an immutable value: safe for concurrent use.
type String string

// Reveal returns the secret itself.
func (s String) Reveal() string { return string(s) }

// Equal reports whether s and other are the same, in a time that depends on neither content nor length of either.
func (s String) Equal(other String) bool {
	a, b := sha256.Sum256([]byte(s)), sha256.Sum256([]byte(other))
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

// String returns "<redacted>", or the empty string for an empty secret.
func (s String) String() string {
	if s == "" {
		return ""
	}
	return redacted
}

// GoString redacts for %#v.
func (s String) GoString() string { return fmt.Sprintf("secret.String(%q)", s.String()) }

// Format redacts for every verb. Without it a verb that is wrong for strings, such as %d, would print the value in its complaint.
func (s String) Format(f fmt.State, verb rune) {
	text := s.String()
	switch {
	case verb == 'v' && f.Flag('#'):
		text = s.GoString()
	case verb == 'q':
		text = fmt.Sprintf("%q", text)
	}
	// A write that fails is the caller's to find: fmt gives a Formatter no way to return it.
	_, _ = io.WriteString(f, text)
}

// MarshalText redacts for encoders of text.
func (s String) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// MarshalJSON redacts for encoding/json. It does not escape "<" and ">", unlike the encoder, so that the text can be searched for.
func (s String) MarshalJSON() ([]byte, error) { return []byte(`"` + s.String() + `"`), nil }

// MarshalYAML redacts for YAML.
func (s String) MarshalYAML() (any, error) { return s.String(), nil }

// ReadFile reads a secret from a file, such as one mounted by Kubernetes: UTF-8 text of at most 64 KiB, without the white space around it.
// It fails on an empty file. Its errors never hold any of the file's content.
func ReadFile(path string) (String, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("cannot read a secret: %w", err)
	}
	defer func() { _ = f.Close() }()
	raw, err := io.ReadAll(io.LimitReader(f, maxFileSize+1))
	switch {
	case errors.Is(err, syscall.EISDIR):
		return "", fmt.Errorf("cannot read a secret: %s is a directory: name the file in it", path)
	case err != nil:
		return "", fmt.Errorf("cannot read a secret: %w", err)
	}
	text := strings.TrimSpace(string(raw))
	switch {
	case len(raw) > maxFileSize:
		return "", fmt.Errorf("cannot read a secret: %s is larger than %d bytes", path, maxFileSize)
	case text == "":
		return "", fmt.Errorf("cannot read a secret: %s is empty", path)
	case !utf8.ValidString(text):
		return "", fmt.Errorf("cannot read a secret: %s is not UTF-8 text", path)
	}
	return String(text), nil
}

// Resolve returns the secret given by a configuration's pair of keys, "token" and "token_file": the value itself, or the file's content. Both
// at once is an error; neither gives the empty secret.
func Resolve(value String, file string) (String, error) {
	switch {
	case file == "":
		return value, nil
	case value != "":
		return "", errors.New("give a secret either in place or by its file, not both")
	}
	return ReadFile(file)
}
