// Package bearer checks bearer tokens and returns their tenants. The tokens come from the
// configuration and from files. A request reads the files again if the last reading is at least ten
// seconds ago. Of httpserver the package may import refusal only.
package bearer

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/pkg/secret"
)

// token is the hash of a bearer token, so that a comparison always takes the same time.
type token struct {
	sum    [sha256.Size]byte
	tenant string // that it is bound to, empty for none
	key    string // the configuration's key that has the token
}

func newToken(text, tenant, key string) token {
	return token{sum: sha256.Sum256([]byte(strings.TrimSpace(text))), tenant: tenant, key: key}
}

// Source is a part of the configuration that has tokens.
type Source struct {
	// Tenant is the tenant that the tokens are bound to, empty for none.
	Tenant string
	// Tokens are in the configuration itself.
	Tokens []Configured
	// File has one token on each line. A request reads it again when the last reading is at least
	// ten seconds ago. FileKey is its key in the configuration.
	File    string
	FileKey string
}

// Configured is a token in the configuration, at Key.
type Configured struct {
	Text secret.String
	Key  string
}

// List returns the tokens of a list that the configuration has at key.
func List(texts []secret.String, key string) []Configured {
	all := make([]Configured, len(texts))
	for i, text := range texts {
		all[i] = Configured{text, fmt.Sprintf("%s[%d]", key, i)}
	}
	return all
}

func (s Source) fixed() []token {
	all := make([]token, len(s.Tokens))
	for i, t := range s.Tokens {
		all[i] = newToken(t.Text.Reveal(), s.Tenant, t.Key)
	}
	return all
}

// checkBindings returns a fault for each token that is bound to two tenants, or is bound in one place
// and not in another: its tenant would be ambiguous.
func checkBindings(all []token) error {
	var errs []error
	first := make(map[[sha256.Size]byte]token, len(all))
	for _, t := range all {
		other, known := first[t.sum]
		switch {
		case !known:
			first[t.sum] = t
		case other.tenant != t.tenant:
			errs = append(errs, config.Fault(t.key, "is also a token of %s, for another tenant or role", other.key))
		}
	}
	return errors.Join(errs...)
}

// Tokens are bearer tokens and the tenants that they are bound to. They are safe for concurrent
// use.
type Tokens struct {
	log   *zap.Logger
	fixed []token
	files []tokenFile
	known atomic.Pointer[[]token] // all of them
	again FileRefresh
}

// tokenFile is a file of tokens, one on each line.
type tokenFile struct {
	path, tenant, key string
	last              []token // as they were read
}

// NewTokens reads the files of the sources. It returns errors for files that cannot be read and for
// tokens that are bound to two tenants.
func NewTokens(log *zap.Logger, sources []Source) (*Tokens, error) {
	t := &Tokens{log: log}
	t.again.MarkDone()
	for _, s := range sources {
		t.fixed = append(t.fixed, s.fixed()...)
		if s.File != "" {
			t.files = append(t.files, tokenFile{path: s.File, tenant: s.Tenant, key: s.FileKey})
		}
	}
	return t, t.read()
}

// read reads the files. The tokens of a file that cannot be read stay as they were. If a token is
// bound to two tenants, all tokens stay as they were.
func (t *Tokens) read() error {
	all := t.fixed[:len(t.fixed):len(t.fixed)]
	var errs []error
	for i := range t.files {
		f := &t.files[i]
		if err := f.read(); err != nil {
			errs = append(errs, config.Fault(f.key, "%v", err))
		}
		all = append(all, f.last...)
	}
	if err := checkBindings(all); err != nil {
		return errors.Join(append(errs, err)...)
	}
	t.known.Store(&all)
	return errors.Join(errs...)
}

func (f *tokenFile) read() error {
	text, err := secret.ReadFile(f.path)
	if err != nil {
		return err
	}
	f.last = nil
	for line := range strings.Lines(text.Reveal()) {
		if line = strings.TrimSpace(line); line != "" {
			f.last = append(f.last, newToken(line, f.tenant, f.key))
		}
	}
	return nil
}

// current returns the tokens. It reads the files again if that is due.
func (t *Tokens) current() []token {
	if len(t.files) > 0 {
		t.again.Do(func() {
			if err := t.read(); err != nil {
				t.log.Warn("cannot read the bearer tokens again, the previous ones stay in use", zap.Error(err))
			}
		})
	}
	return *t.known.Load()
}

// Token returns the request's bearer token (RFC 6750), empty for none.
func Token(r *http.Request) string {
	scheme, given, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(given)
}

// Tenant returns the tenant that a token is bound to, empty for none, and whether the token is
// known. It compares with all tokens, so that the time it takes reveals nothing.
func (t *Tokens) Tenant(given string) (tenant string, known bool) {
	if given == "" {
		return "", false
	}
	asked := newToken(given, "", "")
	all := t.current()
	found := -1
	for i := range all {
		found = subtle.ConstantTimeSelect(subtle.ConstantTimeCompare(all[i].sum[:], asked.sum[:]), i, found)
	}
	if found < 0 {
		return "", false
	}
	return all[found].tenant, true
}
