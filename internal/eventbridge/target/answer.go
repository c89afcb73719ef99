package target

import (
	"cmp"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/aviaryhq/aviary/internal/truncate"
	"github.com/aviaryhq/aviary/pkg/secret"
)

const (
	// responseKept is how much of an answer's body is kept for people.
	responseKept = 1 << 10
	// responseSeen is how much of the body is read for that. responseRead bounds what is read in
	// all, so that the connection can be used again.
	responseSeen = 4 << 10
	responseRead = 64 << 10
	// responseTime bounds the wait for the body. The status has already decided the result.
	responseTime = time.Second
)

// readAnswer reads the body and closes it. With keep it returns the beginning as text. If the body
// is too long or too slow, the connection is not used again. giveUp cancels the request.
func (w *webhook) readAnswer(answer *http.Response, keep bool, giveUp func(), token string) string {
	defer func() { _ = answer.Body.Close() }()
	if answer.ContentLength == 0 || answer.StatusCode == http.StatusSwitchingProtocols {
		return ""
	}
	timer := time.AfterFunc(responseTime, giveUp)
	defer timer.Stop()
	if !keep {
		_, _ = io.CopyN(io.Discard, answer.Body, responseRead)
		return ""
	}
	buffer := make([]byte, responseSeen)
	n, err := io.ReadFull(answer.Body, buffer)
	text := w.redactor.text(string(buffer[:n]), token)
	if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		// There is more, and the end of the text may be the beginning of a secret.
		text = text[:max(len(text)-w.redactor.longest(token)+1, 0)]
	}
	_, _ = io.CopyN(io.Discard, answer.Body, int64(responseRead-n))
	text = w.redactor.text(printable(text), token)            // again: characters that printable removes may have split a secret
	return strings.Clone(truncate.Prefix(text, responseKept)) // a part would keep the whole in memory
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

// redactor removes a subscriber's secrets from what its receiver answers. The zero value has no
// secrets.
type redactor struct{ secrets []string }

const (
	redacted = "<redacted>"
	// leastSecret is the least length of a secret: shorter values would be found everywhere.
	leastSecret = 8
)

// add adds a secret, and the part after its last space: xyz of "Basic xyz".
func (r *redactor) add(s secret.String) {
	text := s.Reveal()
	r.addParts(text, text[strings.LastIndexByte(text, ' ')+1:])
}

// addURL adds what follows the host in a URL, whole and in its parts: it may hold a token.
func (r *redactor) addURL(u *url.URL) {
	r.addParts(u.RequestURI(), u.EscapedPath(), u.Path, u.RawQuery)
	r.addParts(strings.Split(u.EscapedPath(), "/")...)
	r.addParts(strings.Split(u.Path, "/")...)
	for name, values := range u.Query() {
		for _, value := range values {
			r.addParts(value, url.QueryEscape(value), name+"="+url.QueryEscape(value))
		}
	}
}

// addParts adds the texts that are long enough. The longest is replaced first: it may hold another.
func (r *redactor) addParts(parts ...string) {
	for _, part := range parts {
		if len(part) >= leastSecret {
			r.secrets = append(r.secrets, part)
		}
	}
	slices.SortFunc(r.secrets, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
}

// text replaces the secrets, and the token after "Bearer ".
func (r *redactor) text(text, token string) string {
	for _, s := range r.secrets {
		text = strings.ReplaceAll(text, s, redacted)
	}
	if token = token[strings.LastIndexByte(token, ' ')+1:]; len(token) >= leastSecret {
		text = strings.ReplaceAll(text, token, redacted)
	}
	return text
}

// maxErrorText bounds the text of an error that may repeat what the receiver sent.
const maxErrorText = 500

// err returns an error that is short, holds no secrets, and keeps nothing in memory that err holds,
// such as certificates.
func (r *redactor) err(err error, token string) error {
	return errors.New(strings.Clone(truncate.Text(r.text(err.Error(), token), maxErrorText)))
}

// longest returns the length of the longest secret, at least 1.
func (r *redactor) longest(token string) int {
	n := max(len(token), 1)
	for _, s := range r.secrets {
		n = max(n, len(s))
	}
	return n
}
