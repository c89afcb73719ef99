// Package auth authenticates the client, and records why a broker, or the issuer of tokens, refused
// the client. It imports pkg/secret, clientquirks and throttle.
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

// Config holds at most one way of authenticating.
type Config struct {
	// Token is a bearer token (JWT).
	Token secret.String `yaml:"token"`
	// TokenFile holds the token. It is read again at every connection, and when a broker reports
	// that the token has expired, so that it can be rotated.
	TokenFile string `yaml:"token_file"`
	// CertFile holds the PEM client certificate for mutual TLS. It is read again at every
	// connection, and needs key_file.
	CertFile string `yaml:"cert_file"`
	// KeyFile holds the PEM key of cert_file. It is read again at every connection.
	KeyFile string `yaml:"key_file"`
	// OAuth2 configures the client credentials flow.
	OAuth2 OAuth2 `yaml:"oauth2"`
}

// OAuth2 configures the client credentials flow (RFC 6749, section 4.4).
type OAuth2 struct {
	// IssuerURL is the address of the authorization server, which must have OpenID Connect
	// discovery: an https URL, or http to this machine. Default: the key file's.
	IssuerURL string `yaml:"issuer_url"`
	// Audience is the name of the Pulsar cluster at the issuer.
	Audience string `yaml:"audience"`
	// Scope is a space-separated list of scopes. Optional.
	Scope string `yaml:"scope"`
	// KeyFile is a JSON file with client_id, client_secret and issuer_url, as Pulsar's own clients
	// use it. It is read again for every token.
	KeyFile string `yaml:"key_file"`
	// CAFile holds the PEM certificates of the authorities to trust for the issuer. Default: the
	// system's.
	CAFile string `yaml:"ca_file"`
}

// Methods names the ways of authenticating that are set.
func Methods(c Config) (set []string) {
	for _, m := range []struct {
		name string
		set  bool
	}{
		{"token", c.Token != ""},
		{"token_file", c.TokenFile != ""},
		{"cert_file/key_file", c.CertFile != "" || c.KeyFile != ""},
		{"oauth2", c.OAuth2 != (OAuth2{})},
	} {
		if m.set {
			set = append(set, m.name)
		}
	}
	return set
}

// NewProvider makes the underlying client's provider of credentials, nil for none. timeout bounds
// each request to an issuer of tokens. A token that a broker refused, as faults hears, is not used
// again where tokens are issued.
func NewProvider(c Config, timeout time.Duration, faults *Faults) (Credentials, error) {
	switch {
	case c.Token != "":
		return auth.NewAuthenticationToken(strings.TrimSpace(c.Token.Reveal())), nil
	case c.TokenFile != "":
		return auth.NewAuthenticationTokenFromSupplier(func() (string, error) {
			token, err := secret.ReadFile(c.TokenFile)
			return token.Reveal(), err
		}), nil
	case c.CertFile != "":
		return auth.NewAuthenticationTLS(c.CertFile, c.KeyFile), nil
	case c.OAuth2 != (OAuth2{}):
		p, err := newOAuth2Provider(c.OAuth2, timeout)
		if err != nil {
			return nil, err
		}
		faults.onRefused(p.forget)
		return p, nil
	default:
		return nil, nil
	}
}
