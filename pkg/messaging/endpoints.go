package messaging

import (
	"crypto/tls"
	"errors"
	"fmt"
	"strings"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/admin"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/ask"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/auth"
)

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

// newAdmin returns nil when cfg has no AdminURL.
func newAdmin(cfg Config, log *zap.Logger) (*admin.Client, error) {
	if cfg.AdminURL == "" {
		return nil, nil
	}
	faults := auth.NewFaults(log)
	credentials, trusted, err := cfg.access(faults)
	if err != nil {
		return nil, err
	}
	c, err := admin.New(admin.Options{
		URL: cfg.AdminURL, ConnectTimeout: cfg.ConnectTimeout, Insecure: cfg.TLS.Insecure, RootCAs: trusted,
		Credentials: credentials, Refused: faults.Refused,
	})
	if err != nil {
		return nil, fmt.Errorf("messaging: auth: %w", err)
	}
	return c, nil
}

// newBroker is whom the methods Try… ask.
func newBroker(cfg Config, faults *auth.Faults) (ask.Broker, error) {
	credentials, trusted, err := cfg.access(faults)
	if err != nil {
		return ask.Broker{}, err
	}
	b := ask.Broker{Addresses: addressesOf(cfg.URL), Listener: cfg.ListenerName, Credentials: credentials}
	if !strings.HasPrefix(cfg.URL, "pulsar+ssl://") {
		return b, nil
	}
	b.TLS = &tls.Config{
		MinVersion:         tls.VersionTLS12,
		RootCAs:            trusted,
		InsecureSkipVerify: cfg.TLS.Insecure, //nolint:gosec // as the configuration says
	}
	if cfg.Auth.CertFile != "" {
		b.TLS.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return credentials.GetTLSCertificate()
		}
	}
	return b, nil
}
