package door

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

// token is a bearer token as it is kept: its hash, so that comparing takes the same
// time for all.
type token struct {
	sum    [sha256.Size]byte
	tenant string // that it is bound to, empty for none
	key    string // the configuration's, where it stands
}

func newToken(text, tenant, key string) token {
	return token{sum: sha256.Sum256([]byte(strings.TrimSpace(text))), tenant: tenant, key: key}
}

// TokenSource is a part of the configuration that has tokens.
type TokenSource struct {
	// Tenant is the one that the tokens are bound to, empty for none.
	Tenant string
	// Tokens stand in the configuration at the key TokensKey.
	Tokens    []secret.String
	TokensKey string
	// File has one token on each line. It is read again every ten seconds. FileKey is its key in the configuration.
	File    string
	FileKey string
}

func (s TokenSource) fixed() []token {
	all := make([]token, 0, len(s.Tokens))
	for i, text := range s.Tokens {
		all = append(all, newToken(text.Reveal(), s.Tenant, fmt.Sprintf("%s[%d]", s.TokensKey, i)))
	}
	return all
}

// CheckTokens returns a fault for each token of the configuration itself that is bound twice, or bound and not
// bound: which one counts would be a guess.
func CheckTokens(sources []TokenSource) error {
	var all []token
	for _, s := range sources {
		all = append(all, s.fixed()...)
	}
	return checkBindings(all)
}

func checkBindings(all []token) error {
	var errs []error
	first := make(map[[sha256.Size]byte]token, len(all))
	for _, t := range all {
		other, known := first[t.sum]
		switch {
		case !known:
			first[t.sum] = t
		case other.tenant != t.tenant:
			errs = append(errs, config.Fault(t.key, "is also a token of %s, for another tenant", other.key))
		}
	}
	return errors.Join(errs...)
}

// Tokens are bearer tokens and the tenants that they are bound to. It is safe for concurrent use.
type Tokens struct {
	log   *zap.Logger
	fixed []token
	files []tokenFile
	known atomic.Pointer[[]token] // all of them
	again Reread
}

// tokenFile is a file of tokens, one on each line.
type tokenFile struct {
	path, tenant, key string
	last              []token // as they were read
}

// NewTokens reads the files of the sources. Its errors are of files that cannot be read and of tokens that are bound twice.
func NewTokens(log *zap.Logger, sources []TokenSource) (*Tokens, error) {
	t := &Tokens{log: log}
	t.again.Fresh()
	for _, s := range sources {
		t.fixed = append(t.fixed, s.fixed()...)
		if s.File != "" {
			t.files = append(t.files, tokenFile{path: s.File, tenant: s.Tenant, key: s.FileKey})
		}
	}
	return t, t.read()
}

// read reads the files. Where one cannot be read, its tokens stay as they were; where
// two contradict one another, all do.
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

// current returns the tokens, the files' as of not long ago.
func (t *Tokens) current() []token {
	if len(t.files) > 0 {
		t.again.Read(func() {
			if err := t.read(); err != nil {
				t.log.Warn("cannot read the bearer tokens again: those that were read before stay in force", zap.Error(err))
			}
		})
	}
	return *t.known.Load()
}

// Bearer returns the request's bearer token (RFC 6750), empty for none.
func Bearer(r *http.Request) string {
	scheme, given, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(given)
}

// Tenant returns the tenant that a token is bound to, empty for none, and whether the token is known. It
// compares with all tokens, so that the time says nothing.
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
