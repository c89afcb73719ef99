package messaging

import (
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/aviaryhq/aviary/pkg/secret"
)

var (
	// ErrAuthentication is in the reason of a failure when a broker, or the issuer of
	// tokens, refused the client's credentials, or they could not be read. Publishers
	// and consumers keep trying: credentials are rotated.
	ErrAuthentication = errors.New("messaging: authentication failed")
	// ErrAuthorization is in the reason of a failure when the broker knows who the
	// client is and does not permit what it asks for.
	ErrAuthorization = errors.New("messaging: not permitted")
	// ErrTLS is in the reason of a failure when client and broker did not accept one
	// another's certificates.
	ErrTLS = errors.New("messaging: TLS failed")
)

// dialRaw makes the underlying client with the transport and the authentication
// that cfg asks for; options holds the rest. Credentials are read here once, so
// that broken files are found now, and again at every connection.
func (c Config) dialRaw(options pulsar.ClientOptions, f *faults) (pulsar.Client, error) {
	if a, err := c.Auth.provider(c.ConnectTimeout, f); err != nil {
		return nil, fmt.Errorf("auth: %w", err)
	} else if a != nil {
		options.Authentication = a
	}
	options.TLSTrustCertsFilePath = c.TLS.CAFile
	options.TLSAllowInsecureConnection = c.TLS.Insecure
	options.TLSMinVersion = tls.VersionTLS12
	// Not the switch it seems to be: set, every broker's certificate must be for the
	// first host of the URL (pulsar-client-go v0.21.0 client_impl.go, ServerName:
	// hostName), which refuses the other hosts and the brokers that lookups lead to,
	// and accepts the first host's certificate from each of them. Unset, crypto/tls
	// verifies the name of the host that is dialed.
	options.TLSValidateHostname = false
	options.Logger = faultLogger{Logger: options.Logger, faults: f}
	raw, err := pulsar.NewClient(options)
	if err != nil {
		return nil, err
	}
	return &explainedClient{Client: raw, faults: f, lookups: make(map[string]*lookup), failing: make(map[string]bool)}, nil
}

// provider makes the underlying client's authentication, nil for none. timeout
// bounds each request to an issuer of tokens.
func (a Auth) provider(timeout time.Duration, f *faults) (pulsar.Authentication, error) {
	switch {
	case a.Token != "":
		return pulsar.NewAuthenticationToken(strings.TrimSpace(a.Token.Reveal())), nil
	case a.TokenFile != "":
		return pulsar.NewAuthenticationTokenFromSupplier(func() (string, error) {
			token, err := secret.ReadFile(a.TokenFile)
			return token.Reveal(), err
		}), nil
	case a.CertFile != "":
		return pulsar.NewAuthenticationTLS(a.CertFile, a.KeyFile), nil
	case a.OAuth2 != (OAuth2{}):
		p, err := newOAuth2Provider(a.OAuth2, timeout)
		if err != nil {
			return nil, err
		}
		f.onRefused(p.forget)
		return p, nil
	default:
		return nil, nil
	}
}
