package target

import (
	"cmp"
	"errors"
	"net/url"
	"slices"
	"strings"

	"github.com/aviaryhq/aviary/internal/truncate"
)

// secrets are the secrets of a subscriber that errors and answers must not show. The longest comes
// first: it may hold another.
type secrets []string

const (
	redacted = "<redacted>"
	// leastSecret is the least length of a secret: shorter values would be found everywhere.
	leastSecret = 8
)

// with returns the secrets, and the one in a value of the header Authorization.
func (s secrets) with(header string) secrets {
	s = slices.Clone(s)
	s.add(credential(header))
	return s
}

// credential returns the part after the last space: xyz of "Basic xyz".
func credential(header string) string { return header[strings.LastIndexByte(header, ' ')+1:] }

// addURL adds what follows the host in a URL, whole and in its parts: it may hold a token.
func (s *secrets) addURL(u *url.URL) {
	s.add(u.RequestURI(), u.EscapedPath(), u.Path, u.RawQuery)
	s.add(strings.Split(u.EscapedPath(), "/")...)
	s.add(strings.Split(u.Path, "/")...)
	for name, values := range u.Query() {
		for _, value := range values {
			s.add(value, url.QueryEscape(value), name+"="+url.QueryEscape(value))
		}
	}
}

// add adds the texts, and their credentials, if they are long enough, as they look in a printable
// text.
func (s *secrets) add(texts ...string) {
	for _, text := range texts {
		text = printable(text)
		for _, part := range []string{text, credential(text)} {
			if len(part) >= leastSecret {
				*s = append(*s, part)
			}
		}
	}
	slices.SortFunc(*s, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
}

// redact replaces the secrets in a text.
func (s secrets) redact(text string) string {
	for _, secret := range s {
		text = strings.ReplaceAll(text, secret, redacted)
	}
	return text
}

// maxErrorText bounds the text of an error that may repeat what the receiver sent.
const maxErrorText = 500

// err returns an error that is short, holds no secrets, and keeps nothing in memory that err holds,
// such as certificates.
func (s secrets) err(err error) error {
	return errors.New(strings.Clone(truncate.Text(s.redact(err.Error()), maxErrorText)))
}

// longest returns the length of the longest secret, at least 1.
func (s secrets) longest() int {
	if len(s) == 0 {
		return 1
	}
	return len(s[0])
}

// printable returns text without characters that cannot be shown.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' && r != '\t' || r == 0x7f {
			return -1
		}
		return r
	}, strings.ToValidUTF8(text, ""))
}
