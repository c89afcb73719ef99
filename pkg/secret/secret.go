// Package secret keeps passwords and tokens out of logs, dumps and printed configuration. It
// imports no other package of this repository.
//
// A [String] reads from YAML, JSON or text like any string, and is always written as "<redacted>":
// by fmt with every verb except %p, zap, slog, YAML and JSON. Only [String.Reveal] returns the
// value.
//
// One limitation: fmt does not call the methods of unexported struct fields, so %v of a struct with
// a String in an unexported field prints the value. Do not format such a struct.
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

// maxFileSize is the maximum size of a secret's file. A larger file is certainly not a secret.
const maxFileSize = 64 << 10

// String is a secret text. The zero value means that the secret is not set. It is written as an
// empty string, so that a reader can tell "not set" from "set". A String is immutable and safe for
// concurrent use.
type String string

// Reveal returns the secret itself.
func (s String) Reveal() string { return string(s) }

// Equal reports whether s and other are equal. The time of the comparison does not depend on how
// many of their bytes are equal.
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

// GoString redacts the secret for %#v.
func (s String) GoString() string { return fmt.Sprintf("secret.String(%q)", s.String()) }

// Format redacts the secret for every verb. Without it a verb that is wrong for strings, such as
// %d, would print the value in an error text.
func (s String) Format(f fmt.State, verb rune) {
	text := s.String()
	switch {
	case verb == 'v' && f.Flag('#'):
		text = s.GoString()
	case verb == 'q':
		text = fmt.Sprintf("%q", text)
	}
	// A Formatter cannot return an error. The caller of fmt gets errors of its writer.
	_, _ = io.WriteString(f, text)
}

// MarshalText redacts the secret for text encoders.
func (s String) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// MarshalJSON redacts the secret for encoding/json. It does not itself escape "<" and ">", so that
// a search for the text finds it.
func (s String) MarshalJSON() ([]byte, error) { return []byte(`"` + s.String() + `"`), nil }

// MarshalYAML redacts the secret for YAML.
func (s String) MarshalYAML() (any, error) { return s.String(), nil }

// ReadFile reads a secret from a file, for instance one that Kubernetes has mounted. The file must
// contain UTF-8 text of at most 64 KiB. ReadFile removes white space around the text, and returns
// an error if nothing is left. Its errors never contain any of the file's content.
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

// Resolve returns the secret of a pair of configuration keys such as "token" and "token_file": the
// value itself, or the content of the file. It returns an error if both are set, and the empty
// secret if neither is.
func Resolve(value String, file string) (String, error) {
	switch {
	case file == "":
		return value, nil
	case value != "":
		return "", errors.New("give a secret either in place or by its file, not both")
	}
	return ReadFile(file)
}
