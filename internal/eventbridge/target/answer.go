package target

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

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

// answers is a pool of buffers for the bodies of answers.
type answers struct{ pool sync.Pool }

func (a *answers) get() *[responseSeen]byte {
	if b, ok := a.pool.Get().(*[responseSeen]byte); ok {
		return b
	}
	return new([responseSeen]byte)
}

// readAnswer returns the beginning of the body as text, and closes the body. If the body is too
// long or too slow, the connection is not used again. giveUp cancels the request.
func (w *webhook) readAnswer(answer *http.Response, giveUp func(), token string) string {
	defer func() { _ = answer.Body.Close() }()
	if answer.ContentLength == 0 || answer.StatusCode == http.StatusSwitchingProtocols {
		return ""
	}
	timer := time.AfterFunc(responseTime, giveUp)
	defer timer.Stop()
	buffer := w.buffers.get()
	defer w.buffers.pool.Put(buffer)
	n, err := io.ReadFull(answer.Body, buffer[:])
	text := w.redactor.text(string(buffer[:n]), token)
	if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		// There is more, and the end of the text may be the beginning of a secret.
		text = text[:max(len(text)-w.redactor.longest(token)+1, 0)]
	}
	if full := err == nil; full {
		for left := responseRead - n; left > 0 && err == nil; left -= n {
			n, err = answer.Body.Read(buffer[:])
		}
	}
	text = w.redactor.text(printable(text), token) // again: characters that printable removes may have split a secret
	if len(text) > responseKept {
		text = strings.ToValidUTF8(text[:responseKept], "")
	}
	return text
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
	for _, part := range []string{text, text[strings.LastIndexByte(text, ' ')+1:]} {
		if len(part) >= leastSecret {
			r.secrets = append(r.secrets, part)
		}
	}
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

// err returns an error that is short and holds no secrets.
func (r *redactor) err(err error, token string) error {
	text := r.text(err.Error(), token)
	if len(text) > maxErrorText {
		text = strings.ToValidUTF8(text[:maxErrorText], "") + "..."
	}
	if text == err.Error() {
		return err
	}
	return errors.New(text)
}

// longest returns the length of the longest secret, at least 1.
func (r *redactor) longest(token string) int {
	n := max(len(token), 1)
	for _, s := range r.secrets {
		n = max(n, len(s))
	}
	return n
}
