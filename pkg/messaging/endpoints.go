package messaging

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/admin"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/ask"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/auth"
)

// newAdmin returns nil when cfg has no AdminURL.
func newAdmin(cfg Config, log *zap.Logger) (*admin.Client, error) {
	if cfg.AdminURL == "" {
		return nil, nil
	}
	faults := auth.NewFaults(log)
	credentials, err := cfg.Auth.method().Provider(cfg.ConnectTimeout, faults)
	if err != nil {
		return nil, fmt.Errorf("messaging: auth: %w", err)
	}
	options := admin.Options{
		URL: cfg.AdminURL, ConnectTimeout: cfg.ConnectTimeout, Insecure: cfg.TLS.Insecure, Refused: faults.Refused,
	}
	if credentials != nil { // an interface that holds nil is not nil
		options.Credentials = credentials
	}
	if options.RootCAs, err = rootCAs(cfg.TLS.CAFile); err != nil {
		return nil, fmt.Errorf("messaging: tls.ca_file: %w", err)
	}
	c, err := admin.New(options)
	if err != nil {
		return nil, fmt.Errorf("messaging: auth: %w", err)
	}
	return c, nil
}

// rootCAs is nil, which stands for the system's, without a file.
func rootCAs(file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil
	}
	return auth.ReadCA(file)
}

// newBroker is whom the methods Try… ask.
func newBroker(cfg Config, faults *auth.Faults) (ask.Broker, error) {
	b := ask.Broker{Addresses: addressesOf(cfg.URL), Listener: cfg.ListenerName}
	credentials, err := cfg.Auth.method().Provider(cfg.ConnectTimeout, faults)
	if err != nil {
		return b, fmt.Errorf("messaging: auth: %w", err)
	}
	if credentials != nil { // an interface that holds nil is not nil
		b.Credentials = credentials
	}
	if !strings.HasPrefix(cfg.URL, "pulsar+ssl://") {
		return b, nil
	}
	b.TLS = &tls.Config{
		MinVersion:         tls.VersionTLS12,
		InsecureSkipVerify: cfg.TLS.Insecure, //nolint:gosec // as the configuration says
	}
	if b.TLS.RootCAs, err = rootCAs(cfg.TLS.CAFile); err != nil {
		return b, fmt.Errorf("messaging: tls.ca_file: %w", err)
	}
	if cfg.Auth.CertFile != "" {
		b.TLS.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return credentials.GetTLSCertificate()
		}
	}
	return b, nil
}

// openingFailure returns what err means when a publisher that opens cannot be helped by waiting,
// otherwise nil.
func openingFailure(err error, owns bool) error {
	is := func(code string) bool { return strings.Contains(err.Error(), code) }
	switch {
	case errors.Is(err, ErrAuthorization):
		return err
	case is("AuthorizationError"):
		return fmt.Errorf("%w: %w", ErrAuthorization, err)
	case is("TopicNotFound"):
		return fmt.Errorf("%w: %w", ErrTopicNotFound, err)
	case is("InvalidTopicName"):
		return fmt.Errorf("%w: %w", ErrInvalidTopic, err)
	case owns && (is("ProducerFenced") || is("ProducerBusy")):
		return fmt.Errorf("%w: %w", ErrOwned, err)
	default:
		return nil
	}
}
