package nightingale

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

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

// fixedTokens returns the tokens that stand in the configuration. prefix is that of
// their keys.
func (c HTTPConfig) fixedTokens(prefix string) ([]token, error) {
	var all []token
	for i, text := range c.BearerTokens {
		all = append(all, newToken(text.Reveal(), "", fmt.Sprintf("%sbearer_tokens[%d]", prefix, i)))
	}
	for i, s := range c.Senders {
		for j, text := range s.BearerTokens {
			all = append(all, newToken(text.Reveal(), s.Tenant, fmt.Sprintf("%ssenders[%d].bearer_tokens[%d]", prefix, i, j)))
		}
	}
	return all, checkBindings(all)
}

// checkBindings returns a fault for each token that is bound twice, or bound and not
// bound: which one counts would be a guess.
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

// tokens are the bearer tokens that may write.
type tokens struct {
	log   *zap.Logger
	fixed []token
	files []tokenFile
	known atomic.Pointer[[]token] // all of them

	mu      sync.Mutex
	readAt  time.Time
	reading bool
}

// tokenFile is a file of tokens, one on each line.
type tokenFile struct {
	path, tenant, key string
	last              []token // as they were read
}

// rereadTokens is how long a token's file is taken to be unchanged.
const rereadTokens = 10 * time.Second

// newTokens returns nil when no token is asked for.
func newTokens(log *zap.Logger, c HTTPConfig) (*tokens, error) {
	if !c.wantsTokens() {
		return nil, nil //nolint:nilnil // nil is the tokens that nobody needs
	}
	fixed, err := c.fixedTokens("http.")
	if err != nil {
		return nil, err
	}
	t := &tokens{log: log, fixed: fixed, readAt: time.Now()}
	if c.BearerTokenFile != "" {
		t.files = append(t.files, tokenFile{path: c.BearerTokenFile, key: "http.bearer_token_file"})
	}
	for i, s := range c.Senders {
		if s.BearerTokenFile != "" {
			t.files = append(t.files, tokenFile{path: s.BearerTokenFile, tenant: s.Tenant, key: fmt.Sprintf("http.senders[%d].bearer_token_file", i)})
		}
	}
	return t, t.read()
}

// read reads the files. Where one cannot be read, its tokens stay as they were; where
// two contradict one another, all do.
func (t *tokens) read() error {
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

// current returns the tokens, the files' as of not long ago. One request reads them
// again, the others go on with what is known: a file system that hangs does not hold
// all up.
func (t *tokens) current() []token {
	if len(t.files) > 0 && t.due() {
		if err := t.read(); err != nil {
			t.log.Warn("cannot read the bearer tokens again: those that were read before stay in force", zap.Error(err))
		}
		t.mu.Lock()
		t.reading = false
		t.mu.Unlock()
	}
	return *t.known.Load()
}

// due reports whether the caller is to read the files again.
func (t *tokens) due() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	if t.reading || now.Sub(t.readAt) < rereadTokens {
		return false
	}
	t.readAt, t.reading = now, true
	return true
}

// tenant returns the tenant that the request's token is bound to, empty for none. It
// compares with all tokens, so that the time says nothing.
func (t *tokens) tenant(r *http.Request) (string, error) {
	scheme, given, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if given = strings.TrimSpace(given); given == "" || !strings.EqualFold(scheme, "Bearer") {
		return "", errUnauthorized
	}
	asked := newToken(given, "", "")
	all := t.current()
	found := -1
	for i := range all {
		found = subtle.ConstantTimeSelect(subtle.ConstantTimeCompare(all[i].sum[:], asked.sum[:]), i, found)
	}
	if found < 0 {
		return "", errUnauthorized
	}
	return all[found].tenant, nil
}
