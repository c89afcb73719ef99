package cluster

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/auth"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/clientquirks"
)

var (
	// ErrAuthentication is in the reason of a failure when a broker, or the issuer of
	// tokens, refused the client's credentials, or they could not be read. Publishers
	// and consumers keep trying: credentials are rotated.
	ErrAuthentication = auth.ErrAuthentication
	// ErrAuthorization is in the reason of a failure when the broker knows who the
	// client is and does not permit the request.
	ErrAuthorization = auth.ErrAuthorization
	// ErrTLS is in the reason of a failure when client and broker did not accept one
	// another's certificates.
	ErrTLS = auth.ErrTLS
)

// dialRaw makes the underlying client. It adds transport and authentication to options. Credentials
// are read here, so that broken files are found early, and again at every connection.
func (c Config) dialRaw(options pulsar.ClientOptions, f *auth.Faults) (pulsar.Client, error) {
	if p, err := auth.NewProvider(c.Auth, c.ConnectTimeout, f); err != nil {
		return nil, fmt.Errorf("auth: %w", err)
	} else if p != nil {
		options.Authentication = p
	}
	options.TLSTrustCertsFilePath = c.TLS.CAFile
	options.TLSAllowInsecureConnection = c.TLS.Insecure
	options.TLSMinVersion = tls.VersionTLS12
	clientquirks.SetClientOptions(&options)
	options.Logger = f.Logger(options.Logger)
	raw, err := pulsar.NewClient(options)
	if err != nil {
		return nil, err
	}
	return f.Wrap(raw), nil
}

// Credentials returns the credentials (nil: none) and the certificates to trust (nil: the
// system's).
func Credentials(c Config, f *auth.Faults) (auth.Credentials, *x509.CertPool, error) {
	credentials, err := auth.NewProvider(c.Auth, c.ConnectTimeout, f)
	if err != nil {
		return nil, nil, fmt.Errorf("messaging: auth: %w", err)
	}
	if c.TLS.CAFile == "" {
		return credentials, nil, nil
	}
	trusted, err := auth.ReadCA(c.TLS.CAFile)
	if err != nil {
		return nil, nil, fmt.Errorf("messaging: tls.ca_file: %w", err)
	}
	return credentials, trusted, nil
}
