// Package auth is how the client proves who it is, and what it learns when a broker, or the issuer
// of tokens, does not believe it.
package auth

import (
	"errors"
	"strings"
	"time"

	"github.com/apache/pulsar-client-go/pulsar/auth"

	"github.com/aviaryhq/aviary/pkg/secret"
)

// The kinds of failure. Package messaging gives them to its callers.
var (
	ErrAuthentication = errors.New("messaging: authentication failed")
	ErrAuthorization  = errors.New("messaging: not permitted")
	ErrTLS            = errors.New("messaging: TLS failed")
)

// Credentials are what the client proves itself with. Tokens and certificates are asked for at
// every request and connection.
type Credentials = auth.Provider

// Method is at most one way of authenticating. The fields mean what those of messaging.Auth mean.
type Method struct {
	Token             secret.String
	TokenFile         string
	CertFile, KeyFile string
	OAuth2            OAuth2
}

// Provider makes the underlying client's provider of credentials, nil for none. timeout bounds each
// request to an issuer of tokens. A token that faults hears to be refused is not used again where
// tokens are issued.
func (m Method) Provider(timeout time.Duration, faults *Faults) (Credentials, error) {
	switch {
	case m.Token != "":
		return auth.NewAuthenticationToken(strings.TrimSpace(m.Token.Reveal())), nil
	case m.TokenFile != "":
		return auth.NewAuthenticationTokenFromSupplier(func() (string, error) {
			token, err := secret.ReadFile(m.TokenFile)
			return token.Reveal(), err
		}), nil
	case m.CertFile != "":
		return auth.NewAuthenticationTLS(m.CertFile, m.KeyFile), nil
	case m.OAuth2 != (OAuth2{}):
		p, err := newOAuth2Provider(m.OAuth2, timeout)
		if err != nil {
			return nil, err
		}
		faults.onRefused(p.forget)
		return p, nil
	default:
		return nil, nil
	}
}
