package messaging

import (
	"math/rand/v2"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/auth"
)

// provider makes the underlying client's authentication, nil for none. Files are
// read here once, so that a broken one is found now, and again at every
// connection.
func (a Auth) provider() (pulsar.Authentication, error) {
	switch {
	case a.Token != "":
		return pulsar.NewAuthenticationToken(a.Token.Reveal()), nil
	case a.TokenFile != "":
		return pulsar.NewAuthenticationTokenFromFile(a.TokenFile), nil
	case a.CertFile != "":
		return pulsar.NewAuthenticationTLS(a.CertFile, a.KeyFile), nil
	case a.OAuth2 != (OAuth2{}):
		return auth.NewAuthenticationOAuth2WithParams(map[string]string{
			auth.ConfigParamType:      auth.ConfigParamTypeClientCredentials,
			auth.ConfigParamIssuerURL: a.OAuth2.IssuerURL,
			auth.ConfigParamAudience:  a.OAuth2.Audience,
			auth.ConfigParamScope:     a.OAuth2.Scope,
			auth.ConfigParamKeyFile:   a.OAuth2.KeyFile,
		})
	default:
		return nil, nil
	}
}

// jitter is a random part of d, so that clients that lost the same broker do not
// come back in step.
func jitter(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return rand.N(d) //nolint:gosec // spreading load, not keeping a secret
}
