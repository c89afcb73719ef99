package ingest

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/eventbridge/webhooksig"
	"github.com/aviaryhq/aviary/internal/httpserver/bearer"
	"github.com/aviaryhq/aviary/pkg/secret"
)

// keyHeader has an API key.
const keyHeader = "X-Api-Key"

// senders authenticates senders.
type senders struct {
	tenants map[string]*tenant // empty: everyone may write
	tokens  *bearer.Tokens
	jwts    []*jwtKeys // in the order of the configuration
	// unknown takes the place of a tenant that does not exist or does not sign. Its secret is
	// random, so that a request in such a name is answered like one with a wrong signature, about
	// as fast.
	unknown *tenant
}

func newSenders(log *zap.Logger, c Config) (*senders, error) {
	tokens, err := bearer.NewTokens(log, c.tokenSources())
	errs := []error{err}
	signer, err := webhooksig.New(secret.String("whsec_" + rand.Text() + rand.Text())) // base32 is base64, too
	errs = append(errs, err)
	s := &senders{tenants: map[string]*tenant{}, tokens: tokens, unknown: &tenant{signer: signer}}
	now := time.Now()
	for i, t := range c.Tenants {
		s.tenants[t.Name] = newTenant(t, now)
		if t.JWT == nil || t.JWT.KeyFile == "" { // Validate says that it must be set
			continue
		}
		keys, err := newJWTKeys(log, t.Name, *t.JWT, fmt.Sprintf("ingest.tenants[%d].jwt.key_file", i))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		s.jwts = append(s.jwts, keys)
	}
	return s, errors.Join(errs...)
}

// sender is who sends a request: a tenant, or none if no tenants are configured.
type sender struct {
	tenant *tenant
	// signature is to be checked with the body. Nil: the request is not signed, and the tenant is
	// known.
	signature *signature
}

// name returns the name of the tenant whose share a request takes: none if there is no tenant, or as
// long as its signature is not checked.
func (s sender) name() string {
	if s.tenant == nil || s.signature != nil {
		return ""
	}
	return s.tenant.name
}

// invalidKey is the answer for keys and for tokens, so that it does not tell which are configured.
const invalidKey = "the API key or token is not valid"

// admit authenticates the sender of a request by its headers, before the body is read. For a signed
// request, sender.verify does the rest.
func (s *senders) admit(r *http.Request) (sender, error) {
	if len(s.tenants) == 0 {
		return sender{}, nil
	}
	if len(r.Header[webhooksig.SignatureHeader]) > 0 {
		return s.signed(r)
	}
	given := bearer.Token(r)
	if given == "" {
		given = strings.TrimSpace(r.Header.Get(keyHeader))
	}
	if given == "" {
		return sender{}, unauthorized("an API key, a token or a signature is needed")
	}
	if name, known := s.tokens.Tenant(given); known {
		return sender{tenant: s.tenants[name]}, nil
	}
	if len(s.jwts) > 0 && strings.Count(given, ".") == 2 {
		name, err := s.byJWT(given)
		return sender{tenant: s.tenants[name]}, err
	}
	return sender{}, unauthorized(invalidKey)
}
